"""Claims in Redis: what stands in the server, what damage does to it, and what happens in the moments between."""

from __future__ import annotations

import re

import pytest
from redis_rig import Rig, take
from support.claims import AT_ONCE, a_post, bodies, claim, found, ids, nothing_to_claim, post
from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import BackendUnavailable, ClaimNotFound
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.redis import RedisBackend

ID = "0123456789abcdef" * 2


def record(rig: Rig, ident: str) -> str:
    member = rig.call("HGET", rig.key("ids"), ident).decode().split(" ")[0]
    return str(rig.call("HGET", rig.key("record"), member).decode())


def sizes(rig: Rig, *names: str) -> list[int]:
    return [rig.holds(name) for name in names]


@pytest.mark.parametrize(("ident", "letter"), [(None, "p"), ("mine", "q")])
def test_the_record_of_a_post_is_that_of_a_job_without_a_handler(rig: Rig, ident: str | None, letter: str) -> None:
    backend = rig.open()
    [known] = backend.claims.post(QUEUE, [a_post(ident=ident)])
    assert re.fullmatch(rf"0 0 0 - \d{{16}} {letter}{known} ", record(rig, known))
    [ending] = post(backend, life=60.0)
    assert re.fullmatch(rf"0 0 0 - \d{{16}} p{ending} \n0 \d{{16}} -", record(rig, ending))
    assert sizes(rig, "posts", "lives", "ready") == [2, 1, 0]


def test_the_record_of_a_job_tells_of_claims_only_when_it_was_claimed(rig: Rig, backend: RedisBackend) -> None:
    ident = backend.enqueue(a_job(identifier="mine"))
    plain = record(rig, ident)
    assert re.fullmatch(r"0 0 0 - \d{16} gmine report", plain)
    claim(backend, claim_id=ID)
    assert record(rig, ident) == f"1{plain[1:]}\n1 - {ID}"
    backend.claims.release(QUEUE, ID)
    assert record(rig, ident) == f"1{plain[1:]}\n1 - -"
    [lease] = take(backend)
    backend.nack(lease, delay=0.0, error="boom")
    assert record(rig, ident).endswith(" gmine report\n1 - -")
    backend.abandon(take(backend)[0], "hopeless")
    assert (found(backend, ident).handler, found(backend, ident).claims) == ("report", 1)
    backend.bulk(MessageFilter(), Verb.RETRY)
    assert record(rig, ident).endswith(" gmine report")


def test_nothing_is_left_of_claims_and_posts_when_they_are_done(turned: Rig, backend: RedisBackend) -> None:
    known = post(backend, b"0", b"1", life=100.0) + backend.enqueue_many(numbered(1))
    post(backend, b"delayed", b"delayed", life=200.0, delay=50.0)
    held = claim(backend, ttl=60.0)
    backend.claims.delete_many(QUEUE, known, held.id)
    turned.server.advance(60.0)
    [first] = backend.claims.pop(QUEUE, 1)
    backend.claims.delete_many(QUEUE, [message.id for message in backend.list_messages()])
    assert first.body == b"delayed"
    left = {name for name in turned.names() if ":call:" not in name}
    assert left == {turned.key(name) for name in ("last", "queues", "bell")}  # which the next fetch takes away


def test_what_has_ended_leaves_a_number_and_the_ids_that_were_given(turned: Rig, backend: RedisBackend) -> None:
    backend.claims.post(QUEUE, [a_post(ident="mine", life=60.0), a_post(life=60.0)])
    turned.server.advance(300.0)
    assert backend.claims.stats(QUEUE).expired == 2
    assert {name for name in turned.names() if ":call:" not in name} == {
        turned.key(name) for name in ("last", "queues", "expired", "ended")
    }
    until = float(turned.call("ZSCORE", turned.key("ended"), "mine"))
    assert until == pytest.approx((turned.server.now() - 240.0 + 600.0) * 1e6, abs=1.0)  # since its end, not since now


def test_a_late_settlement_is_told_how_things_are(turned: Rig, backend: RedisBackend) -> None:
    late = new_lease(backend, ttl=1.0)
    turned.server.advance(1.0)
    backend.reap(QUEUE, AT_ONCE)
    claim(backend, ttl=60.0)
    assert backend.settle_many([(late, Ack())], call_id="while it holds") == [Settled.NOT_OWNER]
    turned.server.advance(60.0)
    assert backend.settle_many([(late, Ack())], call_id="when it has ended") == [Settled.EXPIRED]
    backend.reap(QUEUE, AT_ONCE)
    assert backend.settle_many([(late, Ack())], call_id="when it is free") == [Settled.NOT_IN_FLIGHT]
    assert backend.stats(QUEUE).waiting == 1


