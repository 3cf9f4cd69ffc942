"""Wait for a condition, with a limit: never sleep and hope."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from jobpool.errors import BackendUnavailable

T = TypeVar("T")

EVERY = 0.002
"""Seconds between two looks at first."""

LONGEST = 0.02
"""The same, after a long look or a long wait: who waits must not take the processor from what is waited for."""

SHARE = 0.05
"""Of the time waited so far: how late a look may be."""


def wait_until(condition: Callable[[], T | None], limit: float = 30.0, what: str = "") -> T:
    """What `condition` returned as soon as that is true; `AssertionError` if it is false after `limit` seconds.

    Only a look that began after them says so: what came true in a pause of the machine, behind a look, still counts.
    """
    begun = time.monotonic()
    while True:
        looked_at = time.monotonic()
        value = condition()
        if value:
            return value
        if looked_at >= begun + limit:
            raise AssertionError(f"not within {limit} s: {what or getattr(condition, '__name__', condition)}")
        now = time.monotonic()
        time.sleep(min(max(EVERY, now - looked_at, SHARE * (now - begun)), LONGEST))


def patiently(call: Callable[[], T]) -> T:
    """What a pool does: the same call again, until the broker answers."""
    answers: list[T] = []

    def answered() -> bool:
        with suppress(BackendUnavailable):
            answers.append(call())
        return bool(answers)

    wait_until(answered, what="the broker answers")
    return answers[0]


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that others write to, without one that is half written; a missing file has none.

    A reader may see the first part of a single write.
    """
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def wait_ended(process: subprocess.Popen[Any], limit: float) -> int:
    """Its exit status, as soon as it has ended: `Popen.wait` with a limit looks but every 50 ms.

    Raises `subprocess.TimeoutExpired` after `limit` seconds.
    """
    if process.returncode is None:
        descriptor = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(limit * 1000)
        finally:
            os.close(descriptor)
    return process.wait(0)
