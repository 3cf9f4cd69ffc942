"""Handlers that break or flood what leads from them to their master, on two pools with one queue.

Their neighbours must not notice: jobs that run beside them go on, and new ones are as quick as before.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.faultmoves import Figure, begin_peak, opened_late, peak, start_pools, stop_all
from support.faultrig import broker_of_file, rig_of_file
from support.poolrig import APP, LIMIT, PoolProcess, Rig, wait_gone
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.broker.values import State
from jobpool.message.death import Death
from jobpool.ops.top import Watcher
from jobpool_torture.ledger import Line
from jobpool_torture.processes import descriptors

pytestmark = pytest.mark.xdist_group("fault-floods")  # two pools for all of them

MISUSE = str(APP.with_name("apps_misuse.py"))
WORKERS = 3
FLAT = 16 << 20
"""Bytes by which a master may grow, be it for a moment."""

IDLE = 3
"""Connections that a master may keep beyond those before: as many as threads ever asked a server at the same time."""

TIMEOUT = 60.0
"""Seconds for what misbehaves: far more than it takes, and less than `LIMIT`, so that what locks up is seen to."""

FLOOD = 1024 if os.environ.get("POOLTEST_FULL") else 64
"""MiB of output."""

BREAKS = [
    ("die", {"how": "close all"}),
    ("write_everywhere", {}),
    *[("break_frame", {"how": how}) for how in ("half", "announced", "of another attempt", "not a frame")],
]
"""What costs a child, and the delivery."""


broker, rig = broker_of_file, rig_of_file


@pytest.fixture(scope="module")
def pools(rig: Rig) -> Iterator[list[PoolProcess]]:
    """Tests leave them as they find them, however badly their jobs behave."""
    pools = start_pools(rig, 2, "--max-crashes", "0", workers=WORKERS, app=MISUSE)
    latencies(rig, lambda: len(rig.ends()) < 20)
    yield pools
    rig.account().assert_apart()
    stop_all(rig, pools)


def latencies(rig: Rig, go_on: Callable[[], bool]) -> list[float]:
    """Seconds from the enqueue of a job to its end, of one after the other."""
    found: list[float] = []
    give_up = time.monotonic() + LIMIT
    while not found or go_on():
        assert time.monotonic() < give_up, f"what they run beside has not ended within {LIMIT:g} s"
        known = len(rig.ledger.read())
        begun = time.monotonic()
        ident = rig.enqueue("work", {"tag": "neighbour"})
        [end] = wait_until(lambda ident=ident, known=known: ended(rig, ident, known))  # type: ignore[misc]
        found.append(end.at - begun)
    return found


def ended(rig: Rig, ident: str, known: int) -> list[Line]:
    """The end of a job, among the lines of the ledger after so many."""
    return [line for line in rig.ledger.after(known) if (line.event, line.id) == ("end", ident)]


class Neighbourhood:
    """What the neighbours of badly behaved jobs see: quick jobs, children, and the masters."""

    def __init__(self, rig: Rig, pools: list[PoolProcess]) -> None:
        self._rig = rig
        self._pools = pools
        until = time.monotonic() + 0.4
        self.quiet = latencies(rig, lambda: time.monotonic() < until)
        self.sizes = [begin_peak(pool) for pool in pools]
        self.descriptors = [descriptors(pool.pid) for pool in pools]
        self.children = [pool.slots() for pool in pools]
        self.busy: list[float] = []
        self.longest_stall = 0.0

    def watch_beside(self, handler: str, payload: dict[str, Any]) -> str:
        """Enqueue a job, and run quick ones until it is done; its id."""
        ident = self._rig.enqueue(handler, payload, timeout=TIMEOUT)
        self.watch(lambda: not self._is_done(ident))
        return ident

    def watch(self, go_on: Callable[[], bool]) -> None:
        """Run quick jobs as long as that."""
        with Stalls() as stalls:
            self.busy += latencies(self._rig, go_on)
        self.longest_stall = max(self.longest_stall, stalls.longest)

    def _is_done(self, ident: str) -> bool:
        return _is_settled(self._rig, ident)

    def tell(self, figure: Figure) -> None:
        for pool, size in zip(self._pools, self.sizes, strict=True):
            figure("a master's memory before", size / 2**20, "MiB")
            figure("at its peak", peak(pool) / 2**20, "MiB")
        for seconds in self.quiet:
            figure("latency of a quick job before", seconds, "s")
        for seconds in self.busy:
            figure("meanwhile", seconds, "s")

    def assert_undisturbed(self, culprits: set[int]) -> None:
        """Masters never much larger than before; quick jobs as quick, within what the culprits take of two cores.

        And every child that ran none of those jobs is the same as before.
        """
        for pool in self._pools:
            pool.wait_ready(WORKERS)
        grown = [peak(pool) - size for pool, size in zip(self._pools, self.sizes, strict=True)]
        assert max(grown) < FLAT, grown
        assert statistics.median(self.busy) < statistics.median(self.quiet) * 3 + 0.1 + self.longest_stall
        for pool, before in zip(self._pools, self.children, strict=True):
            others = {slot: pid for slot, pid in before.items() if pid not in culprits}
            assert others.items() <= pool.slots().items()

    def assert_no_descriptor_left(self) -> None:
        idle = Counter() if self._rig.url.startswith("sqlite") else Counter(socket=IDLE)
        for pool, before in zip(self._pools, self.descriptors, strict=True):
            more = descriptors(pool.pid) - before - idle - opened_late(pool)
            assert not more, (pool.name, more)


def _is_settled(rig: Rig, ident: str) -> bool:
    return any(line.verb in ("ack", "abandon") for line in rig.lines("settled", ident))


def steady_jobs(rig: Rig, seconds: float) -> list[str]:
    ids = rig.enqueue_many("work", [{"seconds": seconds, "tag": "steady"}] * 2)
    rig.wait_started(*ids)
    return ids


def assert_ran_once(rig: Rig, ids: list[str]) -> None:
    for ident in ids:
        [start] = rig.starts(ident)
        [end] = rig.ends(ident)
        assert start.pid == end.pid


@pytest.mark.row(15)
@pytest.mark.on("sqlite", "redis")
def test_a_child_that_breaks_its_channel_is_replaced_and_nobody_else_notices(
    rig: Rig, pools: list[PoolProcess], figure: Figure
) -> None:
    around = Neighbourhood(rig, pools)
    steady = steady_jobs(rig, 1.5)
    ids = [around.watch_beside(handler, payload) for handler, payload in BREAKS]
    rig.wait_drained()
    culprits = set()
    for ident in ids:
        runs = rig.starts(ident)
        assert [(line.attempt, line.crashes) for line in runs] == [(1, 0), (1, 1)], rig.lines(ident=ident)
        assert len(rig.ends(ident)) == 1
        culprits.add(runs[0].pid)
    wait_gone(culprits, LIMIT)
    around.tell(figure)
    around.assert_undisturbed(culprits)
    around.assert_no_descriptor_left()
    assert_ran_once(rig, steady)
    wait_until(lambda: all(pool.is_healthy() for pool in pools), what="and the scoreboards can be read")


@pytest.mark.row(15)
@pytest.mark.on("sqlite")
def test_a_job_that_returns_much_costs_its_own_child_and_nobody_else(
    rig: Rig, pools: list[PoolProcess], figure: Figure
) -> None:
    around = Neighbourhood(rig, pools)
    steady = steady_jobs(rig, 1.5)
    ident = around.watch_beside("return_much", {"mebibytes": 100})
    rig.wait_drained()
    around.tell(figure)
    around.assert_undisturbed({line.pid for line in rig.starts(ident)})
    assert_ran_once(rig, [ident, *steady])


@pytest.mark.row(15)
@pytest.mark.on("sqlite")
def test_a_child_that_is_worn_when_its_job_ends_is_replaced(rig: Rig, pools: list[PoolProcess]) -> None:
    """One has written rubbish right before its result, which may still count; one has left a thread behind."""
    around = Neighbourhood(rig, pools)
    rubbish, thread = (rig.enqueue(handler) for handler in ("write_rubbish", "leave_thread"))
    wait_until(lambda: rig.ends(rubbish) and rig.ends(thread))
    rig.wait_drained()
    worn = {rig.lines("start", rubbish)[0].pid, rig.lines("end", thread)[0].pid}
    wait_gone(worn, LIMIT)
    around.watch(lambda: False)
    around.assert_undisturbed(worn)


@pytest.mark.row(34)
@pytest.mark.on("sqlite")
def test_a_flood_of_questions_withholds_nobodys_acks(
    rig: Rig, pools: list[PoolProcess], tmp_path: Path, figure: Figure
) -> None:
    """And what floods is answered, read and acked itself when it is done."""
    around = Neighbourhood(rig, pools)
    over = tmp_path / "over"
    floods = rig.enqueue_many("flood_questions", [{"until": str(over)}] * 4, timeout=TIMEOUT)
    rig.wait_started(*floods)
    try:
        for _ in range(4):
            begun = time.monotonic()
            ident = rig.enqueue("work")
            wait_until(lambda ident=ident: _is_settled(rig, ident), LIMIT / 6)  # type: ignore[misc]
            figure("until a job beside it is acked", time.monotonic() - begun, "s")
    finally:
        over.touch()
    rig.wait_drained()
    around.watch(lambda: False)
    around.tell(figure)
    around.assert_undisturbed(set())
    assert_ran_once(rig, floods)


@pytest.mark.row(39)
@pytest.mark.on("sqlite")
def test_follow_ups_that_are_too_much_are_refused_where_they_are_enqueued(rig: Rig, pools: list[PoolProcess]) -> None:
    """Those below the bound arrive; above it the handler is told, and its child is the same as before."""
    children = [pool.slots() for pool in pools]
    good = rig.enqueue("follow_up_much", {"kibibytes": 900, "count": 8}, timeout=TIMEOUT)
    bad = rig.enqueue("follow_up_much", {"kibibytes": 900, "count": 12}, timeout=TIMEOUT, max_retries=0)
    rig.wait_drained()
    assert len(rig.ends(good)) == 1
    assert len(rig.starts(bad)) == 1, "it is not a crash"
    message = rig.inspect(bad)
    assert (message.state, message.crashes) == (State.DEAD, 0)
    assert "at most 8388608 bytes together" in (message.last_error or "")
    assert [pool.slots() for pool in pools] == children


@pytest.mark.row(40)
@pytest.mark.on("sqlite")
def test_raw_output_takes_no_memory_and_fails_no_writer(rig: Rig, pools: list[PoolProcess], figure: Figure) -> None:
    around = Neighbourhood(rig, pools)
    culprits = set()
    for timeout in (4.0, 16.0, 64.0):  # again, where a machine stands still for so long that it has no last words
        ident = rig.enqueue("print_raw", {"mebibytes": 64}, timeout=timeout, max_retries=0)
        around.watch(lambda ident=ident: not (rig.lines("effect", ident) or rig.is_dead(ident)))  # type: ignore[misc]
        rig.wait_drained()
        culprits |= {run.pid for run in rig.starts(ident)}
        if rig.lines("effect", ident):
            break
    [line] = rig.lines("effect", ident)
    figure("memory of a child's output and trace", int(line.tag) / 2**20, "MiB")
    assert int(line.tag) <= 1 << 20
    record = Death.from_text(rig.inspect(ident).cause or "")
    assert "the last words" in record.output
    assert "bytes of raw output dropped" in record.output
    around.assert_undisturbed(culprits)


@pytest.mark.row(41)
@pytest.mark.on("sqlite")
def test_a_stray_pointer_reaches_nothing_but_the_childs_own_page(rig: Rig, pools: list[PoolProcess]) -> None:
    around = Neighbourhood(rig, pools)
    steady = steady_jobs(rig, 1.5)
    ident = around.watch_beside("scribble", {})
    last = rig.enqueue("scribble")
    wait_until(lambda: rig.lines("effect", last), LIMIT)
    with Watcher(lambda: [pool.note() for pool in pools]) as watcher:

        def ended_in_sight() -> list[Line]:
            rows = [asdict(row) for sample in watcher.sample() for row in sample.rows]
            assert len(rows) >= 2 * WORKERS
            json.dumps(rows, allow_nan=False)
            return rig.ends(last)

        wait_until(ended_in_sight, LIMIT)
    rig.wait_drained()
    assert {int(line.tag) for line in rig.lines("effect", ident)} == {4096}
    wait_until(lambda: all(pool.is_healthy() for pool in pools))
    around.assert_undisturbed(set())
    assert_ran_once(rig, [ident, last, *steady])


@pytest.mark.row(42)
@pytest.mark.on("sqlite")
def test_nobody_answers_for_a_job_that_its_child_has_not_taken(rig: Rig, pools: list[PoolProcess]) -> None:
    """In a stream of short jobs, where some wait in the sockets of children."""
    ids: list[str] = []
    for _ in range(4):
        ids += rig.enqueue_many("work", [{}] * 100)
        ids.append(rig.enqueue("answer_for_others"))
        ids += rig.enqueue_many("work", [{}] * 60)
    rig.wait_drained()
    ran = {line.id for line in rig.ends()}
    assert not [ident for ident in ids if ident not in ran]
    for pool in pools:
        pool.wait_ready(WORKERS)


@pytest.mark.row(16)
@pytest.mark.on("sqlite")
def test_a_flood_of_output_is_bounded_and_blocks_nothing(rig: Rig, pools: list[PoolProcess], figure: Figure) -> None:
    """A quarter by each of four ways out; with `POOLTEST_FULL`, 1 GiB in all."""
    around = Neighbourhood(rig, pools)
    steady = steady_jobs(rig, 1.5)
    begun = time.monotonic()
    good = around.watch_beside("flood", {"mebibytes": FLOOD})
    figure(f"a job that prints {FLOOD} MiB", time.monotonic() - begun, "s")
    bad = around.watch_beside("flood", {"mebibytes": FLOOD // 4, "then": "fail"})
    rig.wait_drained()
    around.tell(figure)
    ends = [*rig.ends(good), *rig.lines("fail", bad)]
    for line in ends:
        figure("a child's memory at the most", int(line.tag) / 2**20, "MiB")
        assert int(line.tag) < 100 << 20
    message = rig.inspect(bad)
    assert len((message.last_error or "") + (message.cause or "")) < 80_000
    assert "ValueError: all that is printed" in (message.last_error or "")
    around.assert_undisturbed({line.pid for line in ends})
    assert_ran_once(rig, [good, *steady])
