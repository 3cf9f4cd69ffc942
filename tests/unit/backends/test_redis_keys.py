"""What is kept under which name: the table in `jobpool_backends.redis.keyspace` is what an operator goes by."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from msgspec.structs import replace
from redis_rig import Rig, take
from support.jobs import QUEUE, a_job, at, new_lease, new_leases
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.values import MessageFilter, NewBatch
from jobpool.errors import ConfigurationError
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.results import Kept
from jobpool.message.settlement import Abandon, Ack, Forfeit, Settled
from jobpool_backends.redis import RedisBackend
from jobpool_backends.redis import keyspace as keys_module
from jobpool_backends.redis.keyspace import KeyNames


def documented() -> dict[str, str]:
    """Type by name, from the docstring."""
    types = {"sorted set": "zset"}
    rows = re.findall(r"^\| `([a-z]+)(?::…)?` \| ([a-z ]+) \|", keys_module.__doc__ or "", re.MULTILINE)
    return {name: types.get(kind, kind) for name, kind in rows}


def test_every_key_of_a_full_life_is_in_the_table_with_its_type(rig: Rig, threads: ThreadPoolExecutor) -> None:
    backend = rig.open(dead_max=1)
    given = [f"order-{number}" for number in range(6)]
    backend.enqueue_many([*(a_job(identifier=ident) for ident in given), a_job(scheduled_at=at(2e9 * 2))])
    leases = take(backend, 5)
    waiter = threads.submit(backend.wait_ended, [leases[0].id, given[5]], 0.5)
    wait_until(lambda: rig.call("EXISTS", rig.key("awaited")))
    kept = Ack(result=Kept(b"record", 60.0))
    backend.settle_many([(leases[0], kept), (leases[1], Abandon("failed", "boom")), (leases[2], Abandon("failed"))])
    backend.settle_many([(leases[3], Forfeit("SIGSEGV"))])
    waiter.result(10.0)
    backend.wait_ended([given[5]], 0.01)
    guards = Guards(key="order-17", holds=(Hold("queue"),), rates=(Rate("queue", 9),))
    assert backend.keys.begin_many([(leases[4], guards)])[0]
    backend.keys.first_run(QUEUE, "order-18")
    posts = [NewPost(f"post-{number}", True, b"hello", 60.0, 9.0 * (number == 3)) for number in range(4)]
    backend.claims.post(QUEUE, posts)
    backend.claims.claim(QUEUE, limit=3, ttl=60.0, grace=60.0)
    backend.enqueue(a_job(unique=True, idempotency_key="order-19"))
    backend.keys.put_records(QUEUE, {"pool-1": b"{}"}, 60.0)
    backend.keys.append_log(QUEUE, [("report", b"line")], 10)
    backend.batches.open(NewBatch("outer"))
    backend.batches.open(NewBatch("inner", "outer"))
    backend.enqueue(a_job(batch="outer"))
    table = documented()
    found = {name: name.removeprefix(f"{rig.prefix}:").removeprefix("{reports}:").split(":")[0] for name in rig.names()}
    assert {rig.call("TYPE", name).decode() for name in found} <= set(table.values())
    assert all(rig.call("TYPE", name).decode() == table[short] for name, short in found.items())
    assert set(table) - set(found.values()) <= {
        "outbox",
        "expired",
        "told",
    }  # a cluster's; of lives that ended; a waiter takes it


def test_keys_of_a_queue_are_in_one_slot_and_the_rest_in_the_namespace() -> None:
    keys = KeyNames("shop")
    assert keys.of("reports", ("ready", "ids")) == ("shop:{reports}:ready", "shop:ids")
    assert keys.shared("reports", "call:settle:c1") == "shop:call:settle:c1"
    assert keys.one("reports", "done:a{b}") == "shop:{reports}:done:a{b}"  # the first braces count


def test_nothing_is_left_of_a_message_but_the_memory_of_calls(rig: Rig, backend: RedisBackend) -> None:
    failing, crashing, released = new_leases(backend, 3)
    backend.nack(failing, error="boom")
    backend.forfeit(crashing, "SIGSEGV")
    backend.reap(QUEUE)
    backend.release(released)
    backend.settle_many([(lease, Ack()) for lease in take(backend, 3)])
    left = {name for name in rig.names() if ":call:" not in name}
    assert left == {rig.key("last"), rig.key("queues")}
    assert all(0 < rig.call("PTTL", name) <= 60_001 for name in rig.names() - left)


def test_nothing_is_left_of_a_guarded_message_but_what_expires(rig: Rig, backend: RedisBackend) -> None:
    backend.enqueue(a_job(unique=True, idempotency_key="order-17"))
    guards = Guards(key="order-17", keep=30.0, holds=(Hold("queue"),), rates=(Rate("queue", 9),))
    [lease] = take(backend)
    assert backend.keys.begin_many([(lease, guards)])[0]
    backend.ack(lease.guarded(guards))
    left = {name for name in rig.names() if rig.call("PTTL", name) < 0}
    assert left == {rig.key("last"), rig.key("queues")}
    assert max(rig.call("PTTL", name) for name in rig.names()) <= 120_002


def test_a_body_stands_there_as_it_was_signed_and_notes_can_be_read(rig: Rig, backend: RedisBackend) -> None:
    ident = backend.enqueue(a_job({"customer": "Zürich"}))
    [lease] = take(backend)
    backend.abandon(lease, "failed", 'ValueError: "no"\n\x00 \ud800')
    member, queue = rig.call("HGET", rig.key("ids"), ident).decode().split(" ")
    assert (queue, member[:3], len(member)) == (QUEUE, "005", 19)
    assert rig.call("HGET", rig.key("body"), member) == lease.body
    notes = orjson.loads(rig.call("HGET", rig.key("notes"), member))
    assert notes == {"reason": "failed", "error": 'ValueError: "no"\n\ufffd \\ud800'}
    record = rig.call("HGET", rig.key("record"), member).decode()
    assert re.fullmatch(rf"1 1 0 - \d{{16}} m{ident} report", record)


def test_a_leased_message_shows_its_holder(rig: Rig, backend: RedisBackend) -> None:
    lease = new_lease(backend, identifier="order-17", ttl=12.5)
    record = rig.call("HGET", rig.key("record"), rig.call("ZRANGE", rig.key("leased"), 0, 0)[0]).decode()
    assert re.fullmatch(rf"{lease.owner_token[:16]} 00000012500000 1 0 0 - \d{{16}} gorder-17 report", record)


SPACE = "pools"
OF_RECORDS = ("values", "names", "ends")


@pytest.mark.parametrize("evicted", sorted(documented()))
def test_a_key_that_redis_has_evicted_makes_no_reading_verb_fail_but_with_a_sentence(rig: Rig, evicted: str) -> None:
    backend = rig.open()
    backend.enqueue_many([a_job() for _ in range(3)])
    leased, nacked, dead = take(backend, 3)
    assert backend.nack(nacked, delay=100.0)
    assert backend.abandon(dead, "failed", "boom")
    backend.keys.put_records(QUEUE, {"pool-1": b"{}"}, 60.0)
    rig.call("DEL", rig.key(evicted))
    assert len(backend.keys.list_records(QUEUE)) == (evicted not in OF_RECORDS)
    backend.stats(QUEUE)
    backend.queues()
    for where in (MessageFilter(), MessageFilter(text="boom"), MessageFilter(handler="report")):
        backend.list_messages(where)
        backend.count(where)
    for lease in (nacked, dead):
        backend.inspect(lease.id)
    if evicted == "leased":
        with pytest.raises(ConfigurationError, match=r"Redis has lost keys of queue 'reports'.*noeviction"):
            backend.inspect(leased.id)
    else:
        backend.inspect(leased.id)


def listed(backend: QueueBackend, **options: object) -> list[str]:
    return [key for key, _ in backend.keys.list_records(SPACE, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["last", "done:order-17", "unique:order-17"])
def test_a_text_that_was_written_by_hand_counts_for_nothing(rig: Rig, backend: RedisBackend, name: str) -> None:
    for job in (a_job(), a_job(unique=True, idempotency_key="order-17")):
        rig.call("SET", rig.key(name), "by hand")
        backend.enqueue(job)
    rig.call("SET", rig.key(name), "by hand")
    guards = Guards(key="order-17")
    for lease in take(backend, 2):
        assert backend.keys.begin_many([(lease, guards)])[0]
        assert backend.settle_many([(replace(lease, guards=guards), Abandon("failed"))]) == [Settled.OK]
    assert backend.stats(QUEUE).dead == 2


def test_records_that_have_ended_are_removed_by_the_next_that_are_written(turned: Rig, backend: RedisBackend) -> None:
    backend.keys.put_records(SPACE, {f"pool-{number}": b"{}" for number in range(90)}, 10.0)
    backend.keys.put_records(SPACE, {"long": b"{}"}, 1000.0)
    turned.server.advance(10.0)
    assert listed(backend) == ["long"]
    assert [turned.holds(name, SPACE) for name in OF_RECORDS] == [91] * 3
    backend.keys.put_records(SPACE, {"new": b"{}"}, 10.0)
    assert [turned.holds(name, SPACE) for name in OF_RECORDS] == [2] * 3


def test_a_space_ends_with_its_last_record(rig: Rig, backend: RedisBackend) -> None:
    for ttl in (10.0, 100.0, 1.0):
        backend.keys.put_records(SPACE, {f"for-{ttl}": b"{}"}, ttl)
    assert all(99_000 < rig.call("PTTL", rig.key(name, SPACE)) <= 100_002 for name in OF_RECORDS)
    backend.keys.delete_records(SPACE, ["for-10.0", "for-100.0", "for-1.0"])
    assert rig.names() == set()


def test_many_large_records_come_in_several_answers(rig: Rig, backend: RedisBackend) -> None:
    records = {f"{number:03d}": bytes([number]) * 250_000 for number in range(90)}
    backend.keys.put_records(SPACE, records, 100.0)
    listed(backend, limit=1)  # so that the server knows the script
    before = rig.commands()
    assert dict(backend.keys.list_records(SPACE)) == records
    assert (rig.commands() - before)["evalsha"] == 3
    assert listed(backend, after="003", limit=50) == [f"{number:03d}" for number in range(4, 54)]