def test_a_bulk_deletes_what_an_ended_claim_held_though_nobody_has_swept(turned: Rig, backend: RedisBackend) -> None:
    known = [*post(backend, b"0", life=500.0), backend.enqueue(a_job())]
    claim(backend, ttl=60.0)
    turned.server.advance(60.0)
    assert backend.bulk(MessageFilter(ids=tuple(known)), Verb.DELETE) == 2  # by id: no list, so no sweep
    assert turned.holds("checkouts") == 1
    assert backend.reap(QUEUE) == []
    assert sizes(turned, "checkouts", "posts", "ready", "claimed", "postsclaimed", "lives", "record") == [0] * 7


def test_a_free_message_is_found_behind_any_number_that_have_ended(turned: Rig, backend: RedisBackend) -> None:
    """One script looks at some 4,000; what it saw is gone, and the next one goes on."""
    assert backend.claims.pop(QUEUE, 5) == []  # a server that does not know the script yet is asked twice
    backend.claims.post(QUEUE, [a_post(life=60.0) for _ in range(9000)])
    [behind] = post(backend, b"behind")
    turned.server.advance(60.0)
    scripts = turned.commands()["evalsha"] + turned.commands()["eval"]
    assert ids(backend.claims.pop(QUEUE, 5)) == [behind]
    assert turned.commands()["evalsha"] + turned.commands()["eval"] - scripts == 3
    assert backend.claims.stats(QUEUE).expired == 9000


def test_a_thousand_at_most_die_in_one_call(rig: Rig, backend: RedisBackend) -> None:
    post(backend, *(b"%d" % number for number in range(1010)))
    for member in rig.call("ZRANGE", rig.key("posts"), 0, -1):
        stored = rig.call("HGET", rig.key("record"), member)
        rig.call("HSET", rig.key("record"), member, stored + b"\n3 - -")
    for dead in (1000, 1010):
        assert backend.claims.claim(QUEUE, limit=5, ttl=60.0, grace=60.0, max_claims=3) is None
        assert backend.stats(QUEUE).dead == dead


@pytest.mark.parametrize("way", ["reap", "stats"])
def test_many_claims_that_ended_are_freed_by_the_thousand(turned: Rig, backend: RedisBackend, way: str) -> None:
    backend.enqueue_many(numbered(1100))
    for _ in range(55):
        claim(backend, 20, ttl=60.0)
    turned.server.advance(60.0)
    for free in (1000, 1100):
        if way == "reap":
            assert backend.reap(QUEUE) == []
        else:
            backend.claims.stats(QUEUE)
        assert turned.holds("ready") == free
    assert sizes(turned, "claims", "claimids", "checkouts", "claimed") == [0] * 4


def test_what_a_reap_frees_counts_toward_its_thousand(turned: Rig, backend: RedisBackend) -> None:
    backend.enqueue_many(numbered(500))
    take(backend, 500, ttl=1.0)
    post(backend, *(b"%d" % number for number in range(400)), life=60.0)
    backend.enqueue_many(numbered(400))
    for _ in range(40):
        claim(backend, 20, ttl=60.0)
    turned.server.advance(60.0)
    assert len(backend.reap(QUEUE, AT_ONCE)) == 500
    assert turned.holds("claimed") + turned.holds("postsclaimed") == 300
    assert backend.reap(QUEUE, AT_ONCE) == []
    assert sizes(turned, "claimed", "postsclaimed", "posts", "lives", "ready") == [0, 0, 400, 400, 900]
    turned.server.advance(60.0)
    assert backend.reap(QUEUE, AT_ONCE) == []
    assert sizes(turned, "posts", "lives", "ready") == [0, 0, 900]


def test_claims_are_listed_behind_a_page_of_ended_ones(turned: Rig, backend: RedisBackend) -> None:
    """Those of which nobody has noticed the end: more than a script looks at."""
    post(backend, b"0", b"1")
    claim(backend, 1, ttl=60.0, claim_id="f" * 32)
    names = [f"{number:032x}" for number in range(1500)]
    [text] = turned.call("HVALS", turned.key("checkouts"))
    ended = b"%016d" % (turned.server.now() * 1e6 - 1) + text[16:64]
    turned.call("HSET", turned.key("checkouts"), *(word for name in names for word in (name, ended)))
    turned.call("ZADD", turned.key("claimids"), *(word for name in names for word in (0, name)))
    assert ids(backend.claims.list_claims(QUEUE, limit=5)) == ["f" * 32]
    assert backend.claims.list_claims(QUEUE, after="f" * 32) == []


