"""Unique keys, where the contract leaves the how open: what stands in the server, and what damage does to it."""

from __future__ import annotations

import pytest
from redis_rig import Rig, take
from support.claims import found
from support.jobs import QUEUE, a_job, new_lease, numbered, unique

from jobpool.broker.values import MessageFilter, NewMessage, ReapPolicy, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Move, Settled, Settlement
from jobpool_backends.redis import RedisBackend
from jobpool_backends.redis.records import read_entry, write_entry


def left(rig: Rig) -> tuple[bool, bool]:
    """Whether there is a record of the key, and anything in the table of keys."""
    return bool(rig.call("EXISTS", rig.key("unique:order-17"))), bool(rig.call("EXISTS", rig.key("keyed")))


@pytest.mark.parametrize("ident", [None, "order-17-a"])
def test_the_letter_of_a_record_says_that_it_has_a_key(rig: Rig, backend: RedisBackend, ident: str | None) -> None:
    known = backend.enqueue(unique(identifier=ident))
    [member] = rig.call("ZRANGE", rig.key("ready"), 0, -1)
    record = rig.call("HGET", rig.key("record"), member).decode()
    assert record.endswith(f" {'w' if ident else 'u'}{known} report")
    assert rig.call("HGET", rig.key("keyed"), member) == b"order-17"
    assert rig.call("GET", rig.key("unique:order-17")).decode() == "9" * 16 + known
    assert rig.call("PTTL", rig.key("unique:order-17")) == -1
    [lease] = take(backend)
    assert (lease.id, lease.token) == (known, member.decode() + ("w" if ident else "u"))
    message = found(backend, known)
    assert message.handler == "report"


@pytest.mark.parametrize("way", ["deleted", "evicted", "evicted by a reap", "moved"])
def test_nothing_is_left_of_what_is_deleted_evicted_or_moved(rig: Rig, way: str) -> None:
    backend = rig.open(dead_max=1)
    known = backend.enqueue(unique())
    if way == "deleted":
        backend.bulk(MessageFilter(), Verb.DELETE)
    elif way == "evicted by a reap":
        for _ in range(2):
            backend.enqueue_many(numbered(1))
            for lease in take(backend, 2):
                backend.forfeit(lease, "SIGSEGV")
            backend.reap(QUEUE, ReapPolicy(max_crashes=1, back_off=0.0))
    else:
        backend.enqueue_many(numbered(1))
        first, second = take(backend, 2)
        settlement = Move("mails") if way == "moved" else Abandon("failed")
        assert backend.settle_many([(first, settlement)]) == [Settled.OK]
        backend.abandon(second, "failed")
    assert left(rig) == (False, False)
    assert rig.call("EXISTS", rig.key("keyed", "mails")) == 0
    assert backend.enqueue(unique()) != known


def test_an_evicted_one_gives_back_its_own_key_and_no_other(rig: Rig) -> None:
    """As when its record was lost, and another message has the key since."""
    backend = rig.open(dead_max=1)
    backend.enqueue(unique())
    backend.abandon(take(backend)[0], "failed")
    rig.call("DEL", rig.key("unique:order-17"))
    other = backend.enqueue(unique())
    backend.enqueue_many(numbered(1))
    backend.settle_many([(lease, Abandon("failed")) for lease in take(backend, 2)[1:]])
    assert backend.evicted(QUEUE) == 1
    assert backend.enqueue(unique()) == other


def test_a_key_whose_message_was_removed_by_hand_is_free(rig: Rig, backend: RedisBackend) -> None:
    lost = backend.enqueue(unique())
    for name in ("ids", "record", "body", "ready"):
        rig.call("DEL", rig.key(name))
    assert backend.enqueue(unique()) != lost


def test_unique_jobs_of_many_queues_are_added_in_one_step(rig: Rig, backend: RedisBackend) -> None:
    first = backend.enqueue(unique(queue="q1"))
    before = rig.commands()
    ids = backend.enqueue_many([unique(queue=f"q{number % 3}") for number in range(9)])
    assert (rig.commands() - before)["evalsha"] == 1
    assert ids[1] == first
    assert ids == ids[:3] * 3
    assert len(set(ids)) == 3


MOVED = NewMessage(
    "id-1", True, QUEUE, "make a report", 5, None, b'{"a":\n"\x00\xff"}', None, 3, 2, 7, 'ValueError: "no"\n', "SIGSEGV"
)


def test_an_entry_of_the_outbox_carries_all_of_its_message() -> None:
    for message in [
        MOVED,
        *[NewMessage("id-1", True, QUEUE, "report", 255, due, b'{"a":\n"\x00\xff"}') for due in (None, 0.0)],
        NewMessage("id-1", True, QUEUE, "report", 5, 1_700_000_000.000001, b"{}", "order-17"),
        NewMessage("id-1", True, QUEUE, "report", 5, None, b"{}", 'a "key" \u2713', deliveries=1),
    ]:
        assert read_entry(write_entry(message)) == message, message


def test_entries_of_plain_follow_ups_have_the_form_that_older_pools_read() -> None:
    plain = NewMessage("id-1", True, QUEUE, "make a report", 5, 12.5, b'{"a":1}')
    assert write_entry(plain) == b'id-1 reports 5 12.5 make a report\n{"a":1}'
    assert read_entry(b'id-1 reports 5  make a report\n{"a":1}') == NewMessage(
        "id-1", True, QUEUE, "make a report", 5, None, b'{"a":1}'
    )


def test_what_utf_8_cannot_carry_is_written_out_on_the_way(backend: RedisBackend) -> None:
    lease = new_lease(backend, identifier="order-17")
    assert backend.settle_many([(lease, Move("mails", error="no \ud800", cause="\udfff"))]) == [Settled.OK]
    message = found(backend, "order-17")
    assert (message.queue, message.last_error, message.cause) == ("mails", "no \\ud800", "\\udfff")


@pytest.mark.parametrize("spread", [False, True])
def test_a_follow_up_with_the_id_of_a_message_that_moves_is_left_out(spread: bool) -> None:
    """Whichever comes first in the call: the id is known all the time."""
    with Rig(kind=Spread if spread else RedisBackend) as rig:
        backend = rig.open()
        backend.enqueue_many([a_job("first", identifier="order-16"), a_job("moves", identifier="order-17")])
        first, second = take(backend, 2)
        assert backend.nack(second, error="boom")
        [second] = take(backend)
        follow_up = a_job("follow-up", identifier="order-17", queue="mails")
        batch: list[tuple[JobLease, Settlement]] = [(first, Ack((follow_up,))), (second, Move("mails"))]
        assert backend.settle_many(batch) == [Settled.OK] * 2
        entries = [read_entry(entry) for entry in rig.call("LRANGE", rig.key("outbox"), 0, -1)]
        assert [entry.last_error for entry in entries] == (["boom", None] if spread else [])
        if spread:
            backend._enqueuer.add(entries)  # as a relay does
        assert [lease.envelope.payload for lease in take(backend, 9, "mails")] == ["moves"]


class Spread(RedisBackend):
    """Keeps queues apart, as a cluster does, and brings nothing on its way."""

    spread = True
