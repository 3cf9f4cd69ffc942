"""Processes that SIGSTOP holds, for faults that may overlap: one goes on when the last fault that holds it is over.

A pidfd of each is kept, so that SIGCONT reaches that process or nobody, even if it was killed and its pid reused. A
process of its own (see `jobpool_torture.stops_process`) has them too, and continues all if this one is killed. A
stopped process cannot see that its owner is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jobpool_torture import processes

PROGRAM = Path(__file__).with_name("stops_process.py")
END_LIMIT_S = 10.0
"""Seconds for what was let go to end by itself, once the process that had stopped it is gone."""

TELL_LIMIT_S = 5.0
"""Seconds for the keeper to take what it is told."""


@dataclass(slots=True)
class _Held:
    pidfd: int
    faults: set[int] = field(default_factory=set)


class _Keeper:
    """The process that outlives this one. Started when first told of something, and anew when it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def tell(self, pidfd: int, others: Iterable[int]) -> None:
        """Announce that this process is about to be stopped; `others` are. Raises OSError: there is no process to be
        had.
        """
        try:
            self._send([pidfd])
        except OSError:
            self.close()
            self._start()
            self._send([*others, pidfd])

    def _send(self, pidfds: Iterable[int]) -> None:
        if self._socket is None:
            raise ConnectionError("it does not run")
        for pidfd in pidfds:  # bytes under way are read even if this process ends now
            socket.send_fds(self._socket, [b"."], [pidfd])

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(TELL_LIMIT_S)
        with theirs:
            words = [sys.executable, "-ISs", str(PROGRAM), str(theirs.fileno()), str(END_LIMIT_S)]
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(
                words, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def close(self) -> None:
        """End it at once: it does nothing to what it was told of."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._socket is not None:
            self._socket.close()
        self._process = self._socket = None


class Stops:
    """The stopped processes, and their faults. `close` must be called at the end: it also ends a process."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], _Held] = {}
        self._keeper = _Keeper()

    def stop(self, fault: int, pids: Iterable[int], is_it: Callable[[int], bool]) -> list[int]:
        """Send SIGSTOP to the processes that are alive and still meant; return their pids.

        Args:
            fault: A number; what `go` is told.
            pids: As they were picked.
            is_it: As for `processes.send`.

        Raises:
            OSError: There is no process to be had that lets them go if this one is killed; they were not stopped.
        """
        return [pid for pid in pids if self._stop(fault, pid, is_it)]

    def _stop(self, fault: int, pid: int, is_it: Callable[[int], bool]) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        key = (pid, processes.started_at(pid))
        held = self._held.get(key)
        try:
            if not (processes.is_alive(pid) and is_it(pid)):
                return False
            if held is None:
                self._keeper.tell(pidfd, [other.pidfd for other in self._held.values()])
            if not _send(pidfd, signal.SIGSTOP):
                return False
            if held is None:
                held = self._held[key] = _Held(os.dup(pidfd))
            held.faults.add(fault)
            return True
        finally:
            os.close(pidfd)

    def go(self, fault: int) -> list[int]:
        """End that fault: SIGCONT to processes that no other holds; return the pids that went on."""
        gone_on = []
        for key, held in list(self._held.items()):
            held.faults.discard(fault)
            if not held.faults:
                del self._held[key]
                if _send(held.pidfd, signal.SIGCONT):
                    gone_on.append(key[0])
                os.close(held.pidfd)
        return gone_on

    def go_all(self) -> list[int]:
        """Send SIGCONT to everything; return the pids that went on."""
        return [
            pid for fault in {fault for held in self._held.values() for fault in held.faults} for pid in self.go(fault)
        ]

    def close(self) -> None:
        """Continue all, and end the keeper. Safe to call twice."""
        self.go_all()
        self._keeper.close()


def _send(pidfd: int, number: signal.Signals) -> bool:
    """Return whether the process was there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)
        return True
    return False
