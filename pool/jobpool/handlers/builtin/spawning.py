"""Starting a program and reading its output, within a bound, so that nothing of it outlives the call.

It leads a process group of its own. At any end of the call (the program's end, an exception of the alarm, a deadline)
that group is killed. That happens before its leader is collected, so that its number cannot be reused. Processes of the
program in other sessions are orphans then: a pool's child adopts them, and kills them when the attempt is over.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import chain, starmap
from time import monotonic, sleep
from typing import TypeVar

from jobpool.ipc.linux import kill_group, open_fds
from jobpool.message.capped_text import HeadTail

Opened = TypeVar("Opened")

_READ_BYTES = 1 << 16
_DEATH_TIMEOUT_S = 0.3  # seconds to wait for a killed program's death; one that does not die (state D) is left
_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Signals that the program gets with their default action, even if its parent ignores them."""


def run(
    path: str, argv: Sequence[str], environ: Mapping[str, str], cap: int, give_up: float | None
) -> tuple[int | None, str, str]:
    """Start the program at `path`, with nothing on its standard input, and wait for its end. No search, no shell.

    `cap`: bytes that are kept of each stream. `give_up`: CLOCK_MONOTONIC seconds at which it is killed; None = never.
    Raises `OSError`: it cannot be started.

    Returns:
        Its exit status (negative = the signal that killed it; None = unknown). The text printed on its two
        streams: beginning and end, if it was much.
    """
    out, err = HeadTail(cap), HeadTail(cap)
    with _held(FileIO.close, _pipe()) as (out_read, out_write), _held(FileIO.close, _pipe()) as (err_read, err_write):
        pids: list[int] = []
        codes: list[int | None] = []
        try:
            _spawn(pids, path, argv, environ, (out_write.fileno(), err_write.fileno()))
            out_write.close()
            err_write.close()
            with _held(os.close, map(os.pidfd_open, pids)) as (pidfd,):  # readable when the process has ended
                _read({out_read.fileno(): out, err_read.fileno(): err}, pidfd, give_up)
        finally:
            codes.extend(map(_end, pids))
    return codes[0], out.text(), err.text()


def _spawn(
    pids: list[int], path: str, argv: Sequence[str], environ: Mapping[str, str], streams: tuple[int, int]
) -> None:
    actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams, 1)]  # type: ignore[misc]
    # Python's own descriptors are closed by themselves; those of C code, or handed down by a parent, are not.
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in open_fds() if fd > 2 and _inheritable(fd)]  # type: ignore[misc]
    spawn = partial(os.posix_spawn, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=_RESET)
    # All in C: between the start and the list there is no point at which the alarm could raise and the pid be lost.
    pids.extend(map(spawn, [path], [argv], [environ]))


def _inheritable(fd: int) -> bool:
    with suppress(OSError):  # another thread has closed it
        return os.get_inheritable(fd)
    return False


def _read(streams: Mapping[int, HeadTail], pidfd: int, give_up: float | None) -> None:
    """Read until the program has ended, and then what is in its pipes still."""
    poll = select.poll()
    for fd in (pidfd, *streams):
        poll.register(fd, select.POLLIN)
    while True:
        left = None if give_up is None else max(0.0, give_up - monotonic()) * 1000
        ready = [fd for fd, _ in poll.poll(left)]
        if pidfd in ready or not ready:
            break
        for fd in ready:
            if not _take(fd, streams[fd]):
                poll.unregister(fd)
    for fd, kept in streams.items():
        os.set_blocking(fd, False)
        room = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)  # no more: a process left behind may go on writing to the other end
        with suppress(BlockingIOError):
            while room > 0 and (taken := _take(fd, kept)):
                room -= taken


def _take(fd: int, kept: HeadTail) -> int:
    data = os.read(fd, _READ_BYTES)
    kept.write(data)
    return len(data)


def _end(pid: int) -> int | None:
    """Kill the process group, which is there as long as its leader was not collected, and collect the leader."""
    kill_group(pid)
    give_up = monotonic() + _DEATH_TIMEOUT_S
    with suppress(ChildProcessError):  # the app ignores SIGCHLD, or collects every child
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if monotonic() >= give_up:
                return None
            sleep(0.001)
        return os.waitstatus_to_exitcode(ended[1])
    return None


@contextmanager
def _held(close: Callable[[Opened], object], opened: Iterator[Opened]) -> Iterator[list[Opened]]:
    """Yield what the iterator opens, and close it. In C, as in `_spawn`: the alarm must not come between."""
    found: list[Opened] = []
    closing = map(close, found)
    try:
        found.extend(opened)
        yield found
    finally:
        deque(closing, maxlen=0)


def _pipe() -> Iterator[FileIO]:
    """Return the reading and the writing end of a pipe, which is opened when it is iterated over."""
    return starmap(FileIO, zip(chain.from_iterable(starmap(os.pipe, [()])), ("rb", "wb"), strict=False))
