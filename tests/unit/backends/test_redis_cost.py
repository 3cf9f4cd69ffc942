"""What a call costs does not grow with what else is there: the commands that it runs, and how much they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis_rig import Rig, take
from support.claims import a_post, claim
from support.jobs import QUEUE, a_job, at, new_leases, numbered

from jobpool.broker.claim_store import Deleted
from jobpool.broker.tracking import RUNNING_SPACE, statuses
from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Nack
from jobpool_backends.redis import RedisBackend
from jobpool_backends.redis.enqueue import messages_words
from jobpool_backends.redis.leases import settle_words

FEW, MANY = 300, 2400

Work = Callable[[RedisBackend], object]


def fill(backend: RedisBackend, count: int, state: State) -> None:
    """So many messages in this state, behind those that a test works on."""
    due = at(4e9) if state is State.DELAYED else None
    first = 0 if state is State.DEAD else 9
    backend.enqueue_many([a_job("x", handler="bulk", priority=first, scheduled_at=due) for _ in range(count)])
    if state is State.DEAD:
        while leases := take(backend, 1000):
            backend.settle_many([(lease, Abandon("failed")) for lease in leases])


def fetch_and_ack(backend: RedisBackend) -> None:
    leases = take(backend, 50)
    assert len(leases) == 50
    assert all(backend.settle_many([(lease, Ack()) for lease in leases]))


def fetch_and_nack(backend: RedisBackend) -> None:
    assert all(backend.settle_many([(lease, Nack(60.0, "boom")) for lease in take(backend, 50)]))


def fetch_and_abandon(backend: RedisBackend) -> None:
    assert all(backend.settle_many([(lease, Abandon("x", "boom")) for lease in take(backend, 50)]))


def fetch_and_reap(backend: RedisBackend) -> None:
    for lease in take(backend, 5):
        backend.forfeit(lease, "SIGSEGV")
    assert len(backend.reap(QUEUE, ReapPolicy(back_off=0.0))) == 5


def look(backend: RedisBackend) -> None:
    backend.stats(QUEUE)
    backend.wait_any([QUEUE], 0.0)
    assert len(backend.list_messages(limit=50)) == 50
    assert backend.count(MessageFilter(queue=QUEUE), cap=10**9) > FEW


def tend(backend: RedisBackend) -> None:
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE, limit=50) == 50


WORK = [fetch_and_ack, fetch_and_nack, fetch_and_abandon, fetch_and_reap, look, tend]


@pytest.mark.parametrize("state", [State.WAITING, State.DELAYED, State.DEAD])
@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
def test_the_commands_are_the_same_among_few_and_among_many(work: Work, state: State) -> None:
    few, many = (cost(partial(fill, count=count, state=state), enqueue_some, work) for count in (FEW, MANY))
    assert few == many


def enqueue_some(backend: RedisBackend) -> None:
    backend.enqueue_many(numbered(50))


def cost(fill: Work, add: Work, work: Work) -> Counter[str]:
    """Of `work` on what `add` adds to what `fill` has put there."""
    with Rig() as rig:
        backend = rig.open()
        fill(backend)
        for _ in range(2):  # the server knows the scripts the second time
            add(backend)
            spent = rig.spent(partial(work, backend))
        return spent


def test_a_short_page_of_what_is_seldom_found_is_looked_for_in_large_pieces(rig: Rig, backend: RedisBackend) -> None:
    fill(backend, MANY, State.WAITING)
    last = backend.enqueue(a_job("needle", priority=9))
    found: list[str] = []
    page = MessageFilter(text="needle")
    spent = rig.spent(lambda: found.extend(message.id for message in backend.list_messages(page, limit=1)))
    assert found == [last]
    assert spent["evalsha"] < MANY / 50


PLAIN = {
    "enqueue one": Counter(evalsha=1, time=1, hmget=1, hset=3, zadd=1, sadd=1, exists=1, rpush=1, set=1),
    "enqueue": Counter(evalsha=1, time=1, get=1, hmget=1, hset=3, zadd=1, sadd=1, exists=1, rpush=1, set=1),
    "fetch": Counter(evalsha=1, time=1, get=1, zrange=3, zremrangebyrank=2, hmget=2, zadd=2, hset=1)
    + Counter({"hstrlen": 20, "set": 1, "exists": 1, "del": 1}),
    "ack": Counter(
        evalsha=1, time=1, exists=2, zmscore=1, hmget=1, zrem=1, hdel=3, set=1
    ),  # exists: of the call, and of any members of batches; of any notes
    "ack with more": Counter(evalsha=1, time=1, get=1, exists=2, zmscore=1, hmget=1, zrem=2, zadd=1, hdel=3, set=1),
    "reap": Counter(evalsha=1, time=1, zrange=1, zcount=1, exists=1),  # are there any claims?
}


def test_plain_jobs_run_the_commands_that_they_always_did(rig: Rig, backend: RedisBackend) -> None:
    """Nothing of guards, unique keys and moves is sent or done for them."""
    fetch_and_ack_some(backend)
    backend.reap(QUEUE)
    assert rig.spent(lambda: backend.enqueue_many(numbered(20))) == PLAIN["enqueue"]
    leases = []
    assert rig.spent(lambda: leases.extend(take(backend, 20))) == PLAIN["fetch"]
    assert rig.spent(lambda: backend.settle_many([(lease, Ack()) for lease in leases])) == PLAIN["ack"]
    assert rig.spent(lambda: backend.reap(QUEUE)) == PLAIN["reap"]
    assert rig.spent(lambda: backend.enqueue(a_job())) == PLAIN["enqueue one"]


def fetch_and_ack_some(backend: RedisBackend) -> None:
    """So that the server knows the scripts."""
    backend.enqueue(a_job())
    assert all(backend.settle_many([(lease, Ack()) for lease in take(backend, 1)]))
    backend.enqueue_many(numbered(20))
    assert all(backend.settle_many([(lease, Ack()) for lease in take(backend, 20)]))


def test_plain_jobs_are_the_words_that_they_always_were(backend: RedisBackend) -> None:
    new = backend.pack(a_job(identifier="order-17"))
    assert messages_words([new], [QUEUE]) == [1, "order-17", 1, "005", "", "gorder-17 report", new.body]
    backend.enqueue_many([a_job(identifier="order-17"), *numbered(2)])
    given, minted, failing = take(backend, 3)
    queues, words = settle_words(
        [(given, Ack()), (minted, Ack()), (failing, Nack(1.0, "boom"))], range(3), {}, reach=True
    )
    members = [str(lease.token)[:19] for lease in (given, minted, failing)]
    holders = [lease.owner_token[:16] for lease in (given, minted, failing)]
    ids = [lease.id for lease in (given, minted, failing)]
    assert queues == [QUEUE]
    assert words == [3, "Aan", *members, *holders, *ids, 1_000_000, b"=boom"]


def test_what_guards_cost(rig: Rig, backend: RedisBackend) -> None:
    """One script for all that a batch asks: a few commands for it, and a few for each thing that is asked."""
    asked = leases_to_guard(backend, "warm")
    backend.keys.begin_many(asked)
    backend.settle_many([(lease.guarded(guards), Ack()) for lease, guards in asked])
    asked = leases_to_guard(backend, "new")
    call = Counter(evalsha=1, time=1, zrem=1, zmscore=1, hmget=1, zrange=1)
    key, hold = Counter(get=20, hlen=20, hset=20), Counter(hlen=20, hset=20)
    rate = Counter(zscore=20, zremrangebyscore=20, zcount=20, zadd=40, pttl=20)
    noted = Counter(zadd=20)
    told = rig.spent(lambda: backend.keys.begin_many(asked))
    assert told.pop("pexpire") <= 20
    assert told == call + key + hold + rate + noted
    settled = [(lease.guarded(guards), Ack()) for lease, guards in asked]
    assert rig.spent(lambda: backend.settle_many(settled)) == PLAIN["ack with more"] + Counter(
        {"set": 20, "zrem": 1, "hdel": 40}
    )


def test_the_states_of_many_that_run_cost_as_many_calls_as_that_of_one(rig: Rig, backend: RedisBackend) -> None:
    idents = [lease.id for lease in new_leases(backend, 200)]
    backend.keys.put_records(RUNNING_SPACE, dict.fromkeys(idents, b'{"fence":1,"where":"h:1"}'), 60.0)
    assert {one.where for one in statuses(backend, idents).values()} == {"h:1"}
    one, many = (rig.spent(lambda asked=asked: statuses(backend, asked)) for asked in (idents[:1], idents))  # type: ignore[misc]
    assert many["evalsha"] == one["evalsha"]


def leases_to_guard(backend: RedisBackend, word: str) -> list[tuple[JobLease, Guards]]:
    """20, each with what it is to ask for: a key and a lock of its own, and a rate that all share."""
    backend.enqueue_many(numbered(20))
    rates = (Rate("queue", 1000),)
    return [
        (lease, Guards(key=f"{word}-{number}", holds=(Hold(f"{word}-{number}"),), rates=rates))
        for number, lease in enumerate(take(backend, 20))
    ]


def test_a_refused_begin_costs_no_more_than_one_look_at_those_who_hold(rig: Rig, backend: RedisBackend) -> None:
    guards = Guards(holds=(Hold("queue", 5),))
    leases = new_leases(backend, 60)
    assert sum(map(bool, backend.keys.begin_many([(lease, guards) for lease in leases]))) == 5
    refused = [(lease, guards) for lease in leases[10:]]
    told = rig.spent(lambda: backend.keys.begin_many(refused))
    assert told == Counter(evalsha=1, time=1, zrem=1, zmscore=2, hmget=2, zrange=1, hlen=50, hexists=50, hgetall=1)


def test_a_unique_job_costs_a_few_commands_more(rig: Rig, backend: RedisBackend) -> None:
    fetch_and_ack_some(backend)
    jobs = [a_job(unique=True, idempotency_key=f"order-{number}") for number in range(20)]
    more = Counter({"get": 20, "exists": 20, "set": 20, "hset": 20})
    assert rig.spent(lambda: backend.enqueue_many(jobs)) == PLAIN["enqueue"] + more
    acks = [(lease, Ack()) for lease in take(backend, 20)]
    more = Counter({"hmget": 1, "get": 20, "set": 20, "hdel": 1})
    assert rig.spent(lambda: backend.settle_many(acks)) == PLAIN["ack with more"] + more


FEW_POSTS, MANY_POSTS = 60, 2000
"""Messages; a twentieth as many claims."""


def post_some(backend: RedisBackend, count: int, **fields: Any) -> list[str]:
    return backend.claims.post(QUEUE, [a_post(**fields) for _ in range(count)])


def claim_all(backend: RedisBackend, count: int) -> None:
    post_some(backend, count)
    while backend.claims.claim(QUEUE, limit=20, ttl=600.0, grace=60.0):
        pass


def claim_nothing(backend: RedisBackend, count: int) -> None:
    """Claims whose messages are deleted."""
    for ident in post_some(backend, count // 20):
        held = claim(backend, 1)
        backend.claims.delete_many(QUEUE, [ident], held.id)


def lease_all(backend: RedisBackend, count: int) -> None:
    fill(backend, count, State.WAITING)
    take(backend, count)


FILLS: dict[str, Callable[..., object]] = {
    "free posts": post_some,
    "posts that end": partial(post_some, life=1000.0),
    "delayed posts": partial(post_some, delay=900.0, life=1000.0),
    "claims": claim_all,
    "empty claims": claim_nothing,
    "jobs": partial(fill, state=State.WAITING),
    "leases": lease_all,
    "dead letters": partial(fill, state=State.DEAD),
}


def one_round(backend: RedisBackend) -> None:
    """Everything that is done to one claim, and the counts."""
    held = claim(backend, 10)
    assert held.count == 10
    backend.claims.get(QUEUE, held.id)
    backend.claims.renew(QUEUE, held.id, ttl=300.0)
    gone = [message.id for message in held.messages[:5]]
    assert backend.claims.delete_many(QUEUE, gone, held.id) == [Deleted.DONE] * 5
    assert backend.claims.release(QUEUE, held.id) == 5
    assert len(backend.claims.pop(QUEUE, 5)) == 5
    assert len(backend.claims.list_free(QUEUE, limit=5)) == 5
    backend.claims.stats(QUEUE)
    backend.stats(QUEUE)
    backend.reap(QUEUE)


@pytest.mark.parametrize("there", FILLS)
def test_the_commands_on_claims_are_the_same_among_few_and_among_many(there: str) -> None:
    few, many = (
        cost(partial(FILLS[there], count=count), partial(post_some, count=30), one_round)
        for count in (FEW_POSTS, MANY_POSTS)
    )
    assert few == many


def test_a_message_costs_its_share_of_a_claim(rig: Rig, backend: RedisBackend) -> None:
    """20 messages are claimed, renewed and deleted with the commands of one, and a look at the length of each body."""
    post_some(backend, 100)
    handled = [rig.spent(partial(handle, backend, limit)) for limit in (1, 1, 20)]
    assert handled[2] - handled[1] == Counter(hstrlen=2 * 19)
    assert handled[2].total() < 60 + 2 * 20


def handle(backend: RedisBackend, limit: int) -> None:
    held = claim(backend, limit)
    backend.claims.renew(QUEUE, held.id, ttl=60.0)
    backend.claims.delete_many(QUEUE, [message.id for message in held.messages], held.id)


def test_pools_run_the_same_commands_whatever_is_posted_and_claimed(rig: Rig, backend: RedisBackend) -> None:

    def work() -> None:
        backend.enqueue_many([a_job(priority=1) for _ in range(20)])
        leases = take(backend, 20)
        assert len(leases) == 20
        assert all(backend.renew_many(leases, 30.0))
        assert all(backend.settle_many([(lease, Ack()) for lease in leases]))

    backend.enqueue_many([a_job(priority=9)])  # there is always something left
    work()
    before = rig.spent(work)
    post_some(backend, 50, life=1000.0)
    claim(backend, 20)
    post_some(backend, 50, delay=900.0, life=1000.0)
    backend.enqueue_many([a_job(priority=2)])
    claim(backend, 1)
    assert rig.spent(work) == before


def test_a_look_at_a_queue_without_claims_asks_once_whether_there_are_any(rig: Rig, backend: RedisBackend) -> None:
    backend.enqueue(a_job())
    backend.stats(QUEUE)
    told = rig.spent(lambda: backend.stats(QUEUE))
    assert told == Counter(evalsha=1, time=1, exists=1, zcard=4, zrange=2, hget=1)
