"""Claims and pools on one queue: never the same message twice, and no crash for a claim that ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from support import crowd
from support.claims import AT_ONCE, claim, found, ids, nothing_to_claim, post
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, new_lease, numbered

import letters
from jobpool import Jobs, Queue
from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import CLAIM_LIMIT, Deleted
from jobpool.broker.values import State
from jobpool.errors import ClaimNotFound
from jobpool.message.guards import Begin, Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settled

pytestmark = pytest.mark.needs("leases", "claims")


def test_what_is_claimed_is_not_fetched_and_what_is_leased_is_not_claimed(backend: QueueBackend) -> None:
    known = backend.enqueue_many(numbered(4))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    held = claim(backend, 2)
    assert (lease.id, ids(held.messages)) == (known[0], known[1:3])
    assert ids(backend.fetch_many(QUEUE, limit=10)) == known[3:]
    assert nothing_to_claim(backend)
    backend.claims.release(QUEUE, held.id)
    assert ids(backend.fetch_many(QUEUE, limit=10)) == known[1:3]


def test_a_released_job_goes_to_its_old_place_for_a_pool_too(backend: QueueBackend) -> None:
    known = backend.enqueue_many(numbered(3))
    held = claim(backend, 2)
    backend.claims.delete_many(QUEUE, known[:1], held.id)
    backend.claims.release(QUEUE, held.id)
    leases = backend.fetch_many(QUEUE, limit=10)
    assert ids(leases) == known[1:]
    assert [(lease.attempts, lease.crashes, lease.deliveries) for lease in leases] == [(0, 0, 2), (0, 0, 1)]


def test_a_release_wakes_a_pool_that_waits(harness: Harness, opener: Opener) -> None:
    waiting, other = harness.keep(opener()), harness.keep(opener())
    other.enqueue(a_job())
    held = claim(other)
    with ThreadPoolExecutor(1) as executor:
        woken = executor.submit(waiting.wait_any, [QUEUE], 30.0)
        other.claims.release(QUEUE, held.id)
        assert woken.result(10.0) == QUEUE


@pytest.mark.lacks("native_reap")
def test_a_reap_frees_what_an_ended_claim_held_and_charges_nothing(harness: Harness, backend: QueueBackend) -> None:
    [posted] = post(backend)
    known = backend.enqueue_many(numbered(3))
    claim(backend, 3, ttl=60.0)
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=60.0)
    harness.advance(60.0 - harness.tick)
    assert backend.reap(QUEUE, AT_ONCE) == []
    assert backend.fetch_many(QUEUE, limit=5) == []
    harness.advance(harness.tick)
    assert ids(backend.reap(QUEUE, AT_ONCE)) == [lease.id] == known[2:]
    assert backend.reap(QUEUE, AT_ONCE) == []
    leases = backend.fetch_many(QUEUE, limit=5)
    assert ids(leases) == known
    assert [(one.attempts, one.crashes, one.deliveries) for one in leases] == [(0, 0, 2), (0, 0, 2), (0, 1, 2)]
    message = found(backend, posted)
    assert (message.state, message.crashes, message.cause, message.claims) == (State.WAITING, 0, None, 1)
    assert (message.claim, message.expires_at) == (None, None)


@pytest.mark.lacks("native_reap")
def test_a_reap_by_age_leaves_live_claims_alone_and_frees_ended_ones(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(3))
    ended, live = claim(backend, 1, ttl=60.0), claim(backend, 1, ttl=600.0)
    backend.fetch_many(QUEUE, limit=1, ttl=600.0)
    harness.advance(60.0)
    assert backend.reap_expired(QUEUE, visibility_timeout=10.0) == 1
    assert len(backend.claims.get(QUEUE, live.id).messages) == 1
    assert ids(backend.fetch_many(QUEUE, limit=1)) == ids(ended.messages)


@pytest.mark.lacks("native_reap")
def test_no_end_of_a_claim_ever_makes_a_dead_letter(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    for _ in range(7):
        claim(backend, ttl=60.0)
        harness.advance(60.0)
        backend.reap(QUEUE, AT_ONCE)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 0, 8)
    assert found(backend, lease.id).claims == 7


def test_only_a_reap_takes_back_what_a_pool_lost(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.advance(1.0)
    assert nothing_to_claim(backend)
    assert backend.claims.pop(QUEUE, 1) == []
    assert backend.claims.list_free(QUEUE) == []
    assert ids(backend.claims.list_free(QUEUE, claimed=True)) == [ident]
    assert backend.claims.delete_many(QUEUE, [ident]) == [Deleted.FORBIDDEN]
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free) == (1, 0)
    assert ids(backend.reap(QUEUE, AT_ONCE)) == [ident]
    assert ids(claim(backend).messages) == [ident]


def test_a_late_pool_cannot_touch_what_was_claimed_since(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    [late] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.advance(1.0)
    backend.reap(QUEUE, AT_ONCE)
    held = claim(backend)
    for settlement in (Ack(), Nack(0.0, "boom"), Abandon("hopeless"), Release()):
        assert backend.settle_many([(late, settlement)]) == [Settled.NOT_OWNER]
    assert backend.renew_many([late], 30.0) == [None]
    if backend.capabilities.key_store:
        [begun] = backend.keys.begin_many([(late, Guards(key="once"))])
        assert begun.answer is Begin.LOST
    assert ids(backend.claims.get(QUEUE, held.id).messages) == [ident]
    message = found(backend, ident)
    assert (message.attempts, message.last_error, message.crashes) == (0, None, 1)
    backend.claims.delete_many(QUEUE, [ident], held.id)
    assert backend.ack(late) is Settled.NOT_IN_FLIGHT


@pytest.mark.spans
def test_a_late_claim_cannot_touch_what_a_pool_took_since(harness: Harness, backend: QueueBackend) -> None:
    known = backend.enqueue_many(numbered(2))
    late = claim(backend, ttl=60.0)
    harness.advance(60.0)
    backend.reap(QUEUE, AT_ONCE)
    first, _ = backend.fetch_many(QUEUE, limit=2, ttl=30.0)
    with pytest.raises(ClaimNotFound):
        backend.claims.get(QUEUE, late.id)
    with pytest.raises(ClaimNotFound):
        backend.claims.renew(QUEUE, late.id, ttl=600.0)
    with pytest.raises(ClaimNotFound):
        backend.claims.delete_many(QUEUE, known, late.id)
    assert backend.claims.release(QUEUE, late.id) == 0
    assert backend.claims.delete_many(QUEUE, known) == [Deleted.FORBIDDEN] * 2
    assert backend.ack(first)
    assert [message.id for message in backend.list_messages()] == known[1:]
    assert found(backend, known[1]).expires_at == pytest.approx(harness.now() + 30.0, abs=1e-4)


def test_a_live_claim_never_shows_what_a_pool_took_from_another(harness: Harness, backend: QueueBackend) -> None:
    known = backend.enqueue_many(numbered(2))
    claim(backend, 1, ttl=60.0)
    live = claim(backend, 1, ttl=600.0)
    harness.advance(60.0)
    backend.reap(QUEUE, AT_ONCE)
    [lease] = backend.fetch_many(QUEUE, limit=2)
    assert lease.id == known[0]
    assert ids(backend.claims.get(QUEUE, live.id).messages) == known[1:]
    assert backend.claims.delete_many(QUEUE, known, live.id) == [Deleted.FORBIDDEN, Deleted.DONE]
    assert backend.ack(lease)


def test_what_a_pool_gave_back_can_be_claimed_with_its_past(backend: QueueBackend) -> None:
    lease = new_lease(backend)
    backend.nack(lease, error="boom")
    held = claim(backend)
    message = found(backend, lease.id)
    assert (message.attempts, message.last_error, message.deliveries, message.claims) == (1, "boom", 2, 1)
    backend.claims.release(QUEUE, held.id)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert (again.attempts, again.deliveries) == (1, 3)


def test_a_fetch_never_repeats_what_was_claimed_since(backend: QueueBackend) -> None:
    """The same fetch id again returns what is still held under it, and nothing that went on to a claim."""
    backend.enqueue_many(numbered(2))
    first, _ = backend.fetch_many(QUEUE, limit=2, fetch_id="mine")
    backend.release(first)
    claim(backend)
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=2, fetch_id="mine")] == [1]


@pytest.mark.xdist_group("crowds")
@pytest.mark.spans
def test_claimers_and_pools_at_once_finish_each_message_once(
    harness: Harness, opener: Opener, live: QueueBackend
) -> None:
    known = live.enqueue_many(numbered(100)) + post(live, *(b"%d" % number for number in range(100)))
    seen = [ident for part in harness.crowd(opener, crowd.empty, 4) for ident in part]
    assert sorted(seen) == sorted(known)
    stats = live.claims.stats(QUEUE)
    assert (stats.total, live.stats(QUEUE).pending, live.list_messages()) == (0, 0, [])


def test_callers_with_one_claim_id_have_one_claim(harness: Harness, opener: Opener) -> None:
    clients = [harness.keep(opener()) for _ in range(4)]
    post(clients[0], *(b"%d" % number for number in range(100)))
    taken: set[str] = set()
    with ThreadPoolExecutor(len(clients)) as executor:
        for number in range(10):
            held = list(executor.map(partial(claim, limit=5, claim_id=f"{number:032x}"), clients))
            assert [ids(one.messages) for one in held] == [ids(held[0].messages)] * len(clients)
            taken |= set(ids(held[0].messages))
    assert (len(taken), clients[0].claims.stats(QUEUE).claimed) == (50, 50)


@pytest.fixture
def books() -> Iterator[sqlite3.Connection]:
    with closing(letters.open_books(":memory:")) as books:
        yield books


def a_host(harness: Harness) -> Queue:
    return Jobs(backend=harness.open()).queue("letters", max_claims=5)


def booked(books: sqlite3.Connection) -> list[str]:
    return [recipient for (recipient,) in books.execute("SELECT recipient FROM letters ORDER BY rowid")]


def test_every_letter_is_printed_once(harness: Harness, books: sqlite3.Connection) -> None:
    host = a_host(harness)
    host.post({"to": number} for number in range(23))
    assert [letters.print_letters(host, books) for _ in range(4)] == [10, 10, 3, 0]
    assert booked(books) == [str(number) for number in range(23)]


def test_the_letters_of_a_host_that_died_are_printed_by_another(harness: Harness, books: sqlite3.Connection) -> None:
    dead, alive = a_host(harness), a_host(harness)
    alive.post([{"to": "a"}, {"to": "b"}], ttl=60)
    assert dead.claim(ttl=60) is not None
    harness.advance(60 - harness.tick)
    assert letters.print_letters(alive, books) == 0
    harness.advance(harness.tick)
    assert letters.print_letters(alive, books) == 2
    assert booked(books) == ["a", "b"]


def test_the_late_delete_of_a_host_that_slept_is_told_and_rolls_back(
    harness: Harness, books: sqlite3.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, quick = a_host(harness), a_host(harness)
    quick.post([{"to": "a"}])
    claim = slow.claim(ttl=60)
    assert claim is not None
    harness.advance(60)
    assert letters.print_letters(quick, books) == 1
    assert not letters.print_one(claim.messages[0], books)
    assert booked(books) == ["a"]
    assert "rolled back" in capsys.readouterr().err


KEY = "order-17"
LOCK = Hold("job:nightly")
GUARDS = Guards(key=KEY, holds=(LOCK,))


def begin(backend: QueueBackend, lease: JobLease) -> Begin:
    [answer] = backend.keys.begin_many([(lease, GUARDS)])
    return answer.answer


def leased(backend: QueueBackend, ttl: float = 30.0) -> JobLease:
    """One more job, in the hands of a pool."""
    return new_lease(backend, priority=1, ttl=ttl)


@pytest.mark.lacks("native_reap")
def test_what_a_lost_lease_held_is_not_held_by_the_claim_that_follows(harness: Harness, backend: QueueBackend) -> None:
    lost = leased(backend, ttl=1.0)
    assert begin(backend, lost) is Begin.GRANTED
    harness.advance(1.0)
    backend.reap(QUEUE, AT_ONCE)
    assert ids(claim(backend).messages) == [lost.id]
    assert backend.keys.holders(QUEUE, LOCK.name) == []
    other = leased(backend)
    assert begin(backend, other) is Begin.GRANTED
    assert backend.ack(lost.guarded(GUARDS)) is Settled.NOT_OWNER
    assert backend.keys.holders(QUEUE, LOCK.name) == [other.id]


def test_a_claim_waits_for_no_guard_and_takes_none(backend: QueueBackend) -> None:
    running = leased(backend)
    assert begin(backend, running) is Begin.GRANTED
    waiting = leased(backend)
    assert begin(backend, waiting) is Begin.HELD
    backend.release(waiting)
    held = claim(backend)
    assert ids(held.messages) == [waiting.id]
    assert backend.keys.holders(QUEUE, LOCK.name) == [running.id]
    assert backend.ack(running.guarded(Guards(holds=(LOCK,))))
    assert backend.claims.release(QUEUE, held.id) == 1
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert begin(backend, again) is Begin.GRANTED


def test_a_job_that_is_deleted_by_hand_leaves_its_key_to_be_run(backend: QueueBackend) -> None:
    """It was not done by a pool, and nobody says that what a person did is the same."""
    ident = backend.enqueue(a_job(idempotency_key=KEY))
    held = claim(backend)
    assert backend.claims.delete_many(QUEUE, [ident], held.id) == [Deleted.DONE]
    assert begin(backend, leased(backend)) is Begin.GRANTED


def test_a_job_that_was_claimed_too_often_keeps_its_unique_key(backend: QueueBackend) -> None:
    """As every dead letter does: it can come back."""
    first = backend.enqueue(a_job(unique=True, idempotency_key="only"))
    backend.claims.release(QUEUE, claim(backend, max_claims=1).id)
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, max_claims=1) is None
    dead = found(backend, first)
    assert (dead.state, dead.reason) == (State.DEAD, CLAIM_LIMIT)
    assert backend.enqueue(a_job(unique=True, idempotency_key="only")) == first
    assert backend.stats(QUEUE).waiting == 0
