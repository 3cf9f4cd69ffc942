"""The content of `jobpool top`, as values: samples of the scoreboards, read from outside.

No sample asks a master or a broker, so it works while the master is busy, stopped, or waits for a dead broker. Only
a person's `order` goes to the pool's master, through the socket beside its scoreboard.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jobpool.ipc import requests
from jobpool.ipc.board_layout import ChildState, ChildView, HeaderView, MasterView, QueueDepth
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.ops.runtime_dir import PoolFile

RATE_SPAN_S = 5.0  # seconds over which jobs/s is averaged
ORDER_TIMEOUT_S = 3.0


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
    left: float | None  # until the hard timeout, < 0 if overdue; None = unlimited or idle
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
class QueueRow:
    """One queue of a pool, as the broker counted it last."""

    queue: str
    waiting: int
    delayed: int
    dead: int
    oldest: float | None  # seconds that the oldest has waited; None = none waits
    rate: float | None  # attempts of this pool that ended a second, lately; None until there are two samples


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
    queues: tuple[QueueRow, ...] = ()  # the deepest first; those that the scoreboard has room for
    busy: int = 0  # slots, also when a filter has left some out of `rows`


class Watcher:
    """A watcher that keeps the boards of all known pools mapped between two samples. Use it in a `with`.

    `find` says which pools there are now. `now`: CLOCK_MONOTONIC seconds.
    """

    def __init__(self, find: Callable[[], Iterable[PoolFile]], now: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._now = now
        self._boards: dict[tuple[int, str], Scoreboard] = {}
        self._counts: dict[tuple[int, str], dict[str, list[tuple[float, int]]]] = {}

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
        rate = self._rate(key, "", now, sum(row.done + row.failed for row in rows))
        uptime = now - header.started if header.started else 0.0
        silent = max(0.0, now - (header.loop_at or header.started or now))
        queues, busy = tuple(self._queues(key, header, now)), sum(row.state == "busy" for row in rows)
        return PoolSample(pool, header, rows, rate, uptime, silent, queues=queues, busy=busy)

    def _queues(self, key: tuple[int, str], header: HeaderView, now: float) -> Iterator[QueueRow]:
        for one in QueueDepth.read(header.depths):
            oldest = None if one.oldest is None else max(0.0, now - one.oldest)
            rate = self._rate(key, one.queue, now, one.ran)
            yield QueueRow(one.queue, one.waiting, one.delayed, one.dead, oldest, rate)

    def _rate(self, key: tuple[int, str], queue: str, now: float, count: int) -> float | None:
        """Return the counter's growth a second over `RATE_SPAN_S`, or since the last sample if that is older."""
        counts = self._counts.setdefault(key, {})
        known = counts.get(queue, [])
        counts[queue] = seen = [*([one for one in known if now - one[0] <= RATE_SPAN_S] or known[-1:]), (now, count)]
        (first, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - first) if last > first else None

    def _forget(self, alive: set[tuple[int, str]]) -> None:
        for key in self._boards.keys() - alive:
            with contextlib.suppress(OSError):
                self._boards.pop(key).close()
            self._counts.pop(key, None)


def order(pool: PoolFile, verb: str, row: SlotRow) -> str:
    """Have the pool's master do something with the child of a slot; return what it says. Blocks for seconds at most.

    `verb`: `stack`, `cancel` (its job) or `restart`. It is refused when another child or job is there by then.
    """
    try:
        return requests.ask(pool.board, requests.Request(verb, row.slot, row.pid, row.job), ORDER_TIMEOUT_S)
    except TimeoutError:
        return f"the master has not answered for {ORDER_TIMEOUT_S:g} s: it may still do it"
    except OSError as error:
        return f"the pool cannot be asked: {error.strerror or error}"


def slot_row(index: int, child: ChildView, master: MasterView, now: float) -> SlotRow:
    # The child knows whether it is busy; only the master, whether it is missing or ending.
    state = child.state.name.lower()
    if not master.pid or child.pid != master.pid or master.state == "dying":
        state = master.state or "empty"
    busy = child.state is ChildState.BUSY and child.pid == master.pid and state in ("busy", "dying")
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
