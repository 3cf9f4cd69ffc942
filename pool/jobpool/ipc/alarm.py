"""The hard timeout, stage 1: SIGALRM raises `HardTimeout` in user code.

A Python signal handler runs between two bytecodes of the main thread, anywhere. So five rules say where it may raise:

* Only inside `call`, in a frame below `call`'s own. If Python has interrupted `call` itself, user code has not begun or
  has returned. So no `HardTimeout` ever escapes from `call`, however the alarm races the return.
* Only at or after the deadline of the attempt that is running: an alarm of the attempt before changes nothing.
* After the first time it is quiet until `deadline + kill_grace / 2`, so that `finally` blocks can work. From then on it
  raises every 100 ms: `except BaseException`, `__del__`, weakref, gc and ctypes callbacks swallow it.
* The master sends one when a person cancels the job, and again every 100 ms. Then `Cancelled` is raised instead, and
  the deadline is that moment.
* Before every attempt the handler, the timer and the signal mask are set anew: the one before may have changed them.
  User code's own handler of SIGALRM ends with `call`: a timer that it left running must not raise in our code.

C code that does not return to the interpreter is out of its reach; the master's kill (stages 2 and 3) is not.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import signal
from collections.abc import Callable, Iterator
from time import monotonic
from traceback import StackSummary
from types import CodeType, FrameType
from typing import Any, TypeVar

from jobpool.errors import Cancelled, HardTimeout

ALARM_EVERY_S = 0.1  # between two alarms, once the first has fired
STACK_DEPTH = 100  # innermost frames that are kept of the stack that the alarm met

# `signal` wraps this to turn numbers into enums; the wrapping costs 2 µs a call, several times on every job's way.
_raw: Any = importlib.import_module("_signal")
raw_signal: Callable[[int, Any], Any] = _raw.signal
raw_getsignal: Callable[[int], Any] = _raw.getsignal  # dispositions come as numbers
_sigmask: Callable[[int, Any], Any] = _raw.pthread_sigmask
_setitimer = signal.setitimer
_SIGALRM = int(signal.SIGALRM)
_ITIMER_REAL = int(signal.ITIMER_REAL)
_SIG_SETMASK = int(signal.SIG_SETMASK)

A = TypeVar("A")
R = TypeVar("R")


class Alarm:
    """The alarm of a process, used on its main thread only: `arm`, then `call` as often as needed, then `disarm`.

    `kill_grace`: seconds (>= 0) between the deadline and the master's kill; half of it belongs to `finally` blocks.
    """

    def __init__(self, kill_grace: float = 1.0) -> None:
        self._quiet = kill_grace / 2
        self._deadline = math.inf
        self._due = math.inf
        self._inside = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - {signal.SIGALRM}
        self._handler = self._on_alarm  # one bound method: arming allocates nothing
        self.is_cancelled: Callable[[], bool] = bool  # asked by an alarm before its time; of the running attempt
        self.cancelled = False  # True: it has raised `Cancelled` since `arm`, not `HardTimeout`
        self.fired = False  # True: it has raised since `arm`, and the attempt has timed out, whatever it returns
        self.stack: StackSummary | None = None  # where it raised first, innermost frame last
        self.on_fire: Callable[[], object] | None = None  # called before each raise; never blocks or raises

    def arm(self, seconds: float) -> None:
        """Start the clock: `seconds` > 0 until the first alarm, 0 for never. `ValueError` off the main thread."""
        self.fired = self.cancelled = False
        self.stack = None
        raw_signal(_SIGALRM, self._handler)
        # A masked alarm of the attempt before is delivered here, while nothing is inside `call`.
        _sigmask(_SIG_SETMASK, self._mask)
        self._deadline = self._due = monotonic() + seconds if seconds > 0 else math.inf
        _setitimer(_ITIMER_REAL, seconds if seconds > 0 else 0.0, ALARM_EVERY_S)

    def disarm(self) -> None:
        """Stop the clock. `fired`, `stack` and `expired` keep their answers until the next `arm`."""
        _setitimer(_ITIMER_REAL, 0.0)

    def expired(self, now: float) -> bool:
        """Return whether the alarm has raised by `now` (CLOCK_MONOTONIC), or should have: handlers may stop it."""
        return self.fired or now >= self._deadline

    def call(self, function: Callable[[A], R], argument: A) -> tuple[R | None, BaseException | None]:
        """Return what `function(argument)` returned, or what it raised, `HardTimeout` included. Raise nothing.

        `function` must not be a builtin, which has no frame of its own. The alarm would take it for this method and
        leave it alone. `_on_alarm` relies on this method running no other Python code than `function`.
        """
        try:
            self._inside = True
            value = function(argument)
            if raw_getsignal(_SIGALRM) is not self._handler:
                raw_signal(_SIGALRM, self._handler)
            self._inside = False
        except BaseException as raised:  # noqa: BLE001 - SystemExit and HardTimeout are answers too
            if raw_getsignal(_SIGALRM) is not self._handler:
                raw_signal(_SIGALRM, self._handler)
            self._inside = False
            return None, raised
        return value, None

    def _on_alarm(self, _signum: int, frame: FrameType | None) -> None:
        if not self._inside or frame is None or frame.f_code is _CALL:
            return
        now = monotonic()
        if not self.fired and self.is_cancelled():
            self.cancelled, self._deadline, self._due = True, now, now
        if now < self._due:
            return
        if not self.fired:
            self.fired = True
            self.stack = _stack(frame)
        self._due = self._deadline + self._quiet
        if self.on_fire is not None:
            self.on_fire()
        raise Cancelled if self.cancelled else HardTimeout


_CALL: CodeType = Alarm.call.__code__


def is_in_call(frame: FrameType | None) -> bool:
    """Return whether this frame is below `Alarm.call`: there a signal handler may raise, and `call` answers for it."""
    while frame is not None:
        frame = frame.f_back
        if frame is not None and frame.f_code is _CALL:
            return True
    return False


@contextlib.contextmanager
def borrowed() -> Iterator[None]:
    """Lend SIGALRM and its timer by a program that may use them itself, and give them back as they were.

    For attempts in somebody else's process (`QueueWorker`), perhaps itself under an alarm. A timer that was running
    goes on with what was left of it, at least 1 ms.
    """
    handler = signal.getsignal(signal.SIGALRM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    since = monotonic()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        # None: set by C code, which Python cannot put back.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - since), 0.001), interval)


def _stack(frame: FrameType | None) -> StackSummary:
    """Return the stack from just below `Alarm.call` down to `frame`. Reads no source file: that can wait."""
    frames: list[tuple[FrameType, int]] = []
    while frame is not None and frame.f_code is not _CALL and len(frames) < STACK_DEPTH:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    frames.reverse()
    return StackSummary.extract(iter(frames), lookup_lines=False)
