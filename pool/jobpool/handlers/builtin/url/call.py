"""One call from beginning to end, within its limits."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from jobpool.handlers.builtin import Failure
from jobpool.handlers.builtin.url import answer, request
from jobpool.handlers.builtin.url.addresses import Deadline, Lookup, admit, system_lookup
from jobpool.handlers.builtin.url.target import Address
from jobpool.handlers.handler import AnyHandler, Handler

if TYPE_CHECKING:
    import ssl

    from urllib3 import BaseHTTPResponse

    from jobpool.handlers.builtin import Kit
    from jobpool.message.context import JobContext


MAX_HEAD_BYTES = 256 << 10
"""Bytes that the head of an answer may have."""

FRAMING = 2
"""Limit of the size of a chunked body on its way, as a multiple of its content."""


def make(kit: Kit) -> AnyHandler:
    """Return the handler, within the limits of `kit.allowances`. Imports no HTTP client: its first call does."""
    allowed = kit.allowances
    caller = Caller(
        timeout=allowed.url_timeout,
        max_bytes=allowed.url_max_bytes,
        networks=allowed.allowed_url_networks,
        keep=allowed.output_cap // 2,
    )
    return Handler(caller.run, "url", **kit.options.get("url", {}))


class Caller:
    """A maker of calls, one after the other.

    Args:
        timeout: Seconds, > 0, that one call may take in all; a job may ask for less.
        max_bytes: Of a request's and of an answer's body, at most, >= 1.
        networks: CIDR blocks that may be called beside the public addresses.
        keep: Bytes of an answer's body in the result.
        lookup: From names to addresses.
        context: For TLS; None = the system's authorities.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        max_bytes: int = 1 << 20,
        networks: Sequence[str] = (),
        keep: int = 32768,
        lookup: Lookup = system_lookup,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._networks = [ip_network(network) for network in networks]
        self._keep = keep
        self._lookup = lookup
        self._context = context

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
        wanted = request.read(ctx.payload, timeout=self._timeout, max_bytes=self._max_bytes, identifier=ctx.id)
        deadline = Deadline(wanted.timeout)
        try:
            addresses = admit(wanted.target, self._networks, self._lookup, deadline)
        except TimeoutError:
            raise Failure(f"{wanted.target.authority}: no time was left for its lookup") from None
        return self._exchange(wanted, addresses, deadline)

    def _exchange(self, wanted: request.Request, addresses: Sequence[Address], deadline: Deadline) -> dict[str, Any]:
        # Here, because they bring urllib3 and ssl, which a child that never calls a URL should not hold.
        from jobpool.handlers.builtin.url import connection

        if self._context is None and wanted.target.scheme == "https":
            self._context = connection.tls_context()

        def use(response: BaseHTTPResponse) -> dict[str, Any]:
            answer.judge(wanted, response)
            return answer.result(wanted, response, max_bytes=self._max_bytes, keep=self._keep)

        bounds = connection.Bounds(deadline, FRAMING * self._max_bytes + MAX_HEAD_BYTES)
        try:
            return connection.exchange(wanted, addresses, bounds, self._context, use)
        except connection.TooMuch:
            raise answer.too_large(self._max_bytes) from None
