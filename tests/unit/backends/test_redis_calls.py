"""What the contract leaves open: steps over several queues, large calls, caps, damage, full memory."""

from __future__ import annotations

import pytest
from redis_rig import Rig, take
from support.claims import AT_ONCE
from support.jobs import QUEUE, a_job, at, new_leases, numbered

from jobpool.broker.values import MessageFilter, NewMessage, State, Verb
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.redis import RedisBackend, enqueue
from jobpool_backends.redis import leases as leases_module
from jobpool_backends.redis.keyspace import BULK


def test_sequences_go_on_when_the_clock_is_set_back(turned: Rig, backend: RedisBackend) -> None:
    now = turned.server.now()
    first = backend.enqueue_many(numbered(3))
    turned.server.turn_to(now - 3600.0)
    second = backend.enqueue_many(numbered(3))
    assert [lease.id for lease in take(backend, 9)] == first + second
    turned.server.turn_to(now)


def test_a_batch_of_several_scripts_answers_and_repeats_as_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MAX_LEASES_PER_SCRIPT", 10)
    backend = rig.open()
    leases = new_leases(backend, 25)
    assert all(backend.renew_many(leases, 20.0))
    backend.ack(leases[13])
    answers = backend.settle_many([(lease, Ack()) for lease in leases], call_id="c1")
    assert [place for place, answer in enumerate(answers) if answer is not Settled.OK] == [13]
    again = backend.settle_many([(lease, Ack()) for lease in leases], call_id="c1")
    assert [place for place, answer in enumerate(again) if answer is not Settled.ALREADY] == [13]


def test_follow_ups_of_a_batch_go_to_thousands_of_queues(rig: Rig) -> None:
    backend = rig.open(timeout=20.0)
    backend.enqueue_many(numbered(3))
    counts = [8100, 600, 600]
    brings = [Ack(tuple(a_job(queue=f"q{place}.{n}") for n in range(count))) for place, count in enumerate(counts)]
    batch = list(zip(take(backend, 3), brings, strict=True))
    assert backend.settle_many(batch, call_id="c1") == [Settled.OK] * 3
    assert backend.settle_many(batch, call_id="c1") == [Settled.ALREADY] * 3
    assert rig.holds("ids") == rig.holds("queues") - 1 == sum(counts)


def test_large_bodies_are_listed_whole_and_fetched_in_several_pieces_in_order(rig: Rig, backend: RedisBackend) -> None:
    known = backend.enqueue_many([a_job("x" * 900_000) for _ in range(14)])
    messages = backend.list_messages()
    assert [message.id for message in messages] == known
    assert all(len(message.body) > 900_000 for message in messages)
    fetched = take(backend, 14)
    assert 0 < len(fetched) < 14
    assert backend.stats(QUEUE).waiting == 14 - len(fetched)
    assert rig.holds("bell") == 1  # what is left is for whoever waits
    while more := take(backend, 14):
        fetched += more
    assert [lease.id for lease in fetched] == known


def test_too_many_jobs_in_one_call_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "MAX_MESSAGES_PER_CALL", 3)
    backend = rig.open()
    with pytest.raises(InvalidJob, match="at most 3"):
        backend.enqueue_many(numbered(4))
    assert backend.stats(QUEUE).pending == 0


def test_an_urgent_job_that_falls_due_after_thousands_comes_first(turned: Rig, backend: RedisBackend) -> None:
    soon, later = at(turned.server.now() + 5), at(turned.server.now() + 6)
    backend.enqueue_many(numbered(3000, scheduled_at=soon))
    urgent = backend.enqueue(a_job(priority=0, scheduled_at=later))
    turned.server.advance(6.0)
    assert [lease.id for lease in take(backend)] == [urgent]


def test_nothing_is_left_of_what_is_evicted(rig: Rig) -> None:
    backend = rig.open(dead_max=2)
    backend.enqueue_many([a_job(identifier=f"order-{number}") for number in range(5)])
    for lease in take(backend, 5):
        backend.abandon(lease, "failed", "boom")
    assert [rig.holds(name) for name in ("dead", "buried", "record", "body", "notes", "ids")] == [2] * 6


def test_a_message_that_moved_on_is_left_alone_by_a_bulk_verb(rig: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many(numbered(2))
    [lease] = take(backend)
    backend.abandon(lease, "failed")
    members = [rig.call("ZRANGE", rig.key(name), 0, 0)[0] for name in ("dead", "ready")]
    seen = [word for member in members for word in (member, rig.call("HGET", rig.key("record"), member))]
    backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RETRY)  # meanwhile, by somebody else
    take(backend, 2)
    for verb in Verb:
        assert backend._inspector._keys.run(BULK, [QUEUE], (verb.value, *seen)) == 0  # type: ignore[attr-defined]
    assert backend.stats(QUEUE).leased == 2


