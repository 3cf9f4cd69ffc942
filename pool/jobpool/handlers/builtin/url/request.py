"""From a job's payload to a request that is ready to be sent. Pure.

Payload: `{"method": "POST", "url": "https://…", "options": {…}}`. No payload can weaken the rules: options about TLS
are ignored and named in the result; headers that belong to the connection are refused.

A URL is read so strictly that no two programs could read it differently. Most tricks use disagreements of parsers: the
end of the host, the meaning of a backslash, integers as addresses. A URL that is not plain is refused, not repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import replace

from jobpool.handlers import builtin

Address = IPv4Address | IPv6Address

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
REQUEST_FIELDS = frozenset({"body", "expect", "form", "headers", "json", "query", "timeout"})

TLS_OPTIONS = frozenset(
    (
        *("verify", "verify_ssl", "ssl_verify", "insecure", "tls", "ssl", "cert", "key", "ca", "cafile", "capath"),
        *("ca_certs", "ca_cert", "cert_file", "key_file", "key_password", "cert_reqs", "check_hostname", "ciphers"),
        *("assert_hostname", "assert_fingerprint", "server_hostname", "sni", "ssl_context", "ssl_version"),
        *("ssl_minimum_version", "ssl_maximum_version", "tls_version", "min_tls_version", "verify_host", "verify_peer"),
    )
)
"""Names of TLS switches in other clients: ignored here, whatever their value."""

NEVER = {
    **dict.fromkeys(("allow_redirects", "follow_redirects", "max_redirects"), "redirects are never followed"),
    **dict.fromkeys(("proxy", "proxies", "trust_env"), "proxies are never used"),
    **dict.fromkeys(("auth", "user", "password"), "send an Authorization header"),
    **dict.fromkeys(("resolve", "host", "address"), "the connection goes where the URL's host is"),
    "data": "give `json`, `form` or `body`",
    "params": "give `query`",
}
"""Options of other clients that are refused, and their replacement here."""

RESERVED = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"),
        *("expect", "proxy-authorization", "proxy-authenticate", "proxy-connection", "accept-encoding"),
        "http2-settings",
    )
)
"""Headers that say how bytes are framed and where they go: they are the connection's."""

MAX_HEADERS = 64
MAX_HEADER_BYTES = 16384

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")

MAX_URL_CHARS = 8192  # characters of a URL, as most servers take it
PORTS = {"http": 80, "https": 443}

