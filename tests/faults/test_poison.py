"""Row 3: a job that crashes its child every time, among 500 good ones."""

from __future__ import annotations

import re

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.death import Death

MAX_CRASHES = 3
GOOD = 500
SLOWER = 1.3
"""How much longer the good ones may take because of it."""

ROUNDS = 4


@pytest.mark.row(3)
@pytest.mark.on("sqlite", "redis", "redis-cluster", "postgres", "beanstalk", "servicebus")
def test_poison_ends_at_the_crash_limit_and_holds_up_no_other_job(rig: Rig, figure: Figure) -> None:
    """The count is the message's, whichever pool it meets. Rounds with and without it take turns: machines are busy."""
    pools = start_pools(rig, 2, "--max-crashes", str(MAX_CRASHES), "--crash-back-off", "0")
    without, beside = [], []
    for _ in range(ROUNDS):
        without.append(_run_good_ones(rig))
        poison = rig.enqueue("die", {"how": "SIGSEGV", "times": 99}, priority=1)
        beside.append(_run_good_ones(rig))
        _check_dead(rig, poison)
        if min(beside) <= SLOWER * min(without):
            break
    figure("makespan with poison, of that without", min(beside) / min(without), "times")
    assert min(beside) <= SLOWER * min(without)
    rig.account().assert_once_each()
    assert {line.crashes for line in rig.ends()} == {0}, "the good ones were charged nothing"
    stop_all(rig, pools)


def _run_good_ones(rig: Rig) -> float:
    """Seconds from the first start of these to their last end."""
    good = set(rig.enqueue_many("work", [{"seconds": 0.01}] * GOOD))
    wait_until(lambda: rig.stats().pending == 0, 60.0, "all are settled")
    ends = [line.at for line in rig.ends() if line.id in good]
    assert len(ends) == GOOD
    return max(ends) - min(line.at for line in rig.starts() if line.id in good)


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
