"""What a fetch meets and does not hand out as it is: crashes, which are charged, and dead letters that were kicked."""

from __future__ import annotations

import pytest
from beanstalk_clients import AT_ONCE, QUEUE, Clients, a_job, one
from support.waiting import wait_until

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool_backends.beanstalk.connection import Answer, Connection, Counters
from jobpool_backends.beanstalk.records import Charge, from_bytes


def lose(clients: Clients) -> None:
    """Somebody reserves the next message, and his connection breaks."""
    waiting = clients.counts()[0]
    with clients.server.client(clients.prefix + QUEUE) as client:
        client.reserve(timeout=0)
    wait_until(lambda: clients.counts()[0] == waiting)


def test_each_crash_is_charged_once_whoever_meets_it(clients: Clients) -> None:
    first, second = clients.open(), clients.open()
    ident = first.enqueue(a_job())
    first.reap(QUEUE, AT_ONCE)
    second.reap(QUEUE, AT_ONCE)
    lose(clients)
    lease = one(first)
    assert (lease.id, lease.crashes, lease.deliveries) == (ident, 1, 2)
    assert first.release(lease)
    lease = one(second)
    assert (lease.crashes, lease.deliveries) == (1, 3), "a release is not a crash, and the first is charged"
    assert second.release(lease)
    lose(clients)
    lose(clients)
    lease = one(second)
    assert (lease.crashes, lease.deliveries) == (3, 6)
    assert first.reap(QUEUE) == [Reaped(ident, QUEUE, 1, "lease expired", False)]
    assert second.reap(QUEUE) == [Reaped(ident, QUEUE, 3, "lease expired", False)]


def test_a_charge_is_taken_back_when_the_lease_ends_before_the_original_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=10)
        backend.reap(QUEUE, AT_ONCE)
        backend.enqueue(a_job())
        lose(clients)
        fetcher = backend._fetcher
        put = fetcher._put

        def put_slowly(connection: Connection, charged: Charge, body: bytes, counters: Counters) -> Answer:
            answer = put(connection, charged, body, counters)
            clients.advance(10.0)
            assert clients.raw.reserve(timeout=0).id < clients.raw.peek_ready().id, "somebody has the original"
            return answer

        monkeypatch.setattr(fetcher, "_put", put_slowly)
        assert backend.fetch_many(QUEUE, limit=1) == []
        assert clients.counts() == (0, 0, 1, 0)
        assert backend.reap(QUEUE) == []


def test_past_the_limit_nothing_is_handed_out_and_the_others_are(clients: Clients) -> None:
    backend = clients.open()
    policy = ReapPolicy(max_crashes=1, back_off=0.0)
    backend.reap(QUEUE, policy)
    poison = backend.enqueue(a_job("poison", priority=1))
    lose(clients)
    lose(clients)
    backend.enqueue(a_job("good"))
    assert one(backend).envelope.payload == "good"
    [dead] = backend.list_messages()
    assert (dead.id, dead.reason, dead.crashes, dead.cause) == (poison, "crash-limit", 2, "lease expired")
    assert backend.reap(QUEUE, policy) == [Reaped(poison, QUEUE, 2, "lease expired", True)]


def test_a_second_crash_waits_for_its_back_off(clients: Clients) -> None:
    backend = clients.open()
    backend.reap(QUEUE, ReapPolicy(back_off=1000.0, back_off_cap=1000.0))
    backend.enqueue(a_job())
    lose(clients)
    lose(clients)
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert clients.counts() == (0, 1, 0, 0)
    assert 0 < clients.raw.stats_job(clients.raw.peek_delayed().id)["delay"] <= 1000


def test_a_wait_charges_too_and_hints_at_nothing_that_is_not_there(clients: Clients) -> None:
    backend = clients.open()
    backend.reap(QUEUE, ReapPolicy(max_crashes=1))
    backend.enqueue(a_job())
    lose(clients)
    lose(clients)
    assert backend.wait_any([QUEUE], 0.3) is None
    assert clients.counts() == (0, 0, 0, 1)


def test_a_dead_letter_that_somebody_kicked_is_buried_again(clients: Clients) -> None:
    backend = clients.open()
    backend.enqueue(a_job())
    assert backend.abandon(one(backend), "failed")
    assert clients.raw.kick(10) == 1
    assert clients.counts() == (1, 0, 0, 0)
    assert backend.fetch_many(QUEUE, limit=9) == []
    assert clients.counts() == (0, 0, 0, 1)
    assert from_bytes(clients.raw.peek_buried().body, 0)[0].reason == "failed"
