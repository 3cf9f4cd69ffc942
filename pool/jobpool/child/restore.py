"""Restore, after every attempt, the state of the process that a handler may have changed and that is cheap to restore.

The rule: as right before the first job, hence as the app's import left it. Changes that a library may well make when a
job first imports it stay: entries of `sys.path`, environment variables, a higher limit. The alarm and the signal mask
are the alarm's business, the standard streams the capture's. Locale, time zone, imported modules and their content stay
as the handler left them.

It costs 1.5 microseconds: most checks compare identical objects. Costly checks (`_spoilt`) are made after an attempt
that failed, and else ten times a second at most. If something cannot be restored, it is logged, and the child is
replaced.
"""

from __future__ import annotations

import decimal
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from jobpool.ipc import linux
from jobpool.ipc.alarm import raw_getsignal, raw_signal
from jobpool.ipc.packets import close_all
from jobpool.ipc.process_options import ASKS_STACK

COSTLY_LOOK_EVERY_S = 0.1  # seconds between two costly checks while nothing fails
RIGHTS = "user or rights"
LIMITS = "resource limits"
SCHEDULING = "scheduling policy"

_TIMERS = {int(signal.SIGVTALRM): int(signal.ITIMER_VIRTUAL), int(signal.SIGPROF): int(signal.ITIMER_PROF)}
_KEPT = (*(int(signal.Signals[f"SIG{name}"]) for name in ("TERM", "INT", "HUP", "QUIT", "CHLD", "PIPE")), *_TIMERS)
_ALL = tuple(map(int, signal.valid_signals()))  # the others only at a costly look


