"""Servers in the middle of the work: what administrators do to them, what an idle pool costs them, and bad networks.

Black holes, resets and half-open connections under load: tests/faults/test_bad_networks.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from support.descriptors import no_more_descriptors
from support.faultmoves import let_pass
from support.poolrig import LIMIT, PoolProcess, Rig
from support.poolrig_brokers import Broker, Host, PostgresBroker, RedisBroker
from support.servers.pgbouncer import Pgbouncer
from support.stalls import Stopwatch
from support.waiting import wait_until

IDLE = 3.0
"""Seconds."""

MOST_COMMANDS = 12
"""A second, of an idle pool."""

TRIES = 3
"""Of a measurement: a server that others have used just now may still be at work for itself."""


@pytest.mark.also("beanstalk")
def test_an_idle_pool_asks_its_broker_for_little(broker: Broker, rig: Rig) -> None:
    host = broker.host()
    pool = rig.start_pool(url=host.url).wait_ready(2)
    rig.wait_started(rig.enqueue("work"))
    rig.wait_drained()
    wait_until(lambda: pool.header().succeeded == 1)
    costs = [measure(broker, host, pool)]
    while len(costs) < TRIES and costs[-1].commands > MOST_COMMANDS:
        costs.append(measure(broker, host, pool))
    assert costs[-1].requests <= MOST_COMMANDS
    assert costs[-1].commands <= MOST_COMMANDS, costs
    assert costs[-1].cpu < 0.05
    assert pool.stop() == 0


class Cost(NamedTuple):
    """A second. `commands`: as the server counts them."""

    requests: float
    commands: float
    cpu: float


def measure(broker: Broker, host: Host, pool: PoolProcess) -> Cost:
    """What an idle pool costs, over some seconds."""

    def now() -> tuple[float, ...]:
        return host.proxy.counts().requests, broker.commands(), pool.cpu_seconds()

    before, begun = now(), time.monotonic()
    wait_until(lambda: time.monotonic() - begun >= IDLE)
    return Cost(*((after - count) / IDLE for count, after in zip(before, now(), strict=True)))


@pytest.mark.only("redis")
def test_a_bell_that_somebody_removes_is_missed_for_some_seconds_at_most(broker: RedisBroker, rig: Rig) -> None:
    rig.start_pool(workers=1).wait_ready(1)
    with broker.client() as client:
        for _ in range(5):
            ident = rig.enqueue("work")
            client.delete(f"{broker.place}:{{default}}:bell")
            rig.wait_started(ident, limit=6.0)
        rig.wait_drained()


@pytest.mark.only("postgres")
def test_a_pool_works_through_a_pooler_that_lends_sessions_for_one_transaction(
    broker: PostgresBroker, rig: Rig, tmp_path: Path
) -> None:
    rig.witness = True
    with Pgbouncer(tmp_path / "pooler", broker.server_url) as pooler:
        pool = rig.start_pool(url=pooler.url(f"schema={broker.place}")).wait_ready(2)
        rig.enqueue_many("work", [{"seconds": 0.005}] * 480)
        rig.enqueue_many("follow_up", [{}] * 20)
        rig.wait_drained()
        enqueued = Stopwatch()
        [start] = rig.wait_started(rig.enqueue("work"))
        assert start.at - enqueued.began < 1.0 + enqueued.stalled()
        rig.wait_drained()
        rig.enqueued |= {line.tag for line in rig.ends() if line.tag not in ("", "follow-up")}
        rig.account().assert_once_each()
        assert not any(rig.account().crashes.values())
        assert pool.stop() == 0


def test_a_hint_that_was_lost_delays_nobody_else(broker: Broker, rig: Rig) -> None:
    """The broker tells one of two idle pools of a message, and that one cannot hear it."""
    host = broker.host()
    rig.start_pool(url=host.url).wait_ready(2)
    hearing = rig.start_pool().wait_ready(2)
    let_pass(0.5)
    for _ in range(3):
        host.proxy.black_hole()
        enqueued = Stopwatch()
        [start] = rig.wait_started(rig.enqueue("work"))
        assert start.pid in hearing.children()
        assert start.at - enqueued.began < 1.2 + enqueued.stalled()
        host.proxy.restore()


def test_no_job_begins_with_a_lease_that_has_ended(broker: Broker, rig: Rig) -> None:
    """The broker leases a message, and says so when somebody else may have it already."""
    host = broker.host()
    pool = rig.start_pool("--ttl", "1", "--max-crashes", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 50)  # after which every connection that it needs is open
    rig.wait_drained()
    host.proxy.delay(0.6)
    ident = rig.enqueue("work")
    wait_until(lambda: rig.inspect(ident).deliveries == 1, what="leased")
    let_pass(0.3)  # the answer is on its way
    host.proxy.delay(0.0)
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1, "begun with a lease that holds, or not at all"
    assert pool.stop() == 0


MEASURED = "children cannot be measured, and memory_limit is not kept to; trying again each second"


@pytest.mark.also("beanstalk", "servicebus")  # no proxy reaches the nodes of a cluster
def test_connections_that_cannot_be_opened_are_an_outage(broker: Broker, rig: Rig) -> None:
    rig.witness = True
    host = broker.host()
    pool = rig.start_pool("--metrics", "0", url=host.url).wait_ready(2)
    rig.enqueue_many("work", [{}] * 20)
    rig.wait_drained()
    with no_more_descriptors(pool.pid):
        host.proxy.cut()
        rig.enqueue_many("work", [{}] * 20)
        wait_until(lambda: "does not answer" in pool.header().problem, LIMIT, "the broker cannot be reached")
        wait_until(lambda: pool.log(MEASURED), LIMIT, "children cannot be measured")
    rig.wait_drained()
    assert pool.stop() == 0
    rig.account().assert_clean()


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