@pytest.mark.parametrize("size", [2**20, 2**20 - 1])
def test_a_claim_of_large_messages_gets_fewer(backend: RedisBackend, size: int) -> None:
    known = post(backend, *([b"x" * size] * 10), b"small")
    first = claim(backend, 20)
    assert len(first.messages) in (4, 5)
    assert sum(map(len, bodies(first.messages))) >= 4 * 2**20 - 4
    popped = backend.claims.pop(QUEUE, 3)
    assert ids(first.messages) + ids(popped) == known[: len(first.messages) + 3]
    backend.claims.release(QUEUE, first.id)
    assert ids(backend.claims.list_free(QUEUE))[-1] == known[-1]


def test_a_member_without_a_message_is_in_nobodys_way(rig: Rig, backend: RedisBackend) -> None:
    known = [*post(backend, b"0", b"1"), backend.enqueue(a_job()), *post(backend, b"2")]
    for ident, name in ((known[0], "record"), (known[1], "body"), (known[2], "record")):
        member = rig.call("HGET", rig.key("ids"), ident).decode().split(" ")[0]
        rig.call("HDEL", rig.key(name), member)
    held = claim(backend)
    assert ids(held.messages) == known[3:]
    assert sizes(rig, "posts", "ready") == [0, 0]
    rig.call("DEL", rig.key("record"))
    assert backend.claims.get(QUEUE, held.id).messages == ()
    assert backend.claims.renew(QUEUE, held.id, ttl=60.0).messages == ()
    assert backend.claims.delete_many(QUEUE, known, held.id) == [Deleted.DONE] * 4
    assert backend.claims.release(QUEUE, held.id) == 0


def test_a_queue_that_was_thrown_away_has_no_claims(rig: Rig, backend: RedisBackend) -> None:
    known = post(backend, b"0", b"1")
    held = claim(backend, 1)
    for name in rig.names():
        rig.call("DEL", name)
    with pytest.raises(ClaimNotFound):
        backend.claims.delete_many(QUEUE, known, held.id)
    assert backend.claims.release(QUEUE, held.id) == 0
    assert nothing_to_claim(backend)
    assert backend.queues() == []


def test_with_its_memory_full_nothing_is_posted_and_all_that_is_there_can_be_worked_off(full: Rig) -> None:
    backend = full.open()
    backend.claims.post(QUEUE, [a_post(ident=ident, life=1000.0) for ident in "abcdef"])
    backend.claims.post(QUEUE, [a_post(ident="soon", delay=5.0)])
    backend.enqueue_many(numbered(2))
    ended = claim(backend, 1, ttl=60.0)
    full.call("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(BackendUnavailable, match="maxmemory"):
        post(backend, b"more")
    full.server.advance(60.0)
    held = claim(backend, 4, ttl=100.0, grace=1000.0)
    assert ids(held.messages) == [*ids(ended.messages), "b", "c", "d"]
    assert backend.claims.renew(QUEUE, held.id, ttl=2000.0).count == 4
    assert backend.claims.delete_many(QUEUE, ["b"], held.id) == [Deleted.DONE]
    assert backend.claims.release(QUEUE, held.id) == 3
    assert claim(backend, 1, max_claims=1).messages[0].id == "e"
    assert backend.stats(QUEUE).dead == 3
    assert len(backend.claims.pop(QUEUE, 2)) == 2
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.RESUME) == 3
    full.server.advance(2000.0)
    assert backend.claims.stats(QUEUE).expired == 1
    assert backend.claims.delete_many(QUEUE, ["a", "c", "d"]) == [Deleted.DONE] * 3


def test_a_store_that_knows_nothing_of_claims_can_be_claimed_from(rig: Rig) -> None:
    """Its records, byte for byte, and none of the keys that are new."""
    stamp = int(rig.call("TIME")[0]) * 1_000_000
    for number, available in enumerate(["-", str(stamp), "-"]):
        member, ident = f"005{stamp + number:016d}", f"{number:016x}"
        rig.call("HSET", rig.key("ids"), ident, f"{member} {QUEUE}")
        text = f"{number} 1 2 {available} {stamp + number} m{ident} make a report"
        rig.call("HSET", rig.key("record"), member, text)
        rig.call("HSET", rig.key("body"), member, b"{}")
        rig.call("ZADD", rig.key("ready"), 0, member)
    rig.call("SADD", rig.key("queues"), QUEUE)
    backend = rig.open()
    held = claim(backend, 2)
    assert [(message.handler, message.claims) for message in held.messages] == [("make a report", 1)] * 2
    assert backend.claims.delete_many(QUEUE, [held.messages[0].id], held.id) == [Deleted.DONE]
    backend.claims.release(QUEUE, held.id)
    leases = take(backend, 5)
    assert [(lease.attempts, lease.crashes, lease.deliveries) for lease in leases] == [(1, 2, 3), (1, 2, 3)]
    assert [message.handler for message in backend.list_messages()] == ["make a report"] * 2
    assert all(backend.settle_many([(lease, Ack()) for lease in leases]))
    assert {name for name in rig.names() if ":call:" not in name} == {rig.key("queues")}
