"""Masters that die at named points of their talk with the broker: what was charged is exactly what had happened."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

import pytest
from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

from jobpool_torture.ledger import Line
from jobpool_torture.message_history import CRASHED, Step, known_of, steps_of

TTL = 2.0

POINTS = (
    *("after-fetch:3", "before-settle:3", "after-settle/nack", "before-settle/nack", "before-settle/forfeit"),
    *("before-renew", "after-reap"),
)

AT_ONCE = 3
"""Doomed masters that run beside the one that lasts; another takes the place of each that has died."""

LIMIT = 120.0


class Doomed:
    """Pools that end at their fail-points, some at a time."""

    def __init__(self, rig: Rig, points: Sequence[str]) -> None:
        self._rig = rig
        self._points = list(points)
        self._alive: dict[str, PoolProcess] = {}
        self.fell: dict[str, PoolProcess] = {}

    def all_fell(self) -> bool:
        """Whether none is left, after starting those for which there is room."""
        for point, pool in list(self._alive.items()):
            if pool.process.poll() is not None:
                self.fell[point] = self._alive.pop(point)
        while self._points and len(self._alive) < AT_ONCE:
            point = self._points.pop(0)
            self._alive[point] = self._rig.start_pool("--ttl", f"{TTL:g}", workers=1, FAILPOINT=point)
        return not self._alive


def feed(rig: Rig) -> None:
    """Something for each point, unless there is enough: all kinds of settlements, and longer than renewals wait."""
    if rig.stats().waiting < 5:
        rig.enqueue_many("work", [{"seconds": 0.02}] * 4 + [{"seconds": 1.2}])
        rig.enqueue_many("fail", [{"times": 1}] * 4, max_retries=3)
        rig.enqueue_many("die", [{"how": "SIGKILL"}] * 2)


@pytest.mark.row(4, 7)
@pytest.mark.on("postgres", "sqlite", "redis")
def test_masters_that_die_at_named_points_charge_what_had_happened_and_no_more(rig: Rig) -> None:
    doomed = Doomed(rig, POINTS)
    doomed.all_fell()
    lasting = rig.start_pool("--ttl", f"{TTL:g}", workers=1)

    def all_fell() -> bool:
        feed(rig)
        return doomed.all_fell()

    wait_until(all_fell, LIMIT, "each has reached its point")
    rig.wait_drained()

    assert {pool.process.returncode for pool in doomed.fell.values()} == {-signal.SIGKILL}
    account = rig.account()
    account.assert_clean()
    assert not rig.dead()
    judged = {point: assert_charged_exactly(rig, point, pool) for point, pool in doomed.fell.items()}
    assert set(judged) == set(POINTS)
    assert all(judged.values()), f"what each held, or gave back, was seen again: {judged}"
    assert lasting.stop() == 0
    rig.assert_no_processes_left()


def assert_charged_exactly(rig: Rig, point: str, pool: PoolProcess) -> int:
    """The last thing that it did was what the point says, and what it held was charged for that, to the count.

    How many of its deliveries had a next one that was seen, and of its reaps.
    """
    judged = 0
    mine = [line for line in rig.lines() if line.pid == pool.pid]
    assert mine[-1].event in LAST[point.partition(":")[0].partition("/")[0]], (point, mine[-3:])
    for line in [line for line in mine if line.event == "fetched"]:
        known = known_of(calls_of(mine, line), idempotent=True)
        if known.verb in ("ack", "abandon"):
            continue
        never_sent = point.startswith("before-settle") and not known.accepted
        possible = {CRASHED} if never_sent else steps_of(known)
        if then := next_seen(rig, line):
            assert is_charged(line, then, possible), (point, line, then)
            judged += 1
    for line in [line for line in mine if line.event == "reaped"]:
        deliveries = rig.lines("fetched", line.id)
        charged_once = line.crashes in {delivery.crashes for delivery in deliveries}
        fences = {delivery.fence for delivery in deliveries}
        all_seen = fences == set(range(1, len(fences) + 1))
        assert charged_once or not all_seen, (point, line, "no number of crashes may be left out")
        judged += charged_once
    return judged


LAST = {
    "after-fetch": ("fetched",),
    "before-settle": ("asked", "fetched"),
    "after-settle": ("settled", "fetched"),
    "before-renew": ("fetched", "settled", "asked", "reaped"),
    "after-reap": ("reaped", "fetched"),
}
"""What a witness may have written last: fetches go on beside the rest, which one thread does."""


def calls_of(mine: Sequence[Line], fetched: Line) -> list[Line]:
    """What was asked and answered to settle that delivery."""
    calls = [line for line in mine if line.event in ("asked", "settled", "unknown")]
    return [line for line in calls if (line.id, line.fence) == (fetched.id, fetched.fence)]


def next_seen(rig: Rig, delivery: Line) -> Line | None:
    """The message's next delivery that somebody has seen: a master that dies of its settle thread may be fetching."""
    later = [line for line in rig.lines("fetched", delivery.id) if line.fence > delivery.fence]
    return min(later, key=lambda line: line.fence, default=None)


def is_charged(delivery: Line, then: Line, possible: Collection[Step]) -> bool:
    """Whether its counters are what that delivery can have added; each between the two, unseen, may be a crash more."""
    added = then.attempt - delivery.attempt, then.crashes - delivery.crashes
    unseen = then.fence - delivery.fence - 1
    return any(added[0] == attempts and 0 <= added[1] - crashes <= unseen for attempts, crashes in possible)
