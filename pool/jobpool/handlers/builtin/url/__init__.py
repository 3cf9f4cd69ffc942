"""The built-in handler `url`: call a public URL, and return what it answers.

The order of one call: read the payload (request.py, target.py: pure), look the host's name up once and check every
address that it has (admission.py, addresses.py), connect to one of those addresses (connection.py), judge the answer
(answer.py). What a rule forbids is `Refused` and never tried again; what may go better is a failed attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpool.handlers.handler import AnyHandler, Handler

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit


def make(kit: Kit) -> AnyHandler:
    """The handler, within the limits of `kit.allowances`. Imports no HTTP client: its first call does."""
    from jobpool.handlers.builtin.url.call import Caller

    allowed = kit.allowances
    caller = Caller(
        timeout=allowed.url_timeout,
        max_bytes=allowed.url_max_bytes,
        networks=allowed.allowed_url_networks,
        keep=allowed.output_cap // 2,
    )
    return Handler(caller.run, "url", **kit.options.get("url", {}))
