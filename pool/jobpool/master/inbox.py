"""How threads and signals reach the loop: both leave events, and wake it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import deque
from types import FrameType
from typing import Any

from jobpool.ipc.linux import ACCIDENTAL_SIGNALS, ends_with_terminal, terminal_is_closed
from jobpool.master.events import Event, SignalCame

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU)
FD_SETSIZE = 1024  # descriptors from here on are too large for `select.select`


class Inbox:
    """Many writers, one reader. `put` never blocks and is cheap while the loop is awake: one wake-up a batch."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        self._woken = False

    def put(self, event: Event) -> None:
        self._events.append(event)
        if not self._woken:
            self._woken = True
            os.eventfd_write(self.fd, 1)

    def take(self) -> list[Event]:
        """Return all events so far. Only the loop calls it."""
        # In this order, or a wake-up is lost: read the eventfd, lower the flag, take. An event that comes before the
        # flag is down is taken now; one that comes after it wakes again, for nothing at worst.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._woken = False
        return [self._events.popleft() for _ in range(len(self._events))]

    def wait(self, seconds: float) -> None:
        """Sleep for so long, or until there is an event."""
        if self.fd < FD_SETSIZE:
            select.select((self.fd,), (), (), seconds)  # of all that wait for a descriptor, it alone knows microseconds
        else:  # the program around the pool has many files open
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            poll.poll(1000.0 * seconds)

    def close(self) -> None:
        """Close it. A thread that comes later wakes nobody: the descriptor's number may be another file's by then."""
        self._woken = True
        os.close(self.fd)


class Signals:
    """The signals to the master as events: those that the pool knows; others that come by accident are ignored.

    A handler notes nothing and decides nothing: the interpreter writes the number to a pipe. A pipe holds 65,536
    unread numbers, a socket pair about 270. Further ones are lost.

    No disposition is SIG_IGN while the pool runs: a program that it starts would inherit that, but has no handlers.
    Elsewhere than on the main thread, where Python has no signals, nothing is installed.

    A handler before ours that knows of a signal in vain (`came`) has it passed on.

    `last`: the process ends with the pool, so signals do nothing any more after it, QUIT excepted. A second TERM while
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
        ends_with_terminal()  # looked for while it is there
        self._fd_before = signal.set_wakeup_fd(self._there, warn_on_full_buffer=False)
        accidental = {n for n in ACCIDENTAL_SIGNALS if signal.getsignal(n) is signal.SIG_DFL}
        for number in accidental.union(HANDLED):
            before = self._before[number] = signal.signal(number, _ignore)
            if number in getattr(before, "came", ()):
                os.write(self._there, bytes((number,)))

    def read(self) -> list[Event]:
        try:
            numbers = os.read(self._here, 65536)
        except BlockingIOError:
            return []
        closed = signal.SIGHUP in numbers and terminal_is_closed()
        return [SignalCame(number, closed) for number in numbers if number in HANDLED]

    def close(self) -> None:
        for number, handler in self._before.items():  # None: set by C code, which Python cannot put back
            ignored = self._last and number != signal.SIGQUIT
            signal.signal(number, signal.SIG_IGN if ignored else handler or signal.SIG_DFL)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        os.close(self._here)
        os.close(self._there)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Python must have a handler, or the default action ends the process; the wake-up pipe does the rest."""
