"""Batches, where the contract leaves the how open: what stands in the server, and what they cost."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from redis_rig import Rig, take
from support.claims import claim, ids
from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.values import MessageFilter, NewBatch, ReapPolicy, Verb
from jobpool.errors import InvalidJob, Unsupported
from jobpool.message.batches import BATCH_MEMORY_S
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Move
from jobpool_backends.redis import RedisBackend, RedisClusterBackend

BATCH = "import of May"
"""A name with spaces."""


def opened(backend: RedisBackend, **callback: object) -> None:
    done = backend.pack(JobDefinition("finish", queue="done", **{"identifier": "done", **callback}))  # type: ignore[arg-type]
    backend.batches.open(NewBatch(BATCH, on_done=done))


@pytest.mark.parametrize("ident", [None, "order-17"])
def test_a_member_stands_beside_its_queue_until_it_ends(rig: Rig, backend: RedisBackend, ident: str | None) -> None:
    opened(backend)
    known = backend.enqueue(a_job(batch=BATCH, identifier=ident))
    [member] = rig.call("ZRANGE", rig.key("ready"), 0, -1)
    assert rig.call("HGETALL", rig.key("batched")) == [member, f"{known} {BATCH}".encode()]
    assert rig.call("ZRANGE", rig.keys.shared("", f"members:{BATCH}"), 0, -1) == [known.encode()]
    [lease] = take(backend)
    backend.settle_many([(lease, Move("mails"))])
    assert rig.holds("batched") == 0
    assert rig.holds("batched", "mails") == 1
    [lease] = take(backend, queue="mails")
    backend.ack(lease)
    assert rig.holds("batched", "mails") == 0
    assert rig.call("EXISTS", rig.keys.shared("", f"members:{BATCH}")) == 0
    assert rig.call("PTTL", rig.keys.shared("", f"batch:{BATCH}")) == -1


def test_what_is_left_after_its_end_expires(rig: Rig, backend: RedisBackend) -> None:
    opened(backend)
    backend.batches.open(NewBatch("inner", BATCH))
    for batch in (BATCH, "inner"):
        backend.enqueue_many(numbered(2, batch=batch))
        backend.batches.close(batch)
    backend.settle_many([(lease, Ack()) for lease in [*take(backend, 4)]])
    backend.settle_many([(lease, Ack()) for lease in take(backend, queue="done")])
    left = {name for name in rig.names() if rig.call("PTTL", name) < 0}
    assert left == {rig.key(name) for name in ("last", "queues", "ended")}
    for name in ("batch", "nested"):
        lasts = rig.call("PTTL", rig.keys.shared("", f"{name}:{BATCH}")) / 1000
        assert BATCH_MEMORY_S - 60 < lasts <= BATCH_MEMORY_S
    assert rig.call("HMGET", rig.keys.shared("", f"batch:{BATCH}"), "on_done", "on_success") == [None, None]


@pytest.mark.parametrize("way", ["claim", "limit", "pop", "reap"])
def test_ends_that_are_not_settlements_are_counted_and_wake_a_waiter_of_the_callback(rig: Rig, way: str) -> None:
    backend = rig.open()
    opened(backend)
    ident = backend.enqueue(a_job(batch=BATCH))
    backend.batches.close(BATCH)
    if way == "claim":
        backend.claims.delete_many(QUEUE, [ident], claim(backend).id)
    elif way == "limit":
        backend.claims.release(QUEUE, claim(backend).id)
        assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, max_claims=1) is None
    elif way == "pop":
        assert ids(backend.claims.pop(QUEUE, 1)) == [ident]
    else:
        for _ in range(2):
            backend.forfeit(take(backend)[0], "SIGSEGV")
            backend.reap(QUEUE, ReapPolicy(max_crashes=1, back_off=0.0))
    status = backend.batches.get(BATCH)
    assert status is not None
    assert (status.failed, status.cancelled) == ((1, 0) if way in ("limit", "reap") else (0, 1))
    assert status.failed_ids == (ident,) * status.failed
    assert backend.wait_any(["done"], 0.0) == "done"
    assert rig.holds("bell", "done") == 1
    assert [lease.id for lease in take(backend, 5, "done")] == ["done"]


def test_a_batch_whose_key_is_gone_ends_nobodys_step(rig: Rig, backend: RedisBackend) -> None:
    """As when somebody removed it by hand."""
    opened(backend)
    backend.enqueue_many(numbered(2, batch=BATCH))
    rig.call("DEL", rig.keys.shared("", f"batch:{BATCH}"))
    assert all(backend.settle_many([(lease, Ack()) for lease in take(backend, 2)]))
    assert backend.batches.get(BATCH) is None
    with pytest.raises(InvalidJob, match="is not open"):
        backend.enqueue(a_job(batch=BATCH))


def test_members_cost_a_few_commands_a_call_and_none_each_but_a_look_for_keys(rig: Rig, backend: RedisBackend) -> None:
    opened(backend)
    backend.enqueue_many(numbered(10, batch=BATCH))
    backend.settle_many([(lease, Ack()) for lease in take(backend, 10)])
    costs = []
    for count in (10, 100):
        jobs = [a_job(number, batch=BATCH) for number in range(count)]
        added = rig.spent(partial(backend.enqueue_many, jobs))
        plain = rig.spent(partial(backend.enqueue_many, numbered(count, priority=9)))
        acks = [(lease, Ack()) for lease in take(backend, count)]
        settled = rig.spent(partial(backend.settle_many, acks))
        costs.append((added - plain, settled))
        backend.bulk(MessageFilter(), Verb.DELETE)
    (few, few_settled), (many, many_settled) = costs
    assert many - few == Counter(exists=90)
    assert few["exists"] <= 11
    assert many_settled == few_settled
    assert many_settled.total() < 25


def test_others_pay_one_look_while_there_are_members(rig: Rig, backend: RedisBackend) -> None:
    """In a queue without members nothing is added; in one with members, a look for a call."""
    opened(backend)

    def work() -> None:
        backend.enqueue_many([a_job(number, priority=1) for number in range(20)])
        assert all(backend.settle_many([(lease, Ack()) for lease in take(backend, 20)]))

    backend.enqueue(a_job(priority=9))
    work()
    before = rig.spent(work)
    backend.enqueue_many(numbered(50, queue="mails", batch=BATCH))
    assert rig.spent(work) == before
    backend.enqueue_many(numbered(50, priority=9, batch=BATCH))
    assert rig.spent(work) - before == Counter(exists=1, hmget=1)


def test_where_queues_are_spread_a_member_is_refused_with_a_sentence() -> None:
    with Rig(kind=RedisClusterBackend) as rig:
        backend = rig.open()
        for work in (
            lambda: backend.batches,
            lambda: backend.enqueue(a_job(batch=BATCH)),
            lambda: backend.enqueue_many([a_job(), a_job(batch=BATCH)]),
        ):
            with pytest.raises(Unsupported, match=r"cannot count the jobs of a batch.*redis without a cluster"):
                work()
        lease = new_lease(backend)
        with pytest.raises(Unsupported, match="without a cluster"):
            backend.settle_many([(lease, Abandon("failed", follow_ups=(a_job(batch=BATCH),)))])
        assert backend.stats(QUEUE).leased == 1
        assert backend.stats(QUEUE).pending == 1