_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_SHAPE = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?P<colon>:)?(?P<port>.*)")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BAD_PATH = re.compile(r'["<>^`{|}]|%(?![0-9A-Fa-f]{2})')


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


class Target(Struct, frozen=True):
    """The target of a call."""

    scheme: str
    host: str  # a name in lower case, or an address as text, without brackets
    address: Address | None
    port: int
    path: str  # begins with a slash, and has the query

    @property
    def authority(self) -> str:
        """Return the text of the `Host` header: the port only if it is not the scheme's own."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class Request(Struct, frozen=True):
    """One call, ready to be made."""

    method: str  # one of `METHODS`
    target: Target  # where it goes; its path holds the query of `options` too
    headers: dict[str, str]  # as they are sent, but for `Host` and the framing
    body: bytes | None  # None = there is none
    timeout: float  # seconds that the whole call may take, > 0
    expect: Sequence[int]  # the statuses that are success
    ignored: tuple[str, ...]  # options that were left out of account


def read(payload: object, *, timeout: float, max_bytes: int, identifier: str) -> Request:
    """Return the request that a payload means. Raises `Refused`: it is not a request, or breaks a rule.

    Args:
        timeout: Seconds: the default of a call, and the most that one may ask for.
        max_bytes: Of the body, at most.
        identifier: Of the job: sent as `Idempotency-Key` with methods that must not be repeated blindly.
    """
    fields = _object(payload, "payload")
    unknown = sorted(set(fields) - {"method", "url", "options"})
    if unknown:
        raise Refused("payload", f"the payload has no field {str(unknown[0])[:40]!r}: it has method, url and options")
    given = fields.get("method")
    method = given.upper() if isinstance(given, str) and given.isascii() else ""  # `upper` makes an I of a dotless i
    if method not in METHODS:
        raise Refused("method", f"the method must be one of {', '.join(METHODS)}")
    options = _object({} if fields.get("options") is None else fields["options"], "options")
    ignored = tuple(sorted(name for name in options if name.lower() in TLS_OPTIONS))
    for name in options:
        if name not in REQUEST_FIELDS and name not in ignored:
            why = NEVER.get(name.lower()) or f"known are {', '.join(sorted(REQUEST_FIELDS))}"
            raise Refused("option", f"{name[:40]!r} is not an option: {why}")
    target = _with_query(parse(fields.get("url")), options.get("query"))
    headers = _headers(options.get("headers"))
    body, kind = _body(method, options, max_bytes)
    if kind:
        _default(headers, "Content-Type", kind)
    if method in ("POST", "PATCH"):
        _default(headers, "Idempotency-Key", quote(identifier, safe="._:@/+=~-"))
    _default(headers, "User-Agent", "jobpool")
    return Request(method, target, headers, body, _timeout(options, timeout), _expect(options.get("expect")), ignored)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refused("payload", f"the {what} must be an object, not {type(value).__name__}")
    return value


def _with_query(target: Target, query: object) -> Target:
    if query is None:
        return target
    text = urlencode(_pairs(query, "query"))
    if len(target.path) + len(text) >= MAX_URL_CHARS:
        raise Refused("url-length", f"the path and the query have more than {MAX_URL_CHARS} characters")
    return replace(target, path=f"{target.path}{'&' if '?' in target.path else '?'}{text}" if text else target.path)


def _pairs(value: object, what: str) -> list[tuple[str, str]]:
    refused = Refused(what, f"`{what}` must be an object of texts, numbers, or lists of them")
    if not isinstance(value, Mapping):
        raise refused
    pairs = []
    for name, items in value.items():
        for item in items if isinstance(items, list) else [items]:
            if not isinstance(item, str | int | float):
                raise refused
            pairs.append((str(name), str(item).lower() if isinstance(item, bool) else str(item)))
    return pairs


def _headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Refused("headers", "`headers` must be an object of texts")
    headers: dict[str, str] = {}
    seen: set[str] = set()
    for name, text in value.items():
        shown = repr(str(name)[:40])
        if _TOKEN.fullmatch(str(name)) is None:
            raise Refused("header-name", f"{shown} is not a header name")
        if not isinstance(text, str) or _VALUE.fullmatch(text) is None:
            raise Refused("header-value", f"the value of {shown} must be a text of printable ASCII on one line")
        lower = str(name).lower()
        if lower in RESERVED:
            raise Refused("reserved-header", f"{shown} belongs to the connection: leave it out")
        if lower in seen:
            raise Refused("header-name", f"{shown} is there twice")
        seen.add(lower)
        headers[str(name)] = text
    if len(headers) > MAX_HEADERS or sum(len(n) + len(v) + 4 for n, v in headers.items()) > MAX_HEADER_BYTES:
        raise Refused("headers", f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all are sent")
    return headers


def _default(headers: dict[str, str], name: str, value: str) -> None:
    if name.lower() not in map(str.lower, headers):
        headers[name] = value


def _body(method: str, options: Mapping[str, Any], max_bytes: int) -> tuple[bytes | None, str]:
    """Return the body, and the content type that goes with it."""
    given = [name for name in ("json", "form", "body") if name in options]
    if not given:
        return None, ""
    if len(given) > 1:
        raise Refused("body", f"give one of `json`, `form` and `body`, not {' and '.join(given)}")
    if method in ("GET", "HEAD"):
        raise Refused("body", f"{method} carries no body: leave `{given[0]}` out")
    value = options[given[0]]
    if given[0] == "json":
        kind = "application/json"
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    elif given[0] == "form":
        body, kind = urlencode(_pairs(value, "form")).encode(), "application/x-www-form-urlencoded"
    elif isinstance(value, str):
        body, kind = value.encode(), "text/plain; charset=utf-8"
    else:
        raise Refused("body", "`body` must be a text; other values go out with `json`")
    if len(body) > max_bytes:
        raise Refused("request-size", f"the body has {len(body)} bytes; url_max_bytes allows {max_bytes}")
    return body, kind


def _timeout(options: Mapping[str, Any], most: float) -> float:
    value = options.get("timeout", most)
    if value is None:
        return most
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Refused("timeout", "`timeout` must be seconds above 0")
    return min(most, float(value))


def _expect(value: object) -> Sequence[int]:
    statuses = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(status) is not int or not 200 <= status <= 599 for status in statuses):
        raise Refused("expect", "`expect` must be a status from 200 to 599, or a list of them")
    return tuple(statuses) or range(200, 300)


# --- URLs ---------------------------------------------------------------------------------------------


def parse(url: object) -> Target:
    """Parse a URL. Raises `Refused`: it is not a plain http or https URL; the text names the rule and the mend."""
    text = _plain_text(url)
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise Refused("url-shape", "a URL begins with http:// or https:// and a host")
    scheme = shape["scheme"].lower()
    if scheme not in PORTS:
        raise Refused("scheme", f"only http and https are called, not {scheme[:20]!r}")
    host, port = _host_and_port(shape["authority"])
    host, address = _read_host(host)
    rest = shape["rest"]
    if "#" in rest:
        raise Refused("fragment", "a fragment is never sent: leave out the # and what follows, or write %23")
    if _BAD_PATH.search(rest):
        raise Refused("path", 'percent-encode % and the characters "<>^`{|} in the path and in the query')
    return Target(scheme, host, address, port or PORTS[scheme], rest if rest.startswith("/") else f"/{rest}")


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
    port = found["port"]
    if found["colon"] and (not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535):
        raise Refused("port", f"a port is a number from 1 to 65535, not {port[:10]!r}")
    return found["host"], int(port) if port else None


def _read_host(host: str) -> tuple[str, Address | None]:
    if host.startswith("["):
        return _read_address(IPv6Address, host[1:-1], "what is in brackets is not an IPv6 address")
    name = host.lower()
    if name.endswith("."):
        raise Refused("trailing-dot", "write the host without its last dot")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        why = "an IPv4 address is written as four decimal numbers without leading zeros"
        return _read_address(IPv4Address, name, why)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        why = "a host is a name of letters, digits and hyphens, with dots between labels of 1 to 63 characters"
        raise Refused("host", why)
    return name, None


def _read_address(kind: type[IPv4Address | IPv6Address], text: str, why: str) -> tuple[str, Address]:
    try:
        address = kind(text)
    except AddressValueError:
        raise Refused("odd-address", why) from None
    return str(address), address
