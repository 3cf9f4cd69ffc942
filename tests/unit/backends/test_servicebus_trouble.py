"""What errors of the SDK and of the network mean: one sentence each, with its mend."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from contextlib import closing

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk
from support.servers.ports import free_port
from support.tables import row

from jobpool.broker.opening import redact
from jobpool.errors import AccessRefused, BackendUnavailable, ConfigurationError, InvalidJob, WriteRefused
from jobpool_backends.servicebus import ServiceBusBackend
from jobpool_backends.servicebus.address import DEFAULT_TIMEOUT, Address, read_address
from jobpool_backends.servicebus.errors import explain

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
        (sdk.ServiceBusAuthorizationError(), AccessRefused, "Send and Listen are needed"),
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


def test_who_has_no_key_or_an_emulator_is_told_another_mend() -> None:
    unknown = sdk.ServiceBusError("Handler failed", error=ClientAuthenticationError("no credential in the chain"))
    for error, address, text in [
        (sdk.ServiceBusAuthorizationError(), WITH_IDENTITY, "give it the role 'Azure Service Bus Data Owner'"),
        (unknown, WITH_IDENTITY, "run `az login`, use a managed identity, or set"),
        (
            sdk.MessagingEntityNotFoundError(),
            EMULATED,
            "create it in the emulator's configuration (LockDuration PT60S, MaxDeliveryCount 100)",
        ),
    ]:
        told = explain(error, address, "mails")
        assert type(told) is AccessRefused, text
        assert text in str(told)


def test_a_message_that_is_not_there_is_no_queue_that_is_not_there() -> None:
    assert isinstance(explain(sdk.MessageNotFoundError(), WITH_KEY, "mails"), BackendUnavailable)


@pytest.mark.parametrize("tail", ["", ";EntityPath=orders", "?lock=30"])
def test_a_connection_string_in_a_log_has_no_key(tail: str) -> None:
    told = redact(
        f"Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=aGlkZGVu={tail}"
    )
    assert "aGlkZGVu" not in told
    assert "SharedAccessKeyName=jobs" in told


STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=aGlkZGVu="
EMULATOR = STRING.replace("shop.servicebus.windows.net/", "127.0.0.1:5672") + ";UseDevelopmentEmulator=true"


def address(url: str, **options: object) -> Address:
    return read_address(url, options)


def test_a_connection_string() -> None:
    found = address(STRING)
    assert (found.host, found.only, found.emulated) == ("shop.servicebus.windows.net", None, False)
    assert found.connection_string is not None
    assert "SharedAccessKey=aGlkZGVu=" in found.connection_string
    assert (found.timeout, found.lock, found.receivers) == (10.0, 60.0, 1)
    assert "aGlkZGVu" not in repr(found)


@pytest.mark.parametrize("written", [STRING.replace("Endpoint", " endpoint "), STRING.replace(";", " ; ") + ";"])
def test_letters_and_spaces_do_not_matter(written: str) -> None:
    assert address(written) == address(STRING.rstrip("/"))


def test_an_emulator_has_a_port() -> None:
    found = address(EMULATOR)
    assert (found.host, found.emulated) == ("127.0.0.1:5672", True)


def test_an_entity_path_is_kept_apart() -> None:
    found = address(f"{STRING};EntityPath=orders")
    assert found.only == "orders"
    assert found.connection_string == address(STRING).connection_string


def test_a_namespace_without_a_key() -> None:
    for url, host in [
        ("servicebus://shop", "shop.servicebus.windows.net"),
        ("servicebus://shop.servicebus.windows.net/", "shop.servicebus.windows.net"),
        ("ServiceBus://shop.servicebus.chinacloudapi.cn", "shop.servicebus.chinacloudapi.cn"),
    ]:
        found = address(url)
        assert (found.host, found.connection_string) == (host, None), url


def test_options_follow_either_form_and_keywords_win() -> None:
    found = address(f"{STRING}?lock=30&timeout=3", timeout=4, receivers=2)
    assert (found.lock, found.timeout, found.receivers) == (30.0, 4.0, 2)
    assert address("servicebus://shop?lock=5").lock == 5.0


def test_what_is_wrong_is_named_and_no_key_is() -> None:
    for url, text in [
        ("Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=jobs", "lacks SharedAccessKey:"),
        ("Endpoint=sb://shop.servicebus.windows.net/", "lacks SharedAccessKeyName and SharedAccessKey"),
        (STRING.replace("sb://shop", "https://shop"), "no valid Endpoint"),
        (STRING.replace("sb://shop", "http://shop"), "no valid Endpoint"),
        (STRING.replace("sb://shop.servicebus.windows.net/", ""), "no valid Endpoint"),
        (STRING + ";aGlkZGVu", "a part that is none of"),
        (STRING + ";Password=aGlkZGVu", "a part that is none of"),
        (STRING + ";SharedAccessKey=aGlkZGVu", "SharedAccessKey twice"),
        (STRING.replace(".net/", ".net:5671"), "names a port"),
        (STRING + "?lock=0", "lock as 5 to 300 seconds, not '0'"),
        (STRING + "?lock=301", "lock as 5 to 300 seconds"),
        (STRING + "?timeout=0", "timeout as more than 0"),
        (STRING + "?timeout=soon", "timeout as more than 0"),
        (STRING + "?receivers=0", "receivers as a whole number from 1 to 32"),
        ("servicebus://jobs:aGlkZGVu@shop", "the name of a namespace and nothing else"),
        ("servicebus://shop.servicebus.windows.net:5671", "takes no port, which only an emulator has: leave it out"),
        ("servicebus://", "the name of a namespace and nothing else"),
        ("servicebus://shop/orders", "the name of a namespace and nothing else"),
    ]:
        with row(url), pytest.raises(ConfigurationError) as caught:
            read_address(url, {})
        assert text in str(caught.value), url
        assert "aGlkZGVu" not in str(caught.value), url


def test_to_open_one_connects_to_nothing() -> None:
    backend = ServiceBusBackend.from_url(EMULATOR)
    assert backend.namespace.named_queues() == []
    backend.close()
    backend.close()


def test_a_host_on_which_nothing_listens_is_told_at_once() -> None:
    url = EMULATOR.replace("127.0.0.1:5672", f"127.0.0.1:{free_port()}")
    with closing(ServiceBusBackend.from_url(url)) as backend:
        begun = time.monotonic()
        with pytest.raises(BackendUnavailable, match="refuses connections: nothing listens there"):
            backend.stats("orders")
        assert time.monotonic() - begun < DEFAULT_TIMEOUT / 2
