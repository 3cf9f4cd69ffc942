"""The meaning of errors of the SDK and of the network to the caller: from error to sentence, with its mend.

Some are final: their cause must be mended, or the lock is gone. All others leave a doubt about the sender or receiver
that raised them. It is thrown away (channel.py), and the call is tried with a new one.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import exceptions as sdk

from jobpool.errors import AccessRefused, BackendUnavailable, InvalidJob, JobpoolError, WriteRefused
from jobpool_backends.errors import refusal, unreached
from jobpool_backends.servicebus.address import Address

# The message is not ours (any more); for those who asked about it, and nobody else.
LOST = (sdk.MessageLockLostError, sdk.MessageAlreadySettled, sdk.MessageNotFoundError)
NOT_LET_IN = (sdk.ServiceBusAuthorizationError, sdk.ServiceBusAuthenticationError)
"""From a handler that had been let in: its token has ended, because this machine slept or its clock was set. A new
handler brings a new token. From a new handler: the key is wrong.
"""

_REFUSED = (*LOST, sdk.ServiceBusQuotaExceededError, sdk.MessageSizeExceededError, JobpoolError)
# The broker answered, or was not asked, and the handler is as good as before.
SOUND = (*_REFUSED, sdk.ServiceBusServerBusyError)
# To try again at once would not help.
FINAL = (*_REFUSED, *NOT_LET_IN, sdk.MessagingEntityNotFoundError, sdk.MessagingEntityDisabledError)
_REFUSED_KEY = (
    "refuses the key: mend SharedAccessKeyName and SharedAccessKey in the connection string (the Azure portal shows"
    " them under shared access policies), or its SharedAccessSignature, which ends; Send and Listen are needed"
)
_NOBODY = (
    "cannot be entered, for azure-identity found nobody to be here: run `az login`, use a managed identity, or set"
    " AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET"
)
_REFUSED_IDENTITY = (
    "refuses this identity: give it the role 'Azure Service Bus Data Owner' (or Sender and Receiver) on the namespace"
)


def explain(error: BaseException, address: Address, queue: str) -> JobpoolError:
    """Explain `error`, met while something was done with this queue, to the caller."""
    if isinstance(error, JobpoolError):
        return error
    missing = missing_queue(error, address, queue)
    if missing is not None:
        return missing
    if any(isinstance(each, ClientAuthenticationError) for each in _wrapped(error)):
        return refusal(_NOBODY).as_error(address.title)
    match error:
        case sdk.MessagingEntityDisabledError():
            return WriteRefused(f"{address.title}: queue {queue!r} is disabled: enable it there (status Active)")
        case sdk.ServiceBusAuthorizationError() | sdk.ServiceBusAuthenticationError():
            refused = _REFUSED_KEY if address.connection_string else _REFUSED_IDENTITY
            return AccessRefused(f"{address.title} {refused} ({words(error)})")
        case sdk.ServiceBusQuotaExceededError():
            return WriteRefused(
                f"{address.title}: queue {queue!r} is full, or the namespace has no connection left: remove what is not"
                f" needed (its dead letters count too), or raise its size ({words(error)})"
            )
        case sdk.MessageSizeExceededError():
            return InvalidJob(too_large(queue, None, None))
        case sdk.ServiceBusServerBusyError():
            return BackendUnavailable(
                f"{address.title} is busy and asks to wait some seconds: if that is often so, raise its messaging units"
            )
    return BackendUnavailable(f"{address.title} {_network(error, address.timeout)}")


def missing_queue(error: BaseException, address: Address, queue: str) -> AccessRefused | None:
    """Return the error of a queue that is not there; None when that is not what `error` says."""
    says_so = isinstance(error, sdk.MessagingEntityNotFoundError) or "not-found" in str(error)
    if not says_so or isinstance(error, sdk.MessageNotFoundError):
        return None
    lock = f"{address.lock:g}"
    if address.emulated:
        how = f"create it in the emulator's configuration (LockDuration PT{lock}S, MaxDeliveryCount 100)"
    else:
        how = (
            f"create it (az servicebus queue create --namespace-name {address.host.partition('.')[0]} --name {queue}"
            f" --lock-duration PT{lock}S --max-delivery-count 100)"
        )
    return AccessRefused(f"{address.title} has no queue {queue!r}: {how}, or mend the name")


def too_large(queue: str, size: int | None, limit: int | None) -> str:
    """Say that a message is too large, and for which limit."""
    told = f"has {size} bytes, and queue {queue!r} takes" if size else f"is too large: queue {queue!r} takes"
    most = f"at most {limit} a message" if limit else "no message of that size"
    return (
        f"the job's message {told} {most}: make its payload smaller (put the data somewhere and send its name), or"
        " raise the queue's maximum message size (premium tier)"
    )


def is_refused(error: BaseException) -> bool:
    """Return whether nothing listens there."""
    return any(isinstance(each, ConnectionRefusedError) for each in _wrapped(error))


def _network(error: BaseException, timeout: float) -> str:
    found = (each for each in _wrapped(error) if isinstance(each, OSError) and not isinstance(each, TimeoutError))
    beneath = next((each for each in found if each.errno is not None), None)  # the operating system's
    if isinstance(beneath, ssl.SSLCertVerificationError):
        return (
            f"shows a certificate that is not accepted ({beneath.verify_message}): mend the host, or the authorities"
            " that this machine trusts"
        )
    if beneath is not None and (way := unreached(beneath, "the emulator")):
        return way
    if isinstance(error, TimeoutError | sdk.OperationTimeoutError):
        return (
            f"did not answer within {timeout:g} s: see whether it is up and no firewall swallows packets (ports 5671"
            " and 5672), or raise the option timeout"
        )
    return f"broke off: the next call connects anew ({words(error)})"


def _wrapped(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and all that it was made from: the SDK keeps those in many places."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if isinstance(current, BaseException) and id(current) not in seen:
            seen.add(id(current))
            yield current
            inner = [getattr(current, name, None) for name in ("inner_exception", "error", "__cause__", "__context__")]
            waiting += [*inner, *current.args]


def words(error: BaseException) -> str:
    """Return the error's own text, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
