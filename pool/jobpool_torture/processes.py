"""Processes as /proc shows them, and signals that can hit nobody else: looked at through a pidfd first, then sent.

A pid is a number that is used again: between the look that picks a process and the signal, it may have become a
stranger's. A pidfd names the process itself. So the descriptor is opened first, then it is asked whether the process
is still what it was picked for, and the signal goes through the descriptor.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from jobpool_torture.descriptors import SOCKET, UNIX_SOCKET, unix_sockets

FORK_SERVER = "fork server"
"""Words in the command line of a pool's fork server."""


def is_alive(pid: int) -> bool:
    """Return whether it runs, or is stopped: neither collected nor a zombie."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """Return the letter of proc(5): "R" runs, "S" sleeps, "T" is stopped, "Z" a zombie, …; "" = there is no such
    process.
    """
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    """Return its parent's pid; 0 = there is no such process, or it has none here."""
    return int(_stat(pid)[1])


def started_at(pid: int) -> int:
    """Return when it was started, in clock ticks since boot: tells it from a later one of the same pid; 0 = none is
    there.
    """
    return int(_stat(pid)[19])


def terminal_of(pid: int) -> int:
    """Return the number of its controlling terminal; 0 = it has none, or there is no such process."""
    return int(_stat(pid)[4])


def _stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat, from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["", *["0"] * 49]


def children_of(pid: int) -> list[int]:
    """Return its children that are alive, of all its threads, each thread's youngest last."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return [child for child in found if is_alive(child)]


def fork_servers_of(master: int) -> list[int]:
    """Return the fork servers of a pool, the newest generation last."""
    return [pid for pid in children_of(master) if FORK_SERVER in command(pid)]


def pool_children_of(master: int) -> list[int]:
    """Return the children of all fork servers of a pool."""
    return [child for server in fork_servers_of(master) for child in children_of(server)]


def tree_of(pid: int) -> list[int]:
    """Return it and all its descendants that are alive, parents before children."""
    return [pid, *(below for child in children_of(pid) for below in tree_of(child))]


def command(pid: int) -> str:
    """Return its command line, or title, with single blanks; "" = it cannot be read, or is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def lives_in(pid: int, directory: Path) -> bool:
    """Return whether its working directory is this one, or below it. Raises OSError: it is gone, or another user's."""
    return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(directory)


def works_for_us(pid: int, directory: Path) -> bool:
    """Return whether it `lives_in` the directory, is no older than this process, and has no terminal.

    Fork servers, and all below them, are in sessions without one. A shell in that directory has one, and is spared.

    Raises OSError: it is gone, or another user's.
    """
    is_ours = started_at(pid) >= started_at(os.getpid()) and terminal_of(pid) == 0
    return is_ours and lives_in(pid, directory)


def has_mark(pid: int, mark: str) -> bool:
    """Return whether it was started with `mark` (NAME=value) in its environment. Raises OSError: it is gone, or not
    ours.
    """
    return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def marked(mark: str, directory: Path | None = None) -> dict[int, str]:
    """Return pid → command of all living processes that were started with `mark` (NAME=value) in their environment.

    Their session and parent do not matter. A program that was started with a clean environment is found by its working
    directory (see `works_for_us`). The caller itself is left out.

    Args:
        mark: A unique entry.
        directory: Processes that work in it or below it count too.
    """
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if is_alive(pid) and (has_mark(pid, mark) or (directory and works_for_us(pid, directory))):
                found[pid] = command(pid)
    found.pop(os.getpid(), None)
    return found


def descriptors(pid: int) -> Counter[str]:
    """Return how many descriptors it has open, by kind: "socket", "unix socket", "pipe", "anon_inode:[eventpoll]", or a
    path.

    Raises:
        OSError: It is gone, or another user's.
    """
    targets = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    unix = unix_sockets(Path(f"/proc/{pid}/net/unix").read_text(errors="replace"))  # later: so no socket is unknown
    return Counter(_kind(target, unix) for target in targets)


def _kind(target: str, unix: Collection[str]) -> str:
    name, is_numbered, rest = target.partition(":[")
    if not is_numbered or name not in (SOCKET, "pipe"):
        return target
    return UNIX_SOCKET if name == SOCKET and rest.rstrip("]") in unix else name


def send(pid: int, number: signal.Signals, is_it: Callable[[int], bool]) -> bool:
    """Send a signal to a process if it still is the one that was meant.

    Args:
        pid: As it was picked, some time ago.
        number: SIGKILL, SIGSTOP, …
        is_it: Asked with the pid once a pidfd is open: whether that is the process. The signal goes to the process that
            was opened; if the number becomes another's after that, the signal hits nobody.

    Returns:
        True if it was sent to a living process. Does not block.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it is gone; or no process has this number
        return False
    try:
        if not (is_alive(pid) and is_it(pid)):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True
