"""The reasons not to use a child for another job, looked at after every attempt.

Each look is a system call or less; a costlier one is made only when the cheap one says so.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterable
from time import monotonic

from jobpool.handlers.ending import Attempt
from jobpool.ipc import linux
from jobpool.ipc.process_options import ChildBoot, ChildOptions
from jobpool.message.outcome import ResultKind

DESCRIPTORS = "descriptors"
FAILURE = "a failure that may have spoilt it"
_INTERRUPTED = (ResultKind.TIMEOUT, ResultKind.CANCELLED)
_FAILURES = (ResultKind.FAILED, ResultKind.UNRECOVERABLE, ResultKind.RETRY)

JOBS_SPREAD = 0.1  # fraction by which `max_jobs` is drawn apart: children leave one by one
MAX_LEAKED = 64  # descriptors, or daemon threads, above those of its start with which a child stays
LAST_WORDS_S = 0.05  # that threads which an attempt left behind get to end by themselves
DAEMONS_LOOK_EVERY_S = 3.0  # seconds between two looks if daemon threads that stayed compute: one may begin with that
MAX_DAEMONS_SHARE = 0.4  # of a CPU that they may want: beside a handler that computes, one alone gets half of the time
_NAMES_CHARS = 100  # of threads, in a line of the log
SWEEP_LIMIT_S = 0.5  # for which killing left-over processes may hold the result up; the fork server sweeps again

_SOL_SOCKET = socket.SOL_SOCKET
_SO_COOKIE = 57  # of <asm-generic/socket.h>: a number that no other socket of this boot has


class SocketsLost(Exception):
    """The handler has closed a socket to the master, or put another one in its place: nothing must be sent any more."""


class RecyclePolicy:
    """The looks for such reasons. They compare the child with its state when this was made, before its first job."""

    def __init__(self, boot: ChildBoot) -> None:
        self._options = boot.options
        self._left = _lifetime(boot.options, boot.child)
        self._threads = _thread._count()
        self._daemon_threads = dict[threading.Thread, float]()  # that stayed → the CPU time that each wanted
        self._looked_at = 0.0  # at that
        self._first_free = _lowest_free()
        self._of_app = boot.inheritance.of_app
        sockets = boot.work, boot.channel
        self._sockets = [(sock.getsockopt, sock.getsockopt(_SOL_SOCKET, _SO_COOKIE, 8)) for sock in sockets]
        self._daemons = linux.direct_children() if linux.has_children() else set()

    def reason(self, attempt: Attempt) -> str:
        """Return why the child should go now; "" = it may stay. Kills processes that the attempt has left behind.

        Raises `SocketsLost` if there is no way to the master any more.
        Blocks for `LAST_WORDS_S` and `SWEEP_LIMIT_S` at most, and not at all when nothing was left behind.
        """
        self.check_sockets()
        self._left -= 1
        # Swept in any case: a left-over process must not go on because the child leaves for another reason.
        swept = self._sweep(attempt) if linux.has_children() else ""
        if attempt.kind in _INTERRUPTED:
            return attempt.kind.name.lower()
        if attempt.left_open:
            return "a transaction was left open"
        if attempt.suspect and self._options.recycle_on_failure == "suspect":
            return FAILURE
        if self._options.recycle_on_failure == "always" and attempt.kind in _FAILURES:
            return FAILURE
        if swept:
            return swept
        changed = _thread._count() != self._threads + attempt.hook_threads
        if (changed or self._daemon_threads) and (left := self._left_threads(attempt)):
            return left
        if self._leaks_descriptors():
            return DESCRIPTORS
        if self._options.max_rss and self._outgrown(self._options.max_rss):
            return "memory"
        return "jobs" if self._left == 0 else ""

    def _sweep(self, attempt: Attempt) -> str:
        """Return "processes" if some had to be killed, or one is a resource tracker, which the fork server kills later.

        Processes that had ended by themselves are only collected.
        """
        if attempt.daemons and attempt.kind not in _INTERRUPTED:
            self._daemons |= linux.direct_children()
            return ""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not linux.has_children():
            return ""
        if linux.sweep_strays(self._daemons, SWEEP_LIMIT_S, linux.resource_trackers):
            return "processes"
        return "" if linux.direct_children() <= self._daemons else "processes: Python's resource tracker"

    def _left_threads(self, attempt: Attempt) -> str:
        """Return "threads" and the names of those that must not stay; "" = none.

        Daemon threads may, up to `MAX_LEAKED` in all: exporters, progress bars and connection pools start such. One
        that computes would make the next jobs late, and any other thread has not ended its work.
        """
        if self._daemon_threads and self._are_busy(monotonic()):
            return _named(self._daemon_threads)
        allowed = self._threads + attempt.hook_threads
        surplus = _thread._count() - allowed
        if surplus > 0 and not attempt.daemons:
            left = _living_threads(allowed)
            surplus = _thread._count() - allowed
            if guilty := [thread for thread in left if not thread.daemon]:
                return _named(guilty)
            stayed = sum(thread.is_alive() for thread in self._daemon_threads)
            if surplus > len(left) or stayed + len(left) > MAX_LEAKED:
                return _named(left)
            self._looked_at = self._looked_at if self._daemon_threads else monotonic()
            self._daemon_threads |= {thread: linux.cpu_wanted(thread.native_id) for thread in left}
        self._threads += surplus
        return ""

    def _are_busy(self, now: float) -> bool:
        """Return whether the daemon threads that stayed have computed for much of the time since the last look."""
        if (elapsed := now - self._looked_at) < DAEMONS_LOOK_EVERY_S:
            return False
        wanted = {t: linux.cpu_wanted(t.native_id) for t in self._daemon_threads if t.is_alive()}
        computed = sum(seconds - self._daemon_threads[thread] for thread, seconds in wanted.items())
        self._daemon_threads, self._looked_at = wanted, now
        return computed > MAX_DAEMONS_SHARE * elapsed

    def check_sockets(self) -> None:
        """Recognise our sockets by their cookies, in case their numbers are others' now: no result must go astray."""
        try:
            for ask, cookie in self._sockets:
                if ask(_SOL_SOCKET, _SO_COOKIE, 8) != cookie:
                    raise SocketsLost
        except OSError:  # closed, or a file now
            raise SocketsLost from None

    def _leaks_descriptors(self) -> bool:
        """Tell by the lowest free one if descriptors leak or were closed under our feet: two system calls."""
        try:
            lowest = _lowest_free()
            if lowest < self._first_free and lowest in self._of_app:
                self._first_free = lowest  # the handler has read an image, say, and closed its file
            return not self._first_free <= lowest <= self._first_free + MAX_LEAKED
        except OSError:  # none is left, or the standard streams are closed
            return True

    def _outgrown(self, mark: int) -> bool:
        import resource  # its being imported costs two microseconds an attempt: see `restore`

        # Resident memory is read only when the peak, which is cheaper to ask for, was above the mark.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > mark and linux.resident_memory() > mark