class ProcessState:
    """The state of this process when this was made, which `restore` brings back. Keeps four descriptors open.

    `trace_fd`: where the fault handler writes the stacks of crashes.
    """

    def __init__(self, trace_fd: int) -> None:
        self._trace_fd = trace_fd
        self._folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._streams = [(os.dup(fd), os.fstat(fd)) for fd in range(3)]
        self._working_directory = _working_directory()
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._is_root = os.geteuid() == 0  # else it can change neither
        for number in _TIMERS:
            if raw_getsignal(number) == signal.SIG_DFL:
                raw_signal(number, _stop_timer)
        self._handlers = list(map(raw_getsignal, _KEPT))
        self._all_handlers = list(map(raw_getsignal, _ALL))
        self._limits = linux.limits()
        self._limits_text = linux.limits_text()
        self._rights = linux.rights()
        self._scheduling = linux.scheduling()
        self._interpreter = _Interpreter()
        self._look_at = 0.0

    def restore(self, now: float, failed: bool) -> str:
        """Bring the state back; return what could not be, "" = nothing. Raises `OSError` if descriptors were closed.

        `now`: CLOCK_MONOTONIC seconds at the attempt's end.
        """
        if list(map(raw_getsignal, _KEPT)) != self._handlers:
            _put_handlers(_KEPT, self._handlers)
        self._interpreter.restore()
        if not faulthandler.is_enabled():
            self._tell_crashes()
        os.umask(self._umask)
        os.set_blocking(self._streams[1][0], True)  # of standard error too, and of what subprocesses get: one open pipe
        if not self._is_root or _working_directory() != self._working_directory:
            os.fchdir(self._folder)
            if self._is_root and _working_directory() != self._working_directory:
                return "root directory"
        if self._is_root and os.geteuid() != 0:
            return RIGHTS
        modules = sys.modules
        if ("resource" in modules or "psutil" in modules) and not linux.restore_limits(self._limits):
            return LIMITS
        if not failed and now < self._look_at:
            return ""
        self._look_at = now + COSTLY_LOOK_EVERY_S
        return self._spoilt()

    def let_go(self) -> None:
        """Close its descriptors, at the end: if the handler has left none, a large answer needs one."""
        close_all([self._folder, *(fd for fd, _ in self._streams)])

    def _spoilt(self) -> str:
        """Restore or name changes that only a costly look shows: 36 microseconds, 160 in a cold cache."""
        if list(map(raw_getsignal, _ALL)) != self._all_handlers:
            self._restore_handlers()
        signal.set_wakeup_fd(-1)
        self._tell_crashes()  # a handler may have named a file of its own
        self._interpreter.restore_rare()
        for fd, (kept, file) in enumerate(self._streams):
            if not os.path.samestat(os.fstat(fd), file):
                if not os.path.samestat(os.fstat(kept), file):
                    raise OSError("a descriptor that the child keeps is another file's now")
                os.dup2(kept, fd)
        if linux.rights() != self._rights:
            return RIGHTS
        if linux.limits_text() != self._limits_text:
            if not linux.restore_limits(self._limits):
                return LIMITS
            self._limits_text = linux.limits_text()
        if (now := linux.scheduling()) != self._scheduling:
            if now == linux.scheduling(os.getppid()):  # a change of the whole group's, such as a cgroup's processors
                self._scheduling = now
            elif self._scheduling is not None and not linux.restore_scheduling(self._scheduling):
                return SCHEDULING
        return ""

    def _restore_handlers(self) -> None:
        """Put the handlers of all signals back, and install the fault handler anew, whose signals may be among them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {ASKS_STACK})  # it would end the process meanwhile
        faulthandler.disable()
        faulthandler.unregister(ASKS_STACK)
        _put_handlers(_ALL, self._all_handlers)
        faulthandler.register(ASKS_STACK, file=self._trace_fd, all_threads=True, chain=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ASKS_STACK})

    def _tell_crashes(self) -> None:
        faulthandler.enable(file=self._trace_fd, all_threads=True)


def _put_handlers(numbers: Iterable[int], handlers: Iterable[Any]) -> None:
    for number, handler in zip(numbers, handlers, strict=True):
        if raw_getsignal(number) is not handler and handler is not None:
            raw_signal(number, handler)


def _stop_timer(number: int, _: object) -> None:
    """Disarm a timer that an earlier job left behind; to look for it after each attempt costs two system calls."""
    signal.setitimer(_TIMERS[number], 0.0)


class _NotedVariables(dict[bytes, bytes]):
    """The environment as Python keeps it, with a note that it was changed: to compare it each time is not cheap."""

    __slots__ = ("changed",)

    def __init__(self, variables: dict[bytes, bytes]) -> None:
        super().__init__(variables)
        self.changed = False

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().__setitem__(name, value)

    def __delitem__(self, name: bytes) -> None:
        self.changed = True
        super().__delitem__(name)


class _Interpreter:
    """Settings that Python keeps for the whole process."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._rare_settings = [(get, get(), put) for get, put in _RARE]
        self._environ = os.environ
        self._noted = _NotedVariables(os.environ._data)  # type: ignore[attr-defined]
        os.environ._data = os.environb._data = self._noted  # type: ignore[attr-defined]
        self._variables = dict(self._noted)
        self._path = list(sys.path)
        self._finders = {name: list(getattr(sys, name)) for name in ("meta_path", "path_hooks")}
        self._filters = list(warnings.filters)

    def restore_rare(self) -> None:
        for get, before, put in self._rare_settings:
            if get() != before:
                put(before)
        if lost := [name for name, before in self._finders.items() if getattr(sys, name, None) != before]:
            for name in lost:
                self._finders[name] = _with_the_lost(name, self._finders[name])
            importlib.invalidate_caches()  # what was asked for without them is noted as not there

    def restore(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if _settings() != self._settings:
            self._restore_settings()
        if self._noted.changed or os.environ is not self._environ:
            self._restore_environment()
        if getattr(sys, "path", None) != self._path:
            self._path = _with_the_lost("path", self._path)
        if warnings.filters != self._filters:
            self._restore_filters()

    def _restore_settings(self) -> None:
        for number, (now, put) in enumerate(zip(_settings(), _PUT, strict=True)):
            before = self._settings[number]
            if put is sys.setrecursionlimit and now > before:
                self._settings[number] = now
            elif now != before:
                put(before)

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003 - a handler has put another object in its place
        for name, value in self._variables.items():
            now = self._noted.get(name)
            # A framework that reads its settings late sets the time zone by them, and means it for all that follows.
            if now is None or (now != value and name != b"TZ"):
                os.environb[name] = value
        self._variables = dict(self._noted)
        self._noted.changed = False

    def _restore_filters(self) -> None:
        """Take out filters that make other jobs fail; the rest may be those of a library that was imported late."""
        self._filters = [found for found in warnings.filters if found in self._filters or found[0] != "error"]
        warnings.filters[:] = self._filters  # type: ignore[index]
        with warnings.catch_warnings():
            pass  # at its end Python looks at the filters anew


def _with_the_lost(name: str, before: list[Any]) -> list[Any]:
    """Put lost entries of this list of `sys` back, after those that were added; return a copy of what it holds then."""
    now = getattr(sys, name, None) or []
    added = [entry for entry in now if entry not in before]
    if len(now) - len(added) < len(before):
        now = [*added, *before]
        setattr(sys, name, now)
    return list(now)


def _settings() -> list[Any]:
    """Return the settings in the order of `_PUT`."""
    decimals = decimal.getcontext()
    return [
        sys.getrecursionlimit(),
        sys.gettrace(),
        sys.getprofile(),
        socket.getdefaulttimeout(),
        gc.isenabled(),
        logging.root.manager.disable,
        decimals.prec,
        decimals.rounding,
    ]


_PUT: tuple[Callable[[Any], object], ...] = (
    sys.setrecursionlimit,
    sys.settrace,
    sys.setprofile,
    socket.setdefaulttimeout,
    lambda on: gc.enable() if on else gc.disable(),
    logging.disable,
    lambda prec: setattr(decimal.getcontext(), "prec", prec),
    lambda rounding: setattr(decimal.getcontext(), "rounding", rounding),
)


def _decimals() -> dict[str, Any]:
    """Return the settings of decimal arithmetic that are changed more rarely than `prec` and `rounding`."""
    context = decimal.getcontext()
    found = {name: getattr(context, name) for name in ("Emin", "Emax", "clamp", "capitals")}
    return {**found, "traps": context.traps.copy()}


def _put_decimals(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        setattr(decimal.getcontext(), name, value)


def _tools() -> set[int]:
    """Return the numbers of the tools that watch the interpreter: from Python 3.12 on, `cProfile` is one."""
    return {tool for tool in range(6) if sys.version_info >= (3, 12) and sys.monitoring.get_tool(tool)}


def _free_tools(before: set[int]) -> None:
    for tool in _tools() - before:
        sys.monitoring.set_events(tool, 0)  # type: ignore[attr-defined, unused-ignore]
        sys.monitoring.free_tool_id(tool)  # type: ignore[attr-defined, unused-ignore]


_RARE: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (_decimals, _put_decimals),
    (_tools, _free_tools),
    (gc.get_debug, gc.set_debug),
    (threading.gettrace, threading.settrace),
    (threading.getprofile, threading.setprofile),
    (gc.get_threshold, lambda threshold: gc.set_threshold(*threshold)),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    (threading.stack_size, threading.stack_size),
    (lambda: list(getattr(sys, "argv", None) or ()), lambda words: setattr(sys, "argv", list(words))),
    (lambda: getattr(sys, "stdin", None), partial(setattr, sys, "stdin")),
    (lambda: getattr(sys, "tracebacklimit", None), partial(setattr, sys, "tracebacklimit")),
)
"""Settings that jobs hardly ever change, or take away: how each is asked for, and put back."""


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
