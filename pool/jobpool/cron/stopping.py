"""Where a scheduler waits: until a moment, or until a signal or another thread ends it, whichever comes first."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from jobpool.handlers import event_loop as loops
from jobpool.ipc.alarm import is_in_call

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """A `Sleeper` of the real world. As a context on the main thread, SIGTERM and SIGINT end it.

    The first signal lets an inline job finish. The second raises `KeyboardInterrupt` in it, so that its attempt fails
    now. If that is resisted, the third ends the process, with status 128 + the signal's number.

    A pipe, and not an event: a signal handler must not take a lock that its own thread is just about to take.
    """

    def __init__(self) -> None:
        self._here, self._there = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._is_set = False
        self._signals = 0

    def stop(self) -> None:
        """End it soon. Safe in signal handlers, and from other threads."""
        self._is_set = True
        os.write(self._there, b"!")

    def stopped(self) -> bool:
        return self._is_set

    def sleep(self, seconds: float) -> None:
        if not self._is_set:
            select.select([self._here], [], [], max(0.0, seconds))

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._here)
        os.close(self._there)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.stop()
        if self._signals > 2:
            os._exit(128 + number)
        if self._signals == 2 and is_in_call(frame):
            loops.stop()
            raise KeyboardInterrupt("ended by a second signal")


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the effect of SIGTERM and SIGINT after the block, whatever its code has set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # set by C code, which Python cannot put back
                signal.signal(number, handler)
