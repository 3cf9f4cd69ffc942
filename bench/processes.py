"""Facts of /proc about processes: their names, CPU time and memory."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

NANO = 1e9
KIB = 1024
MIB = 2**20


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all live threads of a process, exact to the microsecond; 0.0 when it has gone."""
    return sum(thread_seconds(pid).values())


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU time of each thread, by its kernel id."""
    found: dict[int, float] = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found[int(task)] = int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / NANO
    except OSError:
        pass  # it has ended meanwhile
    return found


def descendants(pid: int) -> list[int]:
    """Return the process's children, their children, and so on."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *descendants(child)]
    except OSError:
        pass  # it has ended meanwhile
    return found


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    return [pid, *descendants(pid)]


def reaped_seconds(pid: int) -> float:
    """Return the CPU time of the process's ended and awaited children, theirs included; to 10 ms."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def family_seconds(pid: int) -> float:
    """Return the CPU time of a process and of all below it, ended ones included."""
    return sum(cpu_seconds(member) + reaped_seconds(member) for member in family(pid))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `own`: pages that nobody else maps (USS); `share`: those, and its part of the shared ones (PSS)."""

    own: int
    share: int


def memory(pid: int) -> Memory:
    """Return the memory of one process, from smaps_rollup."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        sizes[name] = int(size) * KIB
    return Memory(sizes["Private_Clean:"] + sizes["Private_Dirty:"], sizes["Pss:"])


def total_cpu(pids: Iterable[int]) -> float:
    """Return the CPU seconds of several processes."""
    return sum(map(cpu_seconds, pids))


def death_of(pid: int, limit: float = 60.0) -> Callable[[], float]:
    """Return a function that waits for the end of the process and says when it was: infinite after `limit` seconds.
    Call this while the process lives.
    """
    pidfd = os.pidfd_open(pid)

    def wait() -> float:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = poll.poll(limit * 1000)
        now = time.monotonic()
        os.close(pidfd)
        return now if ended else math.inf

    return wait


def total_share(pids: Iterable[int]) -> int:
    """Return the bytes that several processes share among themselves and with others."""
    return sum(memory(pid).share for pid in pids)


class Others:
    """The load of everybody else on the machine: other programs, and other guests of the same host.

    Exact once all processes that were started have been waited for.
    """

    def __init__(self) -> None:
        self._busy, self._total = _machine()
        self._own = _own()

    def share(self) -> float:
        """Return the part of all cores' time since the start that went to others: 0 to 1."""
        busy, total = _machine()
        others = busy - self._busy - (_own() - self._own)
        return min(1.0, max(0.0, others / max(0.01, total - self._total)))


def _machine() -> tuple[float, float]:
    """Return busy seconds of all cores since the boot, stolen ones included, and all seconds."""
    with open("/proc/stat") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    per_second = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / per_second, sum(ticks) / per_second


def _own() -> float:
    import resource  # not at the import: handlers import this module, and that costs each attempt a look at all limits

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
