"""From a job's payload to a request that is ready to be sent. Pure.

Payload: `{"method": "POST", "url": "https://…", "options": {…}}`. No payload can weaken the rules: options about TLS
are ignored and named in the result; headers that belong to the connection are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from jobpool.handlers.builtin.url.target import MAX_URL_CHARS, Refused, Target, parse

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
WITHOUT_BODY = frozenset({"GET", "HEAD"})
NOT_REPEATABLE = frozenset({"POST", "PATCH"})
OPTIONS = frozenset({"body", "expect", "form", "headers", "json", "query", "timeout"})

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


@dataclass(frozen=True, slots=True)
class Request:
    """One call, ready to be made.

    Attributes:
        method: One of `METHODS`.
        target: Where it goes; its path holds the query of `options` too.
        headers: As they are sent, but for `Host` and the framing.
        body: None = there is none.
        timeout: Seconds that the whole call may take, > 0.
        expect: The statuses that are success; () = 200 to 299.
        ignored: Options that were left out of account.
    """

    method: str
    target: Target
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float = 30.0
    expect: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()

    def expects(self, status: int) -> bool:
        """Return whether this status is success."""
        return status in self.expect if self.expect else 200 <= status < 300


def read(payload: object, *, timeout: float, max_bytes: int, identifier: str) -> Request:
    """Return the request that a payload means.

    Args:
        payload: Of the job.
        timeout: Seconds: the default of a call, and the most that one may ask for.
        max_bytes: Of the body, at most.
        identifier: Of the job: sent as `Idempotency-Key` with methods that must not be repeated blindly.

    Raises:
        Refused: It is not a request, or breaks a rule.
    """
    fields = _object(payload, "payload", {"method", "url", "options"})
    method = _method(fields.get("method"))
    options = _object({} if fields.get("options") is None else fields["options"], "options", None)
    ignored = tuple(sorted(name for name in options if name.lower() in TLS_OPTIONS))
    _check_names(options, ignored)
    target = _with_query(parse(fields.get("url")), options.get("query"))
    headers = _headers(options.get("headers"))
    body, kind = _body(method, options, max_bytes)
    if kind:
        _default(headers, "Content-Type", kind)
    if method in NOT_REPEATABLE:
        _default(headers, "Idempotency-Key", quote(identifier, safe="._:@/+=~-"))
    _default(headers, "User-Agent", "jobpool")
    limit = min(timeout, _timeout(options.get("timeout"), timeout))
    return Request(method, target, headers, body, limit, _expect(options.get("expect")), ignored)


def _object(value: object, what: str, known: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refused("payload", f"the {what} must be an object, not {type(value).__name__}")
    unknown = sorted(set(value) - known) if known else []
    if unknown:
        raise Refused("payload", f"the {what} has no field {str(unknown[0])[:40]!r}: it has method, url and options")
    return value


def _method(value: object) -> str:
    # ASCII before it is put into capitals, which makes an I of a dotless i.
    method = value.upper() if isinstance(value, str) and value.isascii() else ""
    if method not in METHODS:
        raise Refused("method", f"the method must be one of {', '.join(METHODS)}")
    return method


def _check_names(options: Mapping[str, Any], ignored: tuple[str, ...]) -> None:
    for name in options:
        if name not in OPTIONS and name not in ignored:
            why = NEVER.get(name.lower()) or f"known are {', '.join(sorted(OPTIONS))}"
            raise Refused("option", f"{name[:40]!r} is no option: {why}")


def _with_query(target: Target, query: object) -> Target:
    if query is None:
        return target
    text = urlencode(_pairs(query, "query"))
    if len(target.path) + len(text) >= MAX_URL_CHARS:
        raise Refused("url-length", f"the path and the query have more than {MAX_URL_CHARS} characters")
    path = f"{target.path}{'&' if '?' in target.path else '?'}{text}" if text else target.path
    return Target(target.scheme, target.host, target.address, target.port, path)


def _pairs(value: object, what: str) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        raise Refused(what, f"`{what}` must be an object of texts, numbers, or lists of them")
    lists = ((str(name), item if isinstance(item, list) else [item]) for name, item in value.items())
    return [(name, _word(item, what)) for name, items in lists for item in items]


def _word(value: object, what: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise Refused(what, f"`{what}` must be an object of texts, numbers, or lists of them")
    return str(value)


def _headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Refused("headers", "`headers` must be an object of texts")
    headers: dict[str, str] = {}
    seen: set[str] = set()
    for name, text in value.items():
        _check_header(str(name), text, seen)
        headers[str(name)] = text
    if len(headers) > MAX_HEADERS or sum(len(n) + len(v) + 4 for n, v in headers.items()) > MAX_HEADER_BYTES:
        raise Refused("headers", f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all are sent")
    return headers


def _check_header(name: str, text: object, seen: set[str]) -> None:
    shown = repr(name[:40])
    if _TOKEN.fullmatch(name) is None:
        raise Refused("header-name", f"{shown} is no name of a header")
    if not isinstance(text, str) or _VALUE.fullmatch(text) is None:
        raise Refused("header-value", f"the value of {shown} must be a text of printable ASCII on one line")
    if name.lower() in RESERVED:
        raise Refused("reserved-header", f"{shown} belongs to the connection: leave it out")
    if name.lower() in seen:
        raise Refused("header-name", f"{shown} is there twice")
    seen.add(name.lower())


def _default(headers: dict[str, str], name: str, value: str) -> None:
    if name.lower() not in {known.lower() for known in headers}:
        headers[name] = value


def _body(method: str, options: Mapping[str, Any], max_bytes: int) -> tuple[bytes | None, str]:
    """Return the body, and the content type that goes with it."""
    given = [name for name in ("json", "form", "body") if name in options]
    if not given:
        return None, ""
    if len(given) > 1:
        raise Refused("body", f"give one of `json`, `form` and `body`, not {' and '.join(given)}")
    if method in WITHOUT_BODY:
        raise Refused("body", f"{method} carries no body: leave `{given[0]}` out")
    body, kind = _encoded(given[0], options[given[0]])
    if len(body) > max_bytes:
        raise Refused("request-size", f"the body has {len(body)} bytes; url_max_bytes allows {max_bytes}")
    return body, kind


def _encoded(name: str, value: object) -> tuple[bytes, str]:
    if name == "json":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"
    if name == "form":
        return urlencode(_pairs(value, "form")).encode(), "application/x-www-form-urlencoded"
    if not isinstance(value, str):
        raise Refused("body", "`body` must be a text; other values go out with `json`")
    return value.encode(), "text/plain; charset=utf-8"


def _timeout(value: object, most: float) -> float:
    if value is None:
        return most
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Refused("timeout", "`timeout` must be seconds above 0")
    return float(value)


def _expect(value: object) -> tuple[int, ...]:
    statuses = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(status) is not int or not 200 <= status <= 599 for status in statuses):
        raise Refused("expect", "`expect` must be a status from 200 to 599, or a list of them")
    return tuple(statuses)
