"""Queues by themselves, as a cluster keeps them: no step touches keys of two."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from redis_rig import Rig, take
from support.jobs import QUEUE, a_job, at, new_leases, numbered

from jobpool.errors import AccessRefused
from jobpool.message.settlement import Ack, Move, Settled
from jobpool_backends.redis import RedisClusterBackend
from jobpool_backends.redis.records import read_entry


class Spread(RedisClusterBackend):
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.to_relay: list[Collection[str]] = []

    def _relay(self, queues: Collection[str]) -> None:
        self.to_relay.append(queues)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(kind=Spread) as rig:
        yield rig


def test_an_id_is_unique_in_its_queue(backend: RedisClusterBackend) -> None:
    backend.enqueue_many([a_job(identifier="a"), a_job(identifier="a", queue="mails"), a_job(identifier="a")])
    assert (backend.stats(QUEUE).pending, backend.stats("mails").pending) == (1, 1)
    assert backend.queues() == ["mails", QUEUE]


def test_messages_of_one_moment_in_two_queues_are_both_on_the_pages(rig: Rig, backend: RedisClusterBackend) -> None:
    for queue in ("one", "two", "three"):
        rig.call("SET", rig.key("last", queue), 5_000_000_000_000_000)  # so that all give the same sequences
        backend.enqueue_many(numbered(3, queue=queue))
    seen: list[str] = []
    after = None
    while page := backend.list_messages(after=after, limit=1):
        seen.append(page[0].id)
        after = page[0].cursor
    assert len(set(seen)) == len(seen) == 9


def test_follow_ups_of_the_same_queue_are_added_and_the_others_stand_in_its_outbox(rig: Rig) -> None:
    backend = rig.open()
    one, two = new_leases(backend, 2)
    backend.ack(two)
    due = at(4_000_000_000.125)
    follow_ups = (a_job("here"), a_job("there", queue="mails", priority=3, scheduled_at=due))
    assert backend.settle_many([(one, Ack(follow_ups)), (two, Ack(follow_ups))]) == [Settled.OK, Settled.NOT_IN_FLIGHT]
    assert isinstance(backend, Spread)
    assert backend.to_relay == [{QUEUE}]
    assert [lease.envelope.payload for lease in take(backend, 9)] == ["here"]
    assert backend.stats("mails").pending == 0
    [entry] = rig.call("LRANGE", rig.key("outbox"), 0, -1)
    message = read_entry(entry)
    assert (message.queue, message.priority, message.due, message.given) == ("mails", 3, 4_000_000_000.125, True)
    assert b'"there"' in message.body


def test_a_settlement_that_was_answered_stands_though_its_follow_ups_are_refused_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Collection[str]) -> None:
        raise AccessRefused("the node of the other queue does not allow this user what jobpool needs")

    with Rig(kind=RedisClusterBackend) as rig:
        backend = rig.open()
        assert isinstance(backend, RedisClusterBackend)
        backend.enqueue(a_job())
        monkeypatch.setattr(backend._enqueuer, "relay", refuse)
        assert backend.settle_many([(take(backend, 1)[0], Ack((a_job(queue="mails"),)))]) == [Settled.OK]


def test_a_moved_message_that_is_brought_twice_runs_once(rig: Rig, backend: RedisClusterBackend) -> None:
    backend.enqueue(a_job(identifier="order-17", scheduled_at=at(1_000.0)))
    [lease] = take(backend, 1)
    backend.settle_many([(lease, Move("mails"))])
    [entry] = rig.call("LRANGE", rig.key("outbox"), 0, -1)
    for _ in range(2):
        backend._enqueue([read_entry(entry)])
        for there in backend.fetch_many("mails", limit=9):
            assert (there.id, there.deliveries) == ("order-17", 2)
            backend.ack(there)
    assert backend.stats("mails").pending == 0


def test_a_queue_is_listed_again_when_it_was_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    rig.call("DEL", rig.keys.queues)
    backend.enqueue(a_job())
    assert backend.queues() == []  # for a minute
    monkeypatch.setattr(backend._enqueuer, "_listed", {QUEUE: 0.0})
    backend.enqueue(a_job())
    assert backend.queues() == [QUEUE]
