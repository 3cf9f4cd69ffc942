"""What administrators do to a server in the middle of the work, and what an idle pool costs it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from support.poolrig import PoolProcess, Rig
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
