"""Pools on brokers that free leases themselves: beanstalkd, whose leases live with a connection, and Service Bus."""

from __future__ import annotations

import pytest
from support.poolrig import Rig

both = pytest.mark.only("beanstalk", "servicebus")


def dead_letter(rig: Rig, ident: str) -> tuple[str | None, int, int, str]:
    """Reason, attempts, crashes and cause."""
    message = rig.inspect(ident)
    return message.reason, message.attempts, message.crashes, message.cause or ""


# --- what ends one attempt ----------------------------------------------------------------------------


@both
def test_failures_timeouts_and_crashes_count_as_they_do_elsewhere(rig: Rig) -> None:
    """FAULTS 2, 3, 10; and the pool that stops because all is done has counted who died last."""
    rig.witness = True
    failing = rig.enqueue("fail", {"times": 1}, max_retries=1)
    hanging = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.5, max_retries=1)
    crashing = rig.enqueue("die", {"how": "SIGSEGV", "times": 1})
    good = rig.enqueue_many("work", [{"seconds": 0.005}] * 60)
    poison = rig.enqueue("die", {"how": "SIGSEGV", "times": 99})
    flags = ("--until-empty", "--fail-on-dead", "--max-crashes", "1", "--kill-grace", "0.2")
    pool = rig.run_pool(*flags, "--dead-letter-queue", "failed-payloads", workers=2)
    assert pool.wait() == 1, "two have died"
    account = rig.account()
    assert account["LOST"] | account["GHOST"] | account["FENCE"] | account["DUP"] | account["OVERLAP"] == set()
    assert {line.id for line in rig.ends()} == {failing, crashing, *good}
    assert [line.attempt for line in rig.starts(failing)] == [1, 2]
    assert [(line.attempt, line.crashes) for line in rig.starts(crashing)] == [(1, 0), (1, 1)]
    assert [(line.attempt, line.crashes) for line in rig.starts(poison)] == [(1, 0), (1, 1)]
    assert [(line.attempt, line.crashes) for line in rig.starts(hanging)] == [(1, 0), (2, 0)]
    reason, attempts, crashes, cause = dead_letter(rig, poison)
    assert (reason, attempts, crashes) == ("crash-limit", 0, 2)
    assert "killed by SIGSEGV" in cause
    reason, attempts, crashes, cause = dead_letter(rig, hanging)
    assert (reason, crashes) == ("timeout", 0)
    assert "hang_in_sum" in cause
    [stopped] = pool.log("stopped")
    assert (stopped["dead"], stopped["reaped"], stopped["succeeded"]) == (2, 3, 62)
    assert rig.stats("failed-payloads").waiting == 2, "the payloads of both: one with its abandon, one behind the reap"
