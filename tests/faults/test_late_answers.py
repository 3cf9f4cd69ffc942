"""Row 6: a pool gets a message again while the child of its first delivery still runs, and then that child answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from support.faultmoves import gated, stop_all, wait_runs
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import BeanstalkBroker, Broker
from support.waiting import wait_until

from jobpool.broker.values import Leases

if TYPE_CHECKING:
    from support.poolrig_servicebus import ServiceBusBroker

FLAGS = ("--max-crashes", "0", "--on-lease-lost", "finish")
ASIDE = "mails"
"""A queue whose job keeps the second pool's only child, so that the first pool gets the message again."""

AGO = 0.001
"""Seconds: whatever was leased that long ago is taken away, whoever holds it."""


@pytest.mark.row(6)
@pytest.mark.on("redis", "sqlite", "postgres")
def test_a_first_child_whose_pool_does_not_know_of_its_loss_is_refused(rig: Rig) -> None:
    """The broker knows: the message is the second child's, though both are the same pool's."""
    first, later, free = (rig.directory / name for name in ("first", "later", "free"))
    pools = [_start_busy_pool(rig, free), rig.start_pool(*FLAGS, "--ttl", "30").wait_ready(2)]
    ident = gated(rig, first, later)
    rig.wait_started(ident)
    rig.backend.reap_expired("default", AGO)
    wait_runs(rig, ident, 2, LIMIT)
    first.touch()
    wait_until(lambda: _answers(rig, ident), LIMIT, "the first child's answer has reached the broker")
    assert _answers(rig, ident) == [(1, "ack", "not-owner")]
    _end_once(rig, ident, later, free, pools)


@pytest.mark.row(6)
@pytest.mark.on("beanstalk", "sqlite", "redis-cluster", "servicebus")
def test_a_first_child_that_its_pool_has_given_up_is_not_heard(broker: Broker | None, rig: Rig) -> None:
    """It may finish, in its own slot. What it says is for no other delivery, and its slot goes on."""
    first, later, free = (rig.directory / name for name in ("first", "later", "free"))
    url = broker.host().url if isinstance(broker, BeanstalkBroker) else None
    pools = [_start_busy_pool(rig, free), rig.start_pool(*FLAGS, "--ttl", "6", url=url).wait_ready(2)]
    ident = gated(rig, first, later)
    [start] = rig.wait_started(ident)
    _take_away(broker, rig)
    wait_runs(rig, ident, 2, LIMIT)
    wait_until(lambda: rig.lines("lost", ident), LIMIT, "its pool knows")
    first.touch()
    next_one = rig.enqueue("work")
    [heard] = rig.wait_started(next_one)
    assert heard.pid == start.pid, "the child is free again: its answer was read"
    assert not [line for line in rig.lines("asked", ident) if line.verb == "ack"]
    _end_once(rig, ident, later, free, pools)


def _start_busy_pool(rig: Rig, until: Path) -> PoolProcess:
    pool = rig.start_pool(*FLAGS, "-Q", "default", "-Q", ASIDE, workers=1).wait_ready(1)
    rig.wait_started(gated(rig, until, until, queue=ASIDE))
    return pool


def _take_away(broker: Broker | None, rig: Rig) -> None:
    """End all leases of the queue, by what ends them on this broker."""
    if isinstance(broker, BeanstalkBroker):
        broker.hosts[0].proxy.cut()
    elif hasattr(broker, "control"):
        cast("ServiceBusBroker", broker).control.expire_locks("default")
    else:
        rig.backend.reap_expired("default", AGO)


def _answers(rig: Rig, ident: str) -> list[tuple[int, str, str]]:
    """Delivery, verb and answer of each settlement."""
    return [(line.fence, line.verb, line.answer) for line in rig.lines("settled", ident)]


def _end_once(rig: Rig, ident: str, later: Path, free: Path, pools: list[PoolProcess]) -> None:
    """The second child is not disturbed: its end is the message's."""
    wait_until(lambda: rig.stats().pending == 1, LIMIT, "it is there, and nothing else is")
    assert [line.fence for line in rig.ends(ident)] == [rig.starts(ident)[0].fence]
    later.touch()
    free.touch()
    rig.wait_drained()
    rig.wait_drained(queue=ASIDE)
    _, second = rig.starts(ident)
    end = (second.fence, "ack", "ok")
    wait_until(lambda: end in _answers(rig, ident), LIMIT, "the second child's answer is the message's end")
    assert [answer for answer in _answers(rig, ident) if answer[1:] == ("ack", "ok")] == [end]
    assert 1 <= second.crashes < second.fence or not rig.backend.capabilities.exact_counts
    rig.account(leases=Leases.CONNECTION).assert_clean()
    stop_all(rig, pools)
