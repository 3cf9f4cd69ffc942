"""Calls of the built-in handler `url` within a test's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jobpool.handlers.builtin.url.call import Caller
from support.built_in import context
from support.webserver import WebServer


def call(caller: Caller, url: str, method: str = "GET", **options: Any) -> dict[str, Any]:
    """What a job returns that makes this call."""
    return caller.run(context({"method": method, "url": url, "options": options}))


@contextlib.contextmanager
def two_servers() -> Iterator[tuple[WebServer, WebServer]]:
    """One on 127.0.0.2, for the world outside, and one on the same port of 127.0.0.1, where nobody may come."""
    for _ in range(20):
        with WebServer("127.0.0.2") as outside:
            try:
                inside = WebServer("127.0.0.1", outside.port)
            except OSError:  # somebody else has this port there
                continue
            with inside:
                yield outside, inside
                return
    raise AssertionError("no port was free on both addresses")
