"""Row 3: a job that crashes its child every time, among 500 good ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.poolrig import LIMIT, Rig
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.message.death import Death

MAX_CRASHES = 3
FIRST, REST = 50, 450
"""Good ones: the poison is enqueued once the first of them run, and before the rest."""

SLOWER = 1.3
"""How much longer the good ones may take because of it."""

ROUNDS = 12
"""At most: until one without it and one with it are fit to be compared."""


@pytest.mark.row(3)
@pytest.mark.on("beanstalk", "sqlite", "redis", "redis-cluster", "postgres", "servicebus")
def test_poison_ends_at_the_crash_limit_and_holds_up_no_other_job(rig: Rig, figure: Figure) -> None:
    """The count is the message's, whichever pool it meets. Rounds with and without it take turns: machines are busy."""
    pools = start_pools(rig, 2, "--max-crashes", str(MAX_CRASHES))
    rig.enqueue_many("work", [{}] * 50)
    rig.wait_drained()  # what a first job costs its child is not measured
    without, beside = [], []
    for _ in range(ROUNDS):
        without.append(_run_good_ones(rig)[2])
        beside.append(_run_poison_among_good_ones(rig))
        if min(beside) <= SLOWER * min(without):
            break
    figure("makespan with poison, of that without", min(beside) / min(without), "times")
    assert min(beside) <= SLOWER * min(without), (without, beside)
    rig.account().assert_once_each()
    assert {line.crashes for line in rig.ends()} == {0}, "the good ones were charged nothing"
    stop_all(rig, pools)


def _run_good_ones(rig: Rig, between: Callable[[], object] = bool) -> tuple[float, float, float]:
    """When the first of 500 began and the last ended, and the seconds for that. `between`: when the first ones run.

    In the seconds, the longest time for which the machine stood still is not counted.
    """
    with Stalls() as stalls:
        good = set(rig.enqueue_many("work", [{"seconds": 0.01}] * FIRST))
        wait_until(lambda: any(line.id in good for line in rig.ends()), what="some have run")
        between()
        good.update(rig.enqueue_many("work", [{"seconds": 0.01}] * REST))
        wait_until(lambda: rig.stats().pending == 0, LIMIT, "all are settled")
    ends = [line.at for line in rig.ends() if line.id in good]
    assert len(ends) == FIRST + REST
    first = min(line.at for line in rig.starts() if line.id in good)
    return first, max(ends), max(ends) - first - stalls.longest


def _run_poison_among_good_ones(rig: Rig) -> float:
    """The makespan of the good ones; infinite, which says nothing, if the poison was not done before they were.

    Where there are no priorities, what comes back waits behind them: there it is its first start that is among them.
    """
    poison: list[str] = []
    first, end, makespan = _run_good_ones(
        rig, lambda: poison.append(rig.enqueue("die", {"how": "SIGSEGV", "times": 99}, priority=1))
    )
    _check_dead(rig, poison[0])
    moments = [line.at for line in rig.starts(poison[0])]
    last = moments[-1 if rig.backend.capabilities.priorities else 0]
    return makespan if first < moments[0] <= last < end else math.inf


def _check_dead(rig: Rig, poison: str) -> None:
    starts = rig.starts(poison)
    assert [line.crashes for line in starts] == list(range(MAX_CRASHES + 1))
    assert {line.attempt for line in starts} == {1}
    wait_until(lambda: rig.is_dead(poison))
    message = rig.inspect(poison)
    assert (message.reason, message.attempts, message.crashes) == ("crash-limit", 0, MAX_CRASHES + 1)
    death = Death.from_text(message.cause or "")
    assert (death.how, death.sent_by) == ("killed by SIGSEGV", "itself")
    assert re.search(r'File ".*apps_pool\.py", line \d+ in die', death.stack), death.stack