def _living_threads(allowed: int) -> list[threading.Thread]:
    """Return the newest threads, if more than `allowed` are alive after those that are not daemons had a moment."""
    give_up = monotonic() + LAST_WORDS_S
    main, dummy = threading.main_thread(), threading._DummyThread  # one of C code, which `_count` leaves out
    found = [thread for thread in threading.enumerate() if thread is not main and type(thread) is not dummy]
    for thread in found:
        if not thread.daemon and _thread._count() > allowed:
            thread.join(max(0.0, give_up - monotonic()))
    first = min(0, allowed - _thread._count()) or len(found)
    return [thread for thread in found[first:] if thread.is_alive()]


def _named(threads: Iterable[threading.Thread]) -> str:
    names = ", ".join(thread.name for thread in threads)
    return f"threads: {names[:_NAMES_CHARS]}" if names else "threads"


def _lifetime(options: ChildOptions, child: int) -> int:
    """Return after how many jobs the child leaves, drawn apart so that children do not leave together; 0 = never."""
    if options.max_jobs <= 0:
        return 0
    drawn = random.Random(child).uniform(1 - JOBS_SPREAD, 1 + JOBS_SPREAD)
    return max(1, round(options.max_jobs * drawn))


def _lowest_free() -> int:
    fd = os.dup(1)
    os.close(fd)
    return fd
