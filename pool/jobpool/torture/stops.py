"""Processes that SIGSTOP holds, for faults that may overlap: one goes on when the last fault that holds it is over.

A pidfd of each is kept, so that SIGCONT reaches that process or nobody: whatever killed it meanwhile, and whoever has
its pid now.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jobpool.torture import processes


@dataclass(slots=True)
class _Held:
    pidfd: int
    faults: set[int] = field(default_factory=set)


class Stops:
    """What is stopped, and by which faults. `go_all` must be called at the end: it also closes descriptors."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], _Held] = {}

    def stop(self, fault: int, pids: Iterable[int], is_it: Callable[[int], bool]) -> list[int]:
        """SIGSTOP to those that are alive and still what was meant; which those are.

        Args:
            fault: A number; what `go` is told.
            pids: As they were picked.
            is_it: As for `processes.send`.
        """
        return [pid for pid in pids if self._stop(fault, pid, is_it)]

    def _stop(self, fault: int, pid: int, is_it: Callable[[int], bool]) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        key = (pid, processes.started_at(pid))
        held = self._held.get(key)
        stopped = processes.is_alive(pid) and is_it(pid) and _send(pidfd, signal.SIGSTOP)
        if stopped and held is None:
            self._held[key] = _Held(pidfd, {fault})
            return True
        os.close(pidfd)
        if stopped and held is not None:
            held.faults.add(fault)
        return stopped

    def go(self, fault: int) -> list[int]:
        """That fault is over: SIGCONT to what no other holds; the pids that went on."""
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
        """SIGCONT to everything; the pids that went on."""
        return [
            pid for fault in {fault for held in self._held.values() for fault in held.faults} for pid in self.go(fault)
        ]


def _send(pidfd: int, number: signal.Signals) -> bool:
    """Whether the process was there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)
        return True
    return False
