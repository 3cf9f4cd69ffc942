"""The built-in handler `url`: call a public URL, and return its answer, within limits.

The order of one call: read the payload (request.py: pure). Look the host's name up once and check all its addresses
(addresses.py). Connect to one of those addresses (connection.py). Judge the answer, and read it.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from jobpool.errors import Retry
from jobpool.handlers.builtin import Failure, Kit
from jobpool.handlers.builtin.url.addresses import Bounds, Lookup, TooMuch, admit, system_lookup
from jobpool.handlers.builtin.url.request import Refused, Request, parse, read

if TYPE_CHECKING:
    import ssl

    from urllib3 import BaseHTTPResponse

    from jobpool.message.context import JobContext


MAX_HEAD_BYTES = 256 << 10  # bytes that the head of an answer may have
KEPT_HEADERS = (
    *("allow", "content-language", "content-type", "date", "etag", "last-modified", "link", "location"),
    *("request-id", "retry-after", "x-request-id"),
)
"""Of the response, in the result. No cookie, no token."""

MAX_HEADER_CHARS = 1000
MAX_WAIT_S = 3600.0  # seconds that a server can put a job off by
CHARSETS = re.compile(
    r"utf-?8|utf-?(?:16|32)|utf-(?:16|32)-?[bl]e|us-ascii|ascii|latin-?1|iso-8859-(?:[1-9]|1[013456])|windows-125[0-8]"
    r"|koi8-[ru]|shift_jis|euc-jp|euc-kr|gb2312|gbk|gb18030|big5",
    re.IGNORECASE,
)
"""In which a body may be. Python knows more, some of which take a square of the body's size in time, or no errors."""

_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)


class Later(Retry):
    """The server said when to come again: the next attempt is then. Burns an attempt."""


def make(kit: Kit) -> Callable[[JobContext], dict[str, Any]]:
    """Return the handler. Imports no HTTP client: its first call does."""
    allowed = kit.allowances
    networks, keep = allowed.allowed_url_networks, allowed.output_cap // 2
    return Caller(timeout=allowed.url_timeout, max_bytes=allowed.url_max_bytes, networks=networks, keep=keep).run


@dataclass(slots=True)
class Caller:
    """A maker of calls, one after the other."""

    timeout: float = 30.0  # seconds, > 0, that one call may take in all; a job may ask for less
    max_bytes: int = 1 << 20  # of a request's and of an answer's body, at most, >= 1, packed and unpacked
    networks: Sequence[str] = ()  # CIDR blocks that may be called beside the public addresses
    keep: int = 32768  # bytes of an answer's body in the result
    lookup: Lookup = system_lookup  # from names to addresses
    context: ssl.SSLContext | None = None  # for TLS; None = the system's authorities

    def run(self, ctx: JobContext) -> dict[str, Any]:
        """Call what the job's payload says.

        Returns:
            `status`, `headers` (a few), `body` (text, its beginning), `bytes` (of the body); and where it applies
            `truncated`, `ignored`.

        Raises:
            Refused: A rule forbids it, now and later.
            Failure: It may go better next time.
            Later: The server said when to come again.

        Blocks for the call's timeout at most.
        """
        request = read(ctx.payload, timeout=self.timeout, max_bytes=self.max_bytes, identifier=ctx.id)
        bounds = Bounds(request.timeout, 2 * self.max_bytes + MAX_HEAD_BYTES)  # chunks have heads of their own
        try:
            addresses = admit(request.target, [ip_network(block) for block in self.networks], self.lookup, bounds)
        except TimeoutError:
            raise Failure(f"{request.target.authority}: no time was left for its lookup") from None
        # Here, because it brings urllib3 and ssl, which a child that never calls a URL should not hold.
        from jobpool.handlers.builtin.url import connection

        if self.context is None and request.target.scheme == "https":
            self.context = connection.tls_context()
        try:
            return connection.exchange(
                request, addresses, bounds, self.context, lambda response: self._result(request, response)
            )
        except TooMuch:
            raise self._too_large() from None

    def _result(self, request: Request, response: BaseHTTPResponse) -> dict[str, Any]:
        _judge(request, response)
        body = self._body(response)
        headers = response.headers
        # The charset of the content type, if it is one of `CHARSETS`.
        named = _CHARSET.search(headers.get("Content-Type", "")[:MAX_HEADER_CHARS])
        charset = named[1] if named and CHARSETS.fullmatch(named[1]) else "utf-8"
        answer: dict[str, Any] = {
            "status": response.status,
            "headers": {name: str(headers[name])[:MAX_HEADER_CHARS] for name in KEPT_HEADERS if name in headers},
            "body": body[: self.keep].decode(charset, "replace"),
            "bytes": len(body),
        }
        if len(body) > self.keep:
            answer["truncated"] = True
        if request.ignored:
            answer["ignored"] = [f"{name}: TLS is always verified" for name in request.ignored]
        return answer

    def _body(self, response: BaseHTTPResponse) -> bytes:
        """Return the whole body, unpacked. No more than the limit, and one piece, is ever held."""
        if (response.length_remaining or 0) > self.max_bytes:
            raise self._too_large()
        # gzip and deflate, though neither was asked for: some servers send what they have.
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise Failure(f"the answer has the content encoding {encoding[:40]!r}, which was not asked for")
        unpacker = None if encoding in ("", "identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
        body, size = bytearray(), 0
        while piece := _piece(response):
            size += len(piece)
            if unpacker:
                try:
                    piece = unpacker.decompress(piece, self.max_bytes + 1 - len(body))  # a bomb, no further than that
                except zlib.error:
                    raise Failure("the answer's content encoding is broken") from None
                if unpacker.unused_data:
                    raise Failure("there is something behind the end of the answer's packed body")
            body += piece
            if max(size, len(body)) > self.max_bytes:
                raise self._too_large()
        if unpacker and size and not unpacker.eof:
            raise Failure("the answer's packed body has no end")
        return bytes(body)

    def _too_large(self) -> Refused:
        why = f"the answer has more than the {self.max_bytes} bytes that url_max_bytes allows"
        return Refused("response-size", why)


def wait_asked(value: str | None, now: float) -> float | None:
    """Return the seconds, 0 to `MAX_WAIT_S`, that a `Retry-After` header asks for; None = none that are known.

    `value`: seconds, or a date. `now`: Unix time.
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


def _judge(request: Request, response: BaseHTTPResponse) -> None:
    """Return if the status is one that the caller wants; of other answers the beginning of the body is read."""
    status = response.status
    if status in request.expect:
        return
    text = f"{request.method} {request.target.authority} answered {status}"
    if 300 <= status < 400:
        raise Refused("redirect", f"{text}, which is not followed: it points to {_where(response)}")
    told = f"{text}{_snippet(response)}"
    after = wait_asked(response.headers.get("Retry-After"), time.time()) if status in (429, 503) else None
    if after is not None:
        raise Later(after, told)
    if status >= 500 or status in (408, 425, 429):  # not now
        raise Failure(told)
    raise Refused("status", told)


def _piece(response: BaseHTTPResponse) -> bytes:
    try:
        return response.read(65536, decode_content=False)
    except ValueError:  # http.client's reading of a chunk of negative size
        raise Failure("the framing of the answer's body is broken") from None


def _snippet(response: BaseHTTPResponse) -> str:
    """Return how the body begins, if it can be had. Nothing that goes wrong here may hide the status."""
    if response.headers.get("Content-Encoding"):
        return ""
    try:
        text = response.read(300, decode_content=False).decode("utf-8", "replace")
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
