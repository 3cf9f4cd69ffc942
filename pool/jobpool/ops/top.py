"""The content of `jobpool top`, as values: samples of the scoreboards, read from outside.

Nothing here asks a master or a broker, so it works while the master is busy, stopped, or waits for a dead broker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jobpool.ipc.board_layout import ChildState, ChildView, HeaderView, MasterView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.ops.runtime_dir import PoolFile

RATE_SPAN = 5.0  # seconds over which jobs/s is averaged


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One slot, at one moment. Seconds and bytes; None = does not apply."""

    slot: int
    pid: int
    state: str
    job: str
    handler: str
    queue: str
    attempt: int | None
    age: float  # of the attempt; of an idle slot, how long it has been idle
    left: float | None  # until the hard timeout; below 0 it is overdue; None = unlimited or idle
    progress: float  # 0 to 1, as the handler tells it
    progress_text: str
    rss: int
    cpu: float
    done: int
    failed: int
    restarts: int
    torn: bool  # the page was in mid-write; look again
    last_death: str = ""  # how the slot's last child died that was not ended by order
    name: str = ""  # the job's own; "" = it has none


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool, at one moment."""

    pool: PoolFile
    header: HeaderView | None
    rows: tuple[SlotRow, ...]
    rate: float | None  # attempts that ended a second, lately; None until there are two samples
    uptime: float
    silent: float  # seconds since the master's loop last turned
    problem: str = ""  # why there are no rows; "" = there are

    @property
    def busy(self) -> int:
        return sum(row.state == "busy" for row in self.rows)


class Watcher:
    """A watcher that keeps the boards of all known pools mapped between two samples. Use it in a `with`.

    `find` says which pools there are now. `now`: CLOCK_MONOTONIC seconds.
    """

    def __init__(self, find: Callable[[], Iterable[PoolFile]], now: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._now = now
        self._boards: dict[tuple[int, str], Scoreboard] = {}
        self._counts: dict[tuple[int, str], list[tuple[float, int]]] = {}

    def sample(self) -> list[PoolSample]:
        """Return all pools now, oldest first. Does not block."""
        pools = list(self._find())
        self._forget({(pool.pid, pool.board) for pool in pools})
        return [self._sample(pool) for pool in pools]

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget(set())

    def _sample(self, pool: PoolFile) -> PoolSample:
        key = (pool.pid, pool.board)
        try:
            board = self._boards[key] = self._boards.get(key) or Scoreboard.open(pool.board)
        except (OSError, ValueError) as error:
            problem = f"its scoreboard cannot be read: {error}"
            return PoolSample(pool, None, (), None, 0.0, 0.0, problem)
        now = self._now()
        header = board.header.read()
        views = [(slot.child.read(), slot.master.read()) for slot in map(board.slot, range(board.slots))]
        # A board has room for children to be added by a signal: slots never filled are not shown.
        rows = tuple(slot_row(index, *view, now) for index, view in enumerate(views) if view[1].state)
        rate = self._rate(key, now, sum(row.done + row.failed for row in rows))
        uptime = now - header.started if header.started else 0.0
        return PoolSample(pool, header, rows, rate, uptime, max(0.0, now - (header.loop_at or header.started or now)))

    def _rate(self, key: tuple[int, str], now: float, count: int) -> float | None:
        """Return the counter's growth a second over the last `RATE_SPAN`."""
        seen = [(at, old) for at, old in self._counts.get(key, ()) if now - at <= RATE_SPAN]
        self._counts[key] = seen = [*seen, (now, count)]
        (first, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - first) if last > first else None

    def _forget(self, alive: set[tuple[int, str]]) -> None:
        for key in self._boards.keys() - alive:
            with contextlib.suppress(OSError):
                self._boards.pop(key).close()
            self._counts.pop(key, None)


def slot_row(index: int, child: ChildView, master: MasterView, now: float) -> SlotRow:
    """Combine the two parts of a slot's page."""
    # The child knows whether it is busy; only the master, whether it is missing or ending.
    state = child.state.name.lower()
    if not master.pid or child.pid != master.pid or master.state == "dying":
        state = master.state or "empty"
    busy = child.state is ChildState.BUSY and state in ("busy", "dying")
    return SlotRow(
        slot=index,
        pid=master.pid,
        state=state,
        job=child.ident if busy else "",
        handler=child.handler if busy else "",
        queue=child.queue if busy else "",
        attempt=child.attempt if busy else None,
        age=max(0.0, now - (child.started if busy else child.since or master.since or now)),
        left=child.deadline - now if busy and child.deadline else None,
        progress=child.progress if busy else 0.0,
        progress_text=child.progress_text if busy else "",
        rss=master.rss,
        cpu=master.cpu,
        done=child.done,
        failed=child.failed,
        restarts=master.restarts,
        torn=child.torn or master.torn,
        last_death=master.last_death,
        name=child.name if busy and child.name != child.handler else "",
    )
