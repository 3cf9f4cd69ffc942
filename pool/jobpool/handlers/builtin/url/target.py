"""Reading a URL so strictly that no two programs could read it differently. Pure.

Most tricks use disagreements of parsers: the end of the host, the meaning of a backslash, integers as addresses. A URL
that is not plain is refused here, not repaired, and the text says how to write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from jobpool.handlers import builtin

Address = IPv4Address | IPv6Address

MAX_URL_CHARS = 8192
"""Characters of a URL, as most servers take it."""

PORTS = {"http": 80, "https": 443}

_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_SHAPE = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?P<colon>:)?(?P<port>.*)")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FORBIDDEN = re.compile(r'["<>^`{|}]')
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Refused(builtin.Refused):
    """The call is not made, or its answer is not taken, and never will be.

    Args:
        rule: A short, stable name of the rule, for logs and searches; the text begins with it.
        why: The mistake, and how it can be mended. Holds no secret part of a URL, and only the kind of the address that
            a name resolves to. A producer must not learn internal addresses by asking.
    """

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"refused ({rule}): {why}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a call.

    Attributes:
        scheme: `http` or `https`.
        host: A name in lower case, or an address as text, without brackets.
        address: Of the host, when that is an address.
        port: 1 to 65535.
        path: Begins with a slash; with the query.
    """

    scheme: str
    host: str
    address: Address | None
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the text of the `Host` header: the port only if it is not the scheme's own."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: object) -> Target:
    """Parse a URL.

    Raises:
        Refused: It is not a plain http or https URL; the text names the rule and the mend.
    """
    text = _plain_text(url)
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise Refused("url-shape", "a URL begins with http:// or https:// and a host")
    scheme = shape["scheme"].lower()
    if scheme not in PORTS:
        raise Refused("scheme", f"only http and https are called, not {scheme[:20]!r}")
    host, port = _host_and_port(shape["authority"])
    host, address = _read_host(host)
    return Target(scheme, host, address, PORTS[scheme] if port is None else port, _read_path(shape["rest"]))


def _plain_text(url: object) -> str:
    if not isinstance(url, str):
        raise Refused("url-type", f"the URL must be a text, not {type(url).__name__}")
    if not 0 < len(url) <= MAX_URL_CHARS:
        raise Refused("url-length", f"a URL has 1 to {MAX_URL_CHARS} characters, not {len(url)}")
    if not url.isascii():
        raise Refused(
            "non-ascii", "write a name in its ASCII form (xn--…), and other characters percent-encoded as UTF-8"
        )
    if _PRINTABLE.fullmatch(url) is None:
        raise Refused("control-character", "a URL has no blanks and no control characters: percent-encode them")
    if "\\" in url:
        raise Refused("backslash", "programs disagree on what a backslash in a URL is: write / or %5C")
    return url


def _host_and_port(authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise Refused("userinfo", "a URL must not have a user or a password in it: send an Authorization header")
    if "%" in authority:
        raise Refused("encoded-host", "a host has no percent sign: no encoded characters, no zone")
    found = _HOST_AND_PORT.fullmatch(authority)
    if found is None or not found["host"] or (found["port"] and not found["colon"]):
        raise Refused("host", "the URL has no host, or brackets or colons where none belong")
    return found["host"], _read_port(found["port"]) if found["colon"] else None


def _read_port(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
        raise Refused("port", f"a port is a number from 1 to 65535, not {text[:10]!r}")
    return int(text)


def _read_host(host: str) -> tuple[str, Address | None]:
    if host.startswith("["):
        return _read_v6(host[1:-1])
    name = host.lower()
    if name.endswith("."):
        raise Refused("trailing-dot", "write the host without its last dot")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _read_v4(name)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Refused(
            "host", "a host is a name of letters, digits and hyphens, with dots between labels of 1 to 63 characters"
        )
    return name, None


def _read_v4(host: str) -> tuple[str, Address]:
    try:
        address = IPv4Address(host)
    except AddressValueError:
        raise Refused(
            "odd-address", "an IPv4 address is written as four decimal numbers without leading zeros"
        ) from None
    return str(address), address


def _read_v6(host: str) -> tuple[str, Address]:
    try:
        address = IPv6Address(host)
    except AddressValueError:
        raise Refused("odd-address", "what is in brackets is no IPv6 address") from None
    return str(address), address


def _read_path(rest: str) -> str:
    if "#" in rest:
        raise Refused("fragment", "a fragment is never sent: leave out the # and what follows, or write %23")
    if _FORBIDDEN.search(rest) or _BAD_ESCAPE.search(rest):
        raise Refused("path", 'percent-encode % and the characters "<>^`{|} in the path and in the query')
    return rest if rest.startswith("/") else f"/{rest}"
