"""Signals to the master: a handler notes nothing and decides nothing, the interpreter writes the number to a pipe.

A pipe, and not a socket pair: it holds 65,536 numbers that nobody has read yet, a socket some 270, and what does not
fit is lost. Of different signals that are pending at once, the kernel delivers the one with the smaller number first.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from jobpool.ipc.linux import ACCIDENTAL_SIGNALS
from jobpool.master.events import Event, SignalCame

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU)


class Signals:
    """Routes the signals that the pool knows into events, ignores those that come by accident, and puts all back.

    No disposition is SIG_IGN while the pool runs: a program that it starts would inherit that, but has no handlers.

    Elsewhere than on the main thread, where Python has no signals, nothing is installed.

    Args:
        last: The process ends with the pool: signals do nothing any more after it, QUIT excepted. A second TERM while
            the broker is being closed would otherwise make a death by TERM of a clean stop.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self._here, self._there = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._fd_before = -1

    def fileno(self) -> int:
        return self._here

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._fd_before = signal.set_wakeup_fd(self._there, warn_on_full_buffer=False)
        accidental = {n for n in ACCIDENTAL_SIGNALS if signal.getsignal(n) is signal.SIG_DFL}
        for number in accidental.union(HANDLED):
            self._before[number] = signal.signal(number, _ignore)

    def read(self) -> list[Event]:
        """The signals that came, in order."""
        try:
            numbers = os.read(self._here, 65536)
        except BlockingIOError:
            return []
        return [SignalCame(number) for number in numbers if number in HANDLED]

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._last and number != signal.SIGQUIT else handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        os.close(self._here)
        os.close(self._there)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Python must have a handler, or the default action ends the process; the wake-up pipe does the rest."""
