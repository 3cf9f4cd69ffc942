"""What errors of the SDK and of the network mean: one sentence each, with its mend."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from jobpool.broker.opening import redact
from jobpool.errors import AccessRefused, BackendUnavailable, InvalidJob, WriteRefused
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.errors import explain, too_large

WITH_KEY = Address("shop.servicebus.windows.net", "Endpoint=…", timeout=7.0)
WITH_IDENTITY = Address("shop.servicebus.windows.net")
EMULATED = Address("127.0.0.1:5672", "Endpoint=…", emulated=True)


def wrapped(error: OSError) -> sdk.ServiceBusError:
    """As the SDK hands on what broke beneath it."""
    return sdk.ServiceBusConnectionError(message="Failed to initiate the connection", error=error)


def verification() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def test_an_error_is_a_sentence() -> None:
    for error, kind, text in [
        (
            sdk.MessagingEntityNotFoundError(),
            AccessRefused,
            "has no queue 'mails': create it (az servicebus queue",
        ),
        (sdk.MessagingEntityDisabledError(), WriteRefused, "queue 'mails' is disabled: enable it there"),
        (sdk.ServiceBusAuthenticationError(), AccessRefused, "refuses the key: mend SharedAccessKeyName and"),
        (sdk.ServiceBusAuthorizationError(), AccessRefused, "needs the rights Send and Listen"),
        (sdk.ServiceBusQuotaExceededError(), WriteRefused, "queue 'mails' is full, or the namespace has no"),
        (sdk.ServiceBusServerBusyError(), BackendUnavailable, "is busy and asks to wait some seconds"),
        (sdk.MessageSizeExceededError(), InvalidJob, "make its payload smaller"),
        (sdk.OperationTimeoutError(), BackendUnavailable, "did not answer within 7 s"),
        (TimeoutError(), BackendUnavailable, "did not answer within 7 s"),
        (sdk.ServiceBusConnectionError(), BackendUnavailable, "broke off: the next call connects anew"),
        (AttributeError("'NoneType' object has no attribute '_link'"), BackendUnavailable, "broke off"),
        (wrapped(OSError(errno.ECONNREFUSED, "refused")), BackendUnavailable, "refuses connections: nothing listens"),
        (wrapped(OSError(errno.EHOSTUNREACH, "no route")), BackendUnavailable, "cannot be reached from here"),
        (
            wrapped(socket.gaierror(-2, "unknown")),
            BackendUnavailable,
            "cannot be found: mend the host name",
        ),
        (wrapped(verification()), BackendUnavailable, "certificate that is not accepted (self-signed certificate)"),
        (InvalidJob("as it is"), InvalidJob, "as it is"),
    ]:
        told = explain(error, WITH_KEY, "mails")
        assert type(told) is kind, error
        assert text in str(told), error
        assert "\n" not in str(told), error


def test_who_has_no_key_is_told_of_roles() -> None:
    told = explain(sdk.ServiceBusAuthorizationError(), WITH_IDENTITY, "mails")
    assert "give it the role 'Azure Service Bus Data Owner'" in str(told)


def test_who_has_no_identity_either_is_told_how_to_get_one() -> None:
    unknown = sdk.ServiceBusError("Handler failed", error=ClientAuthenticationError("no credential in the chain"))
    told = explain(unknown, WITH_IDENTITY, "mails")
    assert type(told) is AccessRefused
    assert "run `az login`, use a managed identity, or set" in str(told)


def test_an_emulators_queues_stand_in_its_configuration() -> None:
    told = explain(sdk.MessagingEntityNotFoundError(), EMULATED, "mails")
    assert "create it in the emulator's configuration (LockDuration PT60S, MaxDeliveryCount 100)" in str(told)


def test_a_message_that_is_not_there_is_no_queue_that_is_not_there() -> None:
    assert isinstance(explain(sdk.MessageNotFoundError(), WITH_KEY, "mails"), BackendUnavailable)


def test_what_is_too_large_is_told_for_which_limit() -> None:
    assert "has 300000 bytes, and queue 'mails' takes at most 262144 a message" in too_large("mails", 300_000, 262_144)


@pytest.mark.parametrize("tail", ["", ";EntityPath=orders", "?lock=30"])
def test_a_connection_string_in_a_log_has_no_key(tail: str) -> None:
    told = redact(
        f"Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=aGlkZGVu={tail}"
    )
    assert "aGlkZGVu" not in told
    assert "SharedAccessKeyName=jobs" in told
