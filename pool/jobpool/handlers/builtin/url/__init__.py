"""The built-in handler `url`: call a public URL, and return its answer.

The order of one call: read the payload (request.py, target.py: pure). Look the host's name up once and check all its
addresses (admission.py, addresses.py). Connect to one of those addresses (connection.py). Judge the answer (answer.py).
A forbidden call is `Refused` and never tried again; an error that may pass is a failed attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpool.handlers.handler import AnyHandler, Handler

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit


def make(kit: Kit) -> AnyHandler:
    """Return the handler, within the limits of `kit.allowances`. Imports no HTTP client: its first call does."""
    from jobpool.handlers.builtin.url.call import Caller

    allowed = kit.allowances
    caller = Caller(
        timeout=allowed.url_timeout,
        max_bytes=allowed.url_max_bytes,
        networks=allowed.allowed_url_networks,
        keep=allowed.output_cap // 2,
    )
    return Handler(caller.run, "url", **kit.options.get("url", {}))