@pytest.mark.parametrize("lost", ["record", "body"])
def test_a_member_without_its_message_is_dropped_and_stops_nobody(rig: Rig, backend: RedisBackend, lost: str) -> None:
    _, known, last = backend.enqueue_many(numbered(3))
    ghost = rig.call("ZRANGE", rig.key("ready"), 0, 0)[0]
    rig.call("HDEL", rig.key(lost), ghost)
    leases = take(backend, 2)
    assert [lease.id for lease in leases] == [known]
    assert [lease.id for lease in take(backend, 2)] == [last]
    assert backend.stats(QUEUE).leased == 2
    assert rig.holds("ready") == 0
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=2, fetch_id="again")] == []


def test_a_lease_without_its_message_is_reaped_in_silence(turned: Rig, backend: RedisBackend) -> None:
    gone, kept = new_leases(backend, 2, ttl=1.0)
    turned.call("HDEL", turned.key("record"), str(gone.token))
    assert backend.ack(gone) is Settled.NOT_IN_FLIGHT
    assert backend.renew_many([gone], 5.0) == [None]
    turned.server.advance(1.0)
    assert [reaped.id for reaped in backend.reap(QUEUE, AT_ONCE)] == [kept.id]
    assert backend.stats(QUEUE).leased == 0


def test_a_server_that_was_flushed_is_an_empty_one(rig: Rig, backend: RedisBackend) -> None:
    lease, _ = new_leases(backend, 2)
    for name in rig.names():
        rig.call("DEL", name)
    assert backend.ack(lease) is Settled.NOT_IN_FLIGHT
    assert backend.queues() == []
    ident = backend.enqueue(a_job())
    assert [message.id for message in backend.list_messages()] == [ident]


@pytest.mark.parametrize("lost", ["ready", "record", "body"])
def test_jobs_that_a_foreign_value_kept_out_come_in_when_the_call_is_repeated(rig: Rig, lost: str) -> None:
    backend = rig.open()
    several = [a_job(number, identifier=f"id-{number}") for number in range(2)]
    plain = [NewMessage("0123456789abcdef", False, QUEUE, "report", 5, None, b"{}")]
    rig.call("SET", rig.key(lost), "foreign")
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="another program's value"):
            backend.enqueue_many(several)
        with pytest.raises(BackendUnavailable, match="another program's value"):
            backend._enqueue(plain)
    rig.call("DEL", rig.key(lost))
    for _ in range(2):
        backend.enqueue_many(several)
        backend._enqueue(plain)
    assert backend.stats(QUEUE).waiting >= 3
    assert {lease.id for lease in take(backend, 20)} == {"id-0", "id-1", plain[0].id}
    assert rig.holds("ids") == rig.holds("leased") == 3


@pytest.mark.parametrize("settlement", [Ack((a_job(queue="mails"),)), Move("mails", attempts=1)], ids=["ack", "move"])
def test_a_job_whose_follow_up_cannot_be_added_stays_leased(rig: Rig, settlement: Settlement) -> None:
    backend = rig.open()
    backend.enqueue(a_job(unique=True, idempotency_key="k"))
    [lease] = take(backend)
    rig.call("SET", rig.key("ready", "mails"), "foreign")
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="another program's value"):
            backend.settle_many([(lease, settlement)], call_id="c1")
    assert backend.stats(QUEUE).leased == 1
    rig.call("DEL", rig.key("ready", "mails"))
    assert backend.settle_many([(lease, settlement)], call_id="c1") == [Settled.OK]
    assert backend.stats(QUEUE).leased == 0
    assert len(take(backend, 5, queue="mails")) == rig.holds("ids") == 1


def test_with_its_memory_full_nothing_comes_in_and_all_that_is_there_can_be_worked_off(full: Rig) -> None:
    backend = full.open()
    backend.enqueue_many([*numbered(8), a_job("soon", scheduled_at=at(full.server.now() + 5))])
    backend.settle_many([(lease, Forfeit("SIGSEGV")) for lease in take(backend, 6)])
    full.call("CONFIG", "SET", "maxmemory", 1)
    full.server.advance(5.0)
    with pytest.raises(BackendUnavailable, match="maxmemory"):
        backend.enqueue_many([a_job("one"), a_job("other", queue="mails")])
    assert backend.queues() == [QUEUE]
    assert len(backend.reap(QUEUE, AT_ONCE)) == 6
    leases = take(backend, 9)
    assert len(leases) == 9
    assert all(backend.renew_many(leases, 20.0))
    guards = Guards(key="order-17", holds=(Hold("queue"),))
    assert backend.keys.begin_many([(leases[0], guards)])[0]
    verbs: list[Settlement] = [Ack(), Nack(5.0, "boom"), Abandon("failed"), Release(), Release(60.0)]
    answers = backend.settle_many([(leases[0].guarded(guards), Ack()), *zip(leases[1:], verbs[1:], strict=False)])
    assert backend.keys.begin_many([(leases[5], guards)])[0].answer is Begin.DONE
    assert backend.keys.take(QUEUE, Rate("queue", 9), "a") == 0.0
    assert answers == [Settled.OK] * len(verbs)
    assert backend.forfeit(leases[5], "SIGSEGV") is Settled.OK
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RETRY) == 1
    assert backend.bulk(MessageFilter(), Verb.DELETE) > 0
