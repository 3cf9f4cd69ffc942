"""From a response to the result of a job: its limits, its text, and what each status means."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from jobpool.errors import Retry
from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url.request import Request
from jobpool.handlers.builtin.url.target import Refused, parse

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

READ_BYTES = 65536
SNIPPET_BYTES = 300
"""Bytes of an unwanted answer that are shown."""

KEPT_HEADERS = (
    *("allow", "content-language", "content-type", "date", "etag", "last-modified", "link", "location"),
    *("request-id", "retry-after", "x-request-id"),
)
"""Of the response, in the result. No cookie, no token."""

MAX_HEADER_CHARS = 1000
MAX_WAIT_S = 3600.0
"""Seconds that a server can put a job off by."""

CHARSETS = re.compile(
    r"utf-?8|utf-?(?:16|32)(?:-?[bl]e)?|us-ascii|ascii|latin-?1|iso-8859-(?:[1-9]|1[013456])|windows-125[0-8]"
    r"|koi8-[ru]|shift_jis|euc-jp|euc-kr|gb2312|gbk|gb18030|big5",
    re.IGNORECASE,
)
"""In which a body may be. Python knows more, some of which take a square of the body's size in time, or no errors."""

_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)

WORTH_ANOTHER = frozenset({408, 425, 429})
"""Statuses below 500 that say: not now."""


class Later(Retry):
    """The server said when to come again: the next attempt is then. Burns an attempt."""


def wait_asked(value: str | None, now: float) -> float | None:
    """Return the seconds, 0 to `MAX_WAIT_S`, that a `Retry-After` header asks for; None = none that are known.

    Args:
        value: Seconds, or a date.
        now: Unix time.
    """
    if value is None or len(value) > MAX_HEADER_CHARS:
        return None
    if re.fullmatch(r"[0-9]{1,12}", value.strip()):
        after = float(value)
    else:
        try:
            after = parsedate_to_datetime(value).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return min(MAX_WAIT_S, max(0.0, after))


def judge(request: Request, response: BaseHTTPResponse) -> None:
    """Return if the status is one that the caller wants.

    Raises:
        Refused: It is a redirect, or an error that the same request will meet again.
        Later: The server said when to come again.
        Failure: It may go better next time.

    Reads the beginning of the body of an unwanted answer.
    """
    status = response.status
    if request.expects(status):
        return
    text = f"{request.method} {request.target.authority} answered {status}"
    if 300 <= status < 400:
        raise Refused("redirect", f"{text}, which is not followed: it points to {_where(response)}")
    told = f"{text}{_snippet(response)}"
    after = wait_asked(response.headers.get("Retry-After"), time.time()) if status in (429, 503) else None
    if after is not None:
        raise Later(after, told)
    if status >= 500 or status in WORTH_ANOTHER:
        raise Failure(told)
    raise Refused("status", told)


def result(request: Request, response: BaseHTTPResponse, *, max_bytes: int, keep: int) -> dict[str, Any]:
    """Return the result of the job.

    Args:
        request: The request.
        response: Its body is read here.
        max_bytes: Of the body, at most, packed and unpacked.
        keep: Bytes of the body that are kept in the result.

    Raises:
        Refused: The body is larger.
        Failure: It cannot be unpacked.
    """
    body = _read_body(response, max_bytes)
    answer: dict[str, Any] = {
        "status": response.status,
        "headers": _kept(response.headers),
        "body": body[:keep].decode(_charset(response.headers), "replace"),
        "bytes": len(body),
    }
    if len(body) > keep:
        answer["truncated"] = True
    if request.ignored:
        answer["ignored"] = [f"{name}: TLS is always verified" for name in request.ignored]
    return answer


def _read_body(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    """Return the whole body, unpacked. No more than the limit, and one piece, is ever held."""
    if (response.length_remaining or 0) > max_bytes:
        raise too_large(max_bytes)
    unpack = _unpacker(response.headers.get("Content-Encoding", ""))
    body, read = bytearray(), 0
    while piece := _read(response):
        read += len(piece)
        body += unpack.feed(piece, max_bytes + 1 - len(body)) if unpack else piece
        if max(read, len(body)) > max_bytes:
            raise too_large(max_bytes)
    if unpack and read:
        unpack.end()
    return bytes(body)


def _read(response: BaseHTTPResponse) -> bytes:
    try:
        return response.read(READ_BYTES, decode_content=False)
    except ValueError:  # http.client's reading of a chunk of negative size
        raise Failure("the framing of the answer's body is broken") from None


def too_large(max_bytes: int) -> Refused:
    """Return the error for a body of more than `max_bytes`."""
    return Refused("response-size", f"the answer has more than the {max_bytes} bytes that url_max_bytes allows")


class _Packed:
    """gzip and deflate, though neither was asked for: some servers send what they have."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(self, piece: bytes, room: int) -> bytes:
        """Return at most `room` bytes: a bomb is never unpacked further than that."""
        try:
            unpacked = self._inner.decompress(piece, room)
        except zlib.error:
            raise Failure("the answer's content encoding is broken") from None
        if self._inner.unused_data:
            raise Failure("there is something behind the end of the answer's packed body")
        return unpacked

    def end(self) -> None:
        if not self._inner.eof:
            raise Failure("the answer's packed body has no end")


def _unpacker(encoding: str) -> _Packed | None:
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return None
    if kind in ("gzip", "x-gzip", "deflate"):
        return _Packed()
    raise Failure(f"the answer has the content encoding {kind[:40]!r}, which was not asked for")


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: str(headers[name])[:MAX_HEADER_CHARS] for name in KEPT_HEADERS if name in headers}


def _charset(headers: Mapping[str, str]) -> str:
    """Return the charset of the content type, if it is one of `CHARSETS`; else UTF-8."""
    named = _CHARSET.search(headers.get("Content-Type", "")[:MAX_HEADER_CHARS])
    return named[1].lower() if named and CHARSETS.fullmatch(named[1]) else "utf-8"


def _snippet(response: BaseHTTPResponse) -> str:
    """Return how the body begins, when it can be had. The status is the news: nothing that goes wrong here may
    hide it.
    """
    if response.headers.get("Content-Encoding"):
        return ""
    try:
        text = response.read(SNIPPET_BYTES, decode_content=False).decode("utf-8", "replace")
    except Exception:  # noqa: BLE001 - see above
        return ""
    shown = "".join(mark if mark.isprintable() else " " for mark in text).strip()
    return f": {shown}" if shown else ""


def _where(response: BaseHTTPResponse) -> str:
    """Return the host that a redirect points to: not the rest of it, which may hold a token."""
    try:
        return parse(response.headers.get("Location")).authority
    except Refused:
        return "a place on the same host, or that cannot be called"
