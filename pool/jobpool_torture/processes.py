"""Processes as /proc shows them, and signals that can hit nobody else: looked at through a pidfd first, then sent.

A pid is a number that is used again: between the look that picks a process and the signal, it may have become a
stranger's. A pidfd names the process itself. So the descriptor is opened first, then the process is looked at again,
and the signal goes through the descriptor.

`Stops` holds processes by SIGSTOP, for faults that may overlap: one goes on when the last fault that holds it is over.
A stopped process cannot see that its owner is gone. If this process is killed, the kernel ends the masters (see
`pool_process`). Their end kills their children, and continues their fork servers, which sweep what is left. A program
asks the kernel for that before it sets its title, so one without a title is not stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from jobpool.ipc import linux

SOCKET = "socket"  # of any family but the next: connections to servers
UNIX_SOCKET = "unix socket"  # of the Unix family: a master's sockets to its children and fork servers
MARK = "TORTURE_MARK"  # variable of a fleet's own processes: the pid of its runner, and a unique word
FORK_SERVER = "fork server"  # words in the command line of a pool's fork server
STARTING = " -m jobpool"  # words in that of a pool's program which has no title yet


def is_alive(pid: int) -> bool:
    """Return whether it runs, or is stopped."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """Return the letter of proc(5): "R" runs, "S" sleeps, "T" is stopped, "Z" a zombie, …; "" = it is not there."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    """Return its parent's pid; 0 = there is no such process, or it has none here."""
    return int(_stat(pid)[1])


def started_at(pid: int) -> int:
    """Return when it was started, in clock ticks since boot: tells it from a later one of the same pid; 0 = gone."""
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/PID/stat, from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["", *["0"] * 49]


def children_of(pid: int) -> list[int]:
    """Return its children that are alive, the youngest last; [] if it is not there, or 0."""
    with contextlib.suppress(OSError):
        return sorted(filter(is_alive, linux.direct_children(pid) if pid else ()), key=started_at)
    return []


def fork_servers_of(master: int) -> list[int]:
    """Return the fork servers of a pool, the newest generation last; [] if it is not there."""
    return [pid for pid in children_of(master) if FORK_SERVER in command(pid)]


def pool_children_of(master: int) -> list[int]:
    return [child for server in fork_servers_of(master) for child in children_of(server)]


def tree_of(pid: int) -> list[int]:
    """Return it and all its descendants that are alive, parents before children."""
    return [pid, *(below for child in children_of(pid) for below in tree_of(child))]


def command(pid: int) -> str:
    """Return its command line, or title, with single blanks; "" = it cannot be read, or is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def works_for_us(pid: int, directory: Path) -> bool:
    """Return whether it works in the directory or below it, is no older than this process, and has no terminal.

    Fork servers, and all below them, are in sessions without one. A shell in that directory has one, and is spared.
    Raises OSError: it is gone, or another user's.
    """
    is_ours = started_at(pid) >= started_at(os.getpid()) and int(_stat(pid)[4]) == 0
    return is_ours and Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(directory)


def is_marked(pid: int, mark: str, directory: Path | None = None) -> bool:
    """Return whether it was started with `mark` (NAME=value) in its environment. Raises OSError, as `works_for_us`.

    A program with a clean environment is told by its working `directory`.
    """
    has_mark = mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return has_mark or bool(directory and works_for_us(pid, directory))


def marked(mark: str, directory: Path | None = None) -> dict[int, str]:
    """Return pid → command of all living processes but the caller that `is_marked`, of any session and parent."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if is_alive(pid) and is_marked(pid, mark, directory):
                found[pid] = command(pid)
    found.pop(os.getpid(), None)
    return found


def descriptors(pid: int) -> Counter[str]:
    """Return how many descriptors it has open, by kind: "socket", "unix socket", "pipe", "anon_inode:…", or a path.

    Raises OSError: it is gone, or another user's.
    """
    targets = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    rows = Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()[1:]  # later: so none is unknown
    unix = {fields[6] for fields in map(str.split, rows) if len(fields) > 6}  # their inodes
    return Counter(_kind(target, unix) for target in targets)


def _kind(target: str, unix: Collection[str]) -> str:
    name, is_numbered, rest = target.partition(":[")
    if not is_numbered or name not in (SOCKET, "pipe"):
        return target
    return UNIX_SOCKET if name == SOCKET and rest.rstrip("]") in unix else name


def send(pid: int, number: signal.Signals, is_it: Callable[[int], bool]) -> bool:
    """Send a signal to a process that was picked before, if it is still there; return whether it was sent.

    `is_it` is asked with the pid once a pidfd is open: whether that is the process; an OSError means no. The signal
    goes to the process that was opened; if the number becomes another's after that, the signal hits nobody.
    """
    with _opened(pid, is_it) as descriptor:
        return descriptor is not None and _send(descriptor, number)


@contextlib.contextmanager
def _opened(pid: int, is_it: Callable[[int], bool]) -> Iterator[int | None]:
    """Yield a pidfd of the process; None: it is gone, or not the one that was meant."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        is_meant = False
        with contextlib.suppress(OSError):
            is_meant = is_alive(pid) and is_it(pid)
        yield descriptor if is_meant else None
    finally:
        os.close(descriptor)


class Stops:
    """The stopped processes, and their faults."""

    def __init__(self) -> None:
        self._held: dict[int, dict[tuple[int, int], int]] = {}  # fault → pid and start of each process → its pidfd

    def stop(self, fault: int, pids: Iterable[int], is_it: Callable[[int], bool]) -> list[int]:
        """Send SIGSTOP to the processes that have a title and are still meant (see `send`); return their pids."""
        stopped, held = [], self._held.setdefault(fault, {})
        for pid in pids:
            with _opened(pid, is_it) as pidfd:
                key = (pid, started_at(pid))
                if pidfd is not None and STARTING not in command(pid) and _send(pidfd, signal.SIGSTOP):
                    stopped.append(pid)
                    if key not in held:
                        held[key] = os.dup(pidfd)
        return stopped

    def go(self, fault: int) -> list[int]:
        """End that fault: SIGCONT to processes that no other holds; return the pids that went on."""
        gone_on = []
        for key, pidfd in self._held.pop(fault, {}).items():
            is_held = any(key in held for held in self._held.values())
            if not is_held and _send(pidfd, signal.SIGCONT):
                gone_on.append(key[0])
            os.close(pidfd)
        return gone_on

    def go_all(self) -> None:
        for fault in list(self._held):
            self.go(fault)


def _send(pidfd: int, number: signal.Signals) -> bool:
    """Return whether the process was there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)
        return True
    return False
