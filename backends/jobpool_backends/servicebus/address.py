"""From a connection string or URL and options to an `Address`: where the namespace is, and how to get in.

    Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=QUEUE]
    Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=NAME;SharedAccessKey=KEY;UseDevelopmentEmulator=true
    servicebus://NAME[.servicebus.windows.net]        with the identity that azure-identity finds

Options follow either form after a question mark (`…;SharedAccessKey=KEY?lock=30`), or come by keyword, which wins.
`lock`: the seconds that the queues lock a message for. `timeout`: the seconds that a call may take. `receivers`: the
number of receivers of a queue. No error repeats the text, because a piece of it may be half a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jobpool.errors import ConfigurationError
from jobpool_backends.options import read_options, seconds, split_query, whole

DEFAULT_TIMEOUT = 10.0
DEFAULT_LOCK = 60.0  # the service's own default, as 300 is its limit (LockDuration)
URL_OPTIONS = (
    seconds("timeout", DEFAULT_TIMEOUT),
    seconds("lock", DEFAULT_LOCK, 5.0, 300.0),
    whole("receivers", 1, 1, 32),
)
PUBLIC_CLOUD = "servicebus.windows.net"

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?(?::\d{1,5})?")
_KEY_PARTS = ("SharedAccessKeyName", "SharedAccessKey")
_PARTS = ("Endpoint", *_KEY_PARTS, "SharedAccessSignature", "EntityPath", "UseDevelopmentEmulator")
_FORM = "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"


@dataclass(frozen=True, slots=True)
class Address:
    """The namespace's address, and its options (see the module)."""

    host: str  # with a port where it is an emulator's
    connection_string: str | None = field(default=None, repr=False)  # None = azure-identity finds a credential
    only: str | None = None  # the one queue that the connection string is good for; None = all of the namespace
    emulated: bool = False  # an emulator, or a test's peer: no TLS
    timeout: float = DEFAULT_TIMEOUT
    lock: float = DEFAULT_LOCK
    receivers: int = 1

    @property
    def title(self) -> str:
        return f"Service Bus at {self.host}"


def read_address(url: str, options: Mapping[str, object]) -> Address:
    """Return the address in `url` and `options`, which win. Raises ConfigurationError, which names no key."""
    place, found = split_query(url.strip())
    named = place.lower().startswith("servicebus://")
    address = Address(_read_host(place)) if named else _read_string(place)
    return replace(address, **read_options("servicebus", {**found, **options}, URL_OPTIONS))


def _read_host(text: str) -> str:
    place = text.partition("://")[2].strip("/")
    if "@" in place or "/" in place or not _HOST.fullmatch(place):
        raise _refuse(
            "takes the name of a namespace and nothing else: servicebus://NAME.servicebus.windows.net, where"
            f" azure-identity finds who you are. With a key, use the connection string: {_FORM}"
        )
    if ":" in place:
        raise _refuse(
            "takes no port, which only an emulator has: leave it out, or take the emulator's connection string, with"
            " ;UseDevelopmentEmulator=true"
        )
    return place if "." in place else f"{place}.{PUBLIC_CLOUD}"


def _read_string(text: str) -> Address:
    parts = _read_parts(text)
    scheme, _, rest = parts.get("Endpoint", "").partition("://")
    host = rest.strip("/")
    if scheme.lower() != "sb" or not _HOST.fullmatch(host):
        raise _refuse(f"connection string has no valid Endpoint: write {_FORM}")
    missing = [name for name in _KEY_PARTS if not parts.get(name)]
    if missing and not parts.get("SharedAccessSignature"):
        raise _refuse(f"connection string lacks {' and '.join(missing)}: copy it whole, {_FORM}")
    emulated = parts.get("UseDevelopmentEmulator", "").lower() == "true"
    if ":" in host and not emulated:
        raise _refuse(
            "connection string names a port, which only an emulator has: add ;UseDevelopmentEmulator=true, or leave the"
            " port out"
        )
    written = ";".join(f"{name}={value}" for name, value in parts.items() if name != "EntityPath")
    return Address(host, written, parts.get("EntityPath"), emulated=emulated)


def _read_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        name, equals, value = piece.partition("=")
        known = next((part for part in _PARTS if part.lower() == name.strip().lower()), None)
        if not equals or known is None:
            raise _refuse(
                f"connection string has a part that is none of {', '.join(_PARTS)}: copy it whole, with every ';' and"
                " '='"
            )
        if known in parts:
            raise _refuse(f"connection string has {known} twice: leave one out")
        parts[known] = value.strip()
    return parts


def _refuse(what: str) -> ConfigurationError:
    return ConfigurationError(f"servicebus:// {what}")
