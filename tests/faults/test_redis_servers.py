"""What a Redis can do to its clients: throw their messages away, be full, forget their scripts (row 27)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import pytest
from redis import Redis
from support.faultmoves import end_unharmed, gated, start_pools, stop_all
from support.outages import NO_ANSWER, wait_fetched_after
from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import Broker, ClusterBroker
from support.servers import RedisServer

from jobpool.errors import BackendUnavailable

PAYLOAD = "x" * 10_000
ROOM = 1_500_000
"""Bytes above what the server uses."""

MOST = 1000
"""Jobs of that payload: far more than there is room for."""


FLUSHES = 4


def servers(broker: Broker) -> Sequence[RedisServer]:
    if isinstance(broker, ClusterBroker):
        return broker.cluster.masters
    assert isinstance(broker.server, RedisServer)
    return [broker.server]


def tell(broker: Broker, *words: str | int) -> None:
    """One command to every server."""
    for server in servers(broker):
        server.ask(*words)


@pytest.fixture
def unbounded(broker: Broker) -> Iterator[Broker]:
    """Its bounds are as they were when the test is over."""
    yield broker
    tell(broker, "CONFIG", "SET", "maxmemory", 0, "maxmemory-policy", "noeviction")


def cautions(pool: PoolProcess) -> str:
    return " ".join(entry["caution"] for entry in pool.log("the broker's settings"))


@pytest.mark.row(27)
@pytest.mark.on("redis", "redis-cluster")
def test_a_pool_warns_at_its_start_of_a_redis_that_throws_messages_away(unbounded: Broker, rig: Rig) -> None:
    tell(unbounded, "CONFIG", "SET", "maxmemory", 1 << 30, "maxmemory-policy", "allkeys-lru")
    [pool] = start_pools(rig, 1)
    assert "maxmemory-policy allkeys-lru: when memory runs out, messages are thrown away unseen" in cautions(pool)
    assert "set noeviction" in cautions(pool)
    stop_all(rig, [pool])


@pytest.mark.row(27)
@pytest.mark.on("redis")
def test_a_redis_whose_memory_is_full_refuses_jobs_and_is_worked_down(unbounded: Broker, rig: Rig) -> None:
    tell(unbounded, "CONFIG", "SET", "maxmemory", 1 << 30, "maxmemory-policy", "noeviction")
    pools = start_pools(rig, 2)
    assert not any("evict" in cautions(pool) for pool in pools)
    opened = rig.directory / "opened"
    rig.wait_started(*[gated(rig, opened, opened) for _ in range(4)])
    with Redis(host=unbounded.server.host, port=unbounded.server.port) as client:
        used: int = client.info("memory")["used_memory"]
    tell(unbounded, "CONFIG", "SET", "maxmemory", used + ROOM)
    with pytest.raises(BackendUnavailable, match="memory"):
        fill(rig)
    assert 10 < len(rig.enqueued) < MOST
    opened.touch()
    rig.wait_drained()
    rig.enqueue("work", {"tag": PAYLOAD})
    end_unharmed(rig, pools)


def fill(rig: Rig) -> None:
    for _ in range(MOST):
        rig.enqueue("work", {"tag": PAYLOAD})


@pytest.mark.row(27)
@pytest.mark.on("redis-cluster", "redis")
def test_scripts_that_are_flushed_in_the_middle_of_the_work_are_sent_again(broker: Broker, rig: Rig) -> None:
    """NOSCRIPT is no trouble, and nobody is told of it."""
    pools = start_pools(rig, 2)
    before = noscripts(broker)
    for _ in range(FLUSHES):
        tell(broker, "SCRIPT", "FLUSH")
        wait_fetched_after(rig, time.monotonic())
    end_unharmed(rig, pools)
    assert noscripts(broker) - before >= FLUSHES, "somebody was answered so each time"
    assert not any(pool.log(NO_ANSWER) for pool in pools)


def noscripts(broker: Broker) -> int:
    """How often the servers have answered NOSCRIPT."""
    told = b"".join(server.ask("INFO", "errorstats") for server in servers(broker))
    return sum(map(int, re.findall(rb"errorstat_NOSCRIPT:count=(\d+)", told)))
