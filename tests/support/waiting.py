"""Wait for a condition, with a limit: never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], limit: float = 10.0, what: str = "") -> T:
    """What `condition` returned as soon as that is true; `AssertionError` after `limit` seconds."""
    give_up = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= give_up:
            raise AssertionError(f"not within {limit} s: {what or getattr(condition, '__name__', condition)}")
        time.sleep(0.002)
