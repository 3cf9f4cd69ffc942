"""Claims: what is taken and in which order, and what each call answers in each state of a claim."""

from __future__ import annotations

import re

import pytest
from support.claims import a_post, bodies, claim, found, ids, nothing_to_claim, post
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import CLAIM_ID, CLAIM_LIMIT, Deleted
from jobpool.broker.values import MessageFilter, State
from jobpool.errors import ClaimNotFound

pytestmark = pytest.mark.needs("leases", "claims")

MINE = "0123456789abcdef" * 2


def delayed_job(harness: Harness, backend: QueueBackend, seconds: float) -> str:
    return backend.enqueue(a_job("delayed", scheduled_at=at(harness.now() + seconds)))


# --- what is taken ----------------------------------------------------------------------------------------


def test_a_claim_and_its_messages_show_all_about_themselves(harness: Harness, backend: QueueBackend) -> None:
    [posted] = post(backend, b"by hand", life=1000.0)
    job = backend.enqueue(a_job("run me", handler="render", priority=9))
    held = claim(backend, ttl=300.0, grace=70.0)
    assert CLAIM_ID.fullmatch(held.id)
    assert (held.queue, held.ttl, held.grace, held.age, held.count) == (QUEUE, 300.0, 70.0, 0, 2)
    first, second = held.messages
    assert (first.id, first.queue, first.body, first.handler, first.priority) == (posted, QUEUE, b"by hand", "", 5)
    assert (first.claims, first.claim) == (1, held.id)
    assert first.ends_at == pytest.approx(harness.now() + 1000.0, abs=1e-5)
    assert first.enqueued_at == pytest.approx(harness.now(), abs=1e-5)
    assert (second.id, second.handler, second.priority, second.ends_at) == (job, "render", 9, None)
    assert second.body == found(backend, job).body
    assert harness.open().claims.get(QUEUE, held.id) == held


def test_the_oldest_are_taken_first_up_to_the_limit(backend: QueueBackend) -> None:
    known = post(backend, *(b"%d" % number for number in range(25)))
    assert ids(claim(backend, 1).messages) == known[:1]
    assert ids(claim(backend, 20).messages) == known[1:21]
    assert ids(claim(backend, 20).messages) == known[21:]
    assert nothing_to_claim(backend)


def test_posts_and_jobs_are_one_queue_by_priority_and_then_by_age(backend: QueueBackend) -> None:
    late = backend.enqueue(a_job(priority=9))
    [one] = post(backend)
    middle = backend.enqueue(a_job(priority=5))
    soon = backend.enqueue(a_job(priority=1))
    [two] = post(backend)
    held = claim(backend, 2)
    assert ids(held.messages) == [soon, one]
    assert ids(backend.claims.get(QUEUE, held.id).messages) == [soon, one]
    assert ids(backend.claims.renew(QUEUE, held.id, ttl=60.0).messages) == [soon, one]
    assert ids(claim(backend, 20).messages) == [middle, two, late]


def test_what_is_held_delayed_dead_or_ended_is_skipped(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    [dead, _] = backend.fetch_many(QUEUE, limit=2)
    backend.abandon(dead, "hopeless")
    post(backend, b"claimed")
    claim(backend, 1)
    post(backend, b"ended", life=60.0)
    harness.advance(60.0)
    post(backend, b"delayed", delay=10.0)
    delayed_job(harness, backend, 10.0)
    behind = post(backend, b"behind", b"last")
    assert ids(claim(backend, 2, ttl=60.0).messages) == behind
    assert nothing_to_claim(backend)


@pytest.mark.parametrize("kind", ["post", "job"])
def test_what_is_delayed_is_free_when_its_delay_is_over_and_in_its_old_place(
    harness: Harness, backend: QueueBackend, kind: str
) -> None:
    ident = post(backend, delay=2.0)[0] if kind == "post" else delayed_job(harness, backend, 2.0)
    harness.advance(2.0 - harness.tick)
    assert nothing_to_claim(backend)
    [behind] = post(backend)
    harness.advance(harness.tick)
    assert ids(claim(backend).messages) == [ident, behind]


def test_a_claim_is_a_delivery(backend: QueueBackend) -> None:
    [ident] = post(backend)
    for number in (1, 2):
        held = claim(backend)
        message = found(backend, ident)
        assert (message.deliveries, message.claims, held.messages[0].claims) == (number, number, number)
        backend.claims.release(QUEUE, held.id)
    assert (found(backend, ident).attempts, found(backend, ident).crashes) == (0, 0)


def test_a_message_of_an_ended_claim_is_claimed_at_the_very_moment_and_in_its_old_place(
    harness: Harness, backend: QueueBackend
) -> None:
    known = post(backend, b"0", b"1", b"2")
    old = claim(backend, 2, ttl=60.0)
    harness.advance(60.0 - harness.tick)
    other = claim(backend, 1)
    backend.claims.release(QUEUE, other.id)
    assert ids(other.messages) == known[2:]
    harness.advance(harness.tick)
    new = claim(backend)
    assert ids(new.messages) == known
    assert [message.claims for message in new.messages] == [2, 2, 2]
    assert new.id != old.id


# --- a reply that was lost --------------------------------------------------------------------------------


def test_the_same_claim_id_again_gives_the_same_claim_and_shows_what_is_left_of_it(
    harness: Harness, backend: QueueBackend
) -> None:
    known = post(backend, b"0", b"1", b"2")
    first = claim(backend, 2, ttl=100.0, claim_id=MINE)
    assert first.id == MINE
    assert claim(harness.open(), 2, ttl=100.0, claim_id=MINE) == first
    harness.advance(7.0)
    again = claim(backend, 20, ttl=43_200.0, grace=43_200.0, claim_id=MINE)
    assert (again.ttl, again.grace, again.age, again.messages) == (100.0, 60.0, 7, first.messages)
    assert found(backend, known[0]).claims == 1
    assert ids(claim(backend).messages) == known[2:]
    backend.claims.delete_many(QUEUE, known[:1], MINE)
    assert ids(claim(backend, 2, claim_id=MINE).messages) == known[1:2]
    backend.claims.delete_many(QUEUE, known[1:2], MINE)
    assert claim(backend, 2, claim_id=MINE).messages == ()


def test_a_claim_id_can_be_used_again_when_its_claim_has_ended(harness: Harness, backend: QueueBackend) -> None:
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, claim_id=MINE) is None
    known = post(backend, b"0", b"1")
    assert ids(claim(backend, 1, ttl=60.0, claim_id=MINE).messages) == known[:1]
    harness.advance(60.0)
    newer = claim(backend, 1)
    assert ids(newer.messages) == known[:1]
    again = claim(backend, 10, ttl=200.0, claim_id=MINE)
    assert (ids(again.messages), again.age, again.ttl) == (known[1:], 0, 200.0)
    assert backend.claims.release(QUEUE, MINE) == 1
    assert ids(claim(backend, 10, claim_id=MINE).messages) == known[1:]
    assert ids(backend.claims.get(QUEUE, newer.id).messages) == known[:1]


@pytest.mark.spans
def test_ids_of_claims_are_of_one_queue(backend: QueueBackend) -> None:
    here, there = post(backend) + post(backend, queue="mails")
    claim(backend, claim_id=MINE)
    claim(backend, queue="mails", claim_id=MINE)
    assert ids(backend.claims.get(QUEUE, MINE).messages) == [here]
    assert backend.claims.release(QUEUE, MINE) == 1
    assert ids(backend.claims.get("mails", MINE).messages) == [there]


# --- claims that are none ---------------------------------------------------------------------------------

MALFORMED = ["", "x", MINE[:-1], MINE + "0", MINE.upper(), MINE[:-1] + "\n", "é" * 32, "{" + MINE[2:] + "}"]


def assert_not_found(backend: QueueBackend, ident: str, messages: list[str]) -> None:
    """No call knows a claim of this id."""
    claims = backend.claims
    for call in (
        lambda: claims.get(QUEUE, ident),
        lambda: claims.renew(QUEUE, ident, ttl=300.0),
        lambda: claims.delete_many(QUEUE, messages, ident),
    ):
        with pytest.raises(ClaimNotFound, match="no live claim"):
            call()
    assert claims.release(QUEUE, ident) == 0


def not_to_be_found(harness: Harness, backend: QueueBackend) -> dict[str, str]:
    """Ids of claims that are none, or none any more, in the queue `reports`; the messages of two of them are free."""
    post(backend, b"ended")
    ended = claim(backend, 1, ttl=60.0)
    harness.advance(60.0)
    post(backend, b"released")
    released = claim(backend, 2)
    backend.claims.release(QUEUE, released.id)
    post(backend, b"foreign", queue="mails")
    foreign = claim(backend, queue="mails")
    malformed = {repr(text): text for text in MALFORMED}
    return {"ended": ended.id, "released": released.id, "foreign": foreign.id, "unknown": MINE, **malformed}


@pytest.mark.spans
def test_what_is_no_live_claim_is_not_found_and_nothing_is_changed(harness: Harness, backend: QueueBackend) -> None:
    claims = not_to_be_found(harness, backend)
    free = ids(backend.claims.list_free(QUEUE))
    assert len(free) == 2
    for name, ident in claims.items():
        with row(name):
            assert_not_found(backend, ident, [*free, "unknown"])
    assert ids(backend.claims.list_free(QUEUE)) == free
    assert len(backend.claims.get("mails", claims["foreign"]).messages) == 1


def test_the_last_moment_is_early_enough(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1", b"2")
    renewed, deleting, releasing = (claim(backend, 1, ttl=60.0) for _ in range(3))
    harness.advance(60.0 - harness.tick)
    assert ids(backend.claims.renew(QUEUE, renewed.id, ttl=60.0).messages) == known[:1]
    assert backend.claims.delete_many(QUEUE, known[1:2], deleting.id) == [Deleted.DONE]
    assert backend.claims.release(QUEUE, releasing.id) == 1
    harness.advance(harness.tick)
    assert ids(claim(backend).messages) == known[2:]


def test_an_ended_claim_never_touches_what_a_newer_one_took(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1")
    old = claim(backend, 2, ttl=60.0)
    harness.advance(60.0)
    new = claim(backend, 1, ttl=60.0)
    assert_not_found(backend, old.id, known)
    harness.advance(60.0 - harness.tick)
    assert ids(backend.claims.get(QUEUE, new.id).messages) == known[:1]
    harness.advance(harness.tick)
    assert ids(claim(backend).messages) == known


def test_a_renewed_claim_shows_nothing_that_it_lost(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1")
    first = claim(backend, 1, ttl=60.0)
    second = claim(backend, 1, ttl=120.0)
    harness.advance(60.0)
    third = claim(backend, 5, ttl=60.0)
    assert ids(backend.claims.renew(QUEUE, second.id, ttl=300.0).messages) == known[1:]
    assert ids(backend.claims.renew(QUEUE, third.id, ttl=300.0).messages) == known[:1]
    assert [held.id for held in backend.claims.list_claims(QUEUE)] == sorted([second.id, third.id])
    assert first.id not in (second.id, third.id)


def test_a_claim_lives_on_when_all_its_messages_are_deleted(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1")
    held = claim(backend, ttl=60.0)
    assert backend.claims.delete_many(QUEUE, known, held.id) == [Deleted.DONE] * 2
    empty = backend.claims.get(QUEUE, held.id)
    assert (empty.messages, empty.count) == ((), 0)
    harness.advance(59.0)
    renewed = backend.claims.renew(QUEUE, held.id, ttl=60.0)
    assert (renewed.messages, renewed.count, renewed.age) == ((), 0, 0)
    harness.advance(59.0)
    assert backend.claims.delete_many(QUEUE, known, held.id) == [Deleted.DONE] * 2
    assert backend.claims.release(QUEUE, held.id) == 0
    with pytest.raises(ClaimNotFound):
        backend.claims.get(QUEUE, held.id)


# --- renewing and releasing -------------------------------------------------------------------------------


def test_a_renewal_holds_what_is_still_in_it_from_now_on(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1", b"2")
    held = claim(backend, ttl=60.0, grace=70.0)
    backend.claims.delete_many(QUEUE, known[1:2], held.id)
    harness.advance(50.0)
    renewed = harness.open().claims.renew(QUEUE, held.id, ttl=100.0)
    assert (renewed.id, renewed.ttl, renewed.grace, renewed.age, renewed.count) == (held.id, 100.0, 70.0, 0, 2)
    assert ids(renewed.messages) == [known[0], known[2]]
    assert [message.claims for message in renewed.messages] == [1, 1]
    assert found(backend, known[0]).expires_at == pytest.approx(harness.now() + 100.0, abs=1e-5)
    harness.advance(100.0 - harness.tick)
    assert backend.claims.get(QUEUE, held.id).grace == 70.0
    assert nothing_to_claim(backend)
    harness.advance(harness.tick)
    assert ids(claim(backend).messages) == [known[0], known[2]]


def test_a_renewal_may_bring_the_end_nearer_and_change_the_grace(harness: Harness, backend: QueueBackend) -> None:
    post(backend)
    held = claim(backend, ttl=3600.0)
    harness.advance(1.0)
    assert backend.claims.renew(QUEUE, held.id, ttl=60.0, grace=600.0).grace == 600.0
    assert backend.claims.get(QUEUE, held.id).grace == 600.0
    assert backend.claims.renew(QUEUE, held.id, ttl=60.0).grace == 600.0
    harness.advance(60.0)
    with pytest.raises(ClaimNotFound):
        backend.claims.get(QUEUE, held.id)


def test_a_release_frees_what_is_left_at_once_and_to_its_old_place(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1", b"2", b"3", b"4")
    held = claim(backend, 4)
    backend.claims.delete_many(QUEUE, known[1:2], held.id)
    assert harness.open().claims.release(QUEUE, held.id) == 3
    assert backend.claims.release(QUEUE, held.id) == 0
    message = found(backend, known[0])
    assert (message.state, message.claim, message.expires_at) == (State.WAITING, None, None)
    assert ids(claim(backend).messages) == [known[0], *known[2:]]


# --- deleting ---------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_every_answer_to_a_delete(harness: Harness, backend: QueueBackend) -> None:
    job = backend.enqueue(a_job("leased"))
    lost = backend.enqueue(a_job("its lease has ended"))
    dying = backend.enqueue(a_job("dead"))
    first, second, third = backend.fetch_many(QUEUE, limit=3, ttl=1000.0)
    backend.abandon(third, "hopeless")
    backend.renew(second, 1.0)
    held, theirs, gone, ended = post(backend, b"held", b"theirs", b"gone", b"ended", life=4000.0)
    mine = claim(backend, 1)
    other = claim(backend, 1)
    [delayed] = post(backend, b"delayed", delay=900.0)
    backend.claims.delete_many(QUEUE, [gone])
    backend.claims.delete_many(QUEUE, [ended])
    [ended] = post(backend, b"ended", life=60.0)
    harness.advance(60.0)
    [free] = post(backend, b"free")
    [elsewhere] = post(backend, b"elsewhere", queue="mails")

    with_claim = {
        theirs: Deleted.FORBIDDEN,
        free: Deleted.FORBIDDEN,
        delayed: Deleted.FORBIDDEN,
        job: Deleted.FORBIDDEN,
        lost: Deleted.FORBIDDEN,
        held: Deleted.DONE,
        gone: Deleted.DONE,
        dying: Deleted.DONE,
        ended: Deleted.DONE,
        elsewhere: Deleted.DONE,
        "' or 1=1 --": Deleted.DONE,
    }
    asked = list(with_claim)
    assert backend.claims.delete_many(QUEUE, asked, mine.id) == list(with_claim.values())
    assert backend.claims.delete_many(QUEUE, asked, mine.id) == list(with_claim.values())
    without = {
        theirs: Deleted.FORBIDDEN,
        job: Deleted.FORBIDDEN,
        lost: Deleted.FORBIDDEN,
        free: Deleted.DONE,
        delayed: Deleted.DONE,
        held: Deleted.DONE,
        gone: Deleted.DONE,
        dying: Deleted.DONE,
        ended: Deleted.DONE,
        elsewhere: Deleted.DONE,
        "": Deleted.DONE,
    }
    asked = list(without)
    assert backend.claims.delete_many(QUEUE, asked) == list(without.values())
    assert backend.claims.delete_many(QUEUE, asked) == list(without.values())

    assert ids(backend.list_messages(MessageFilter(queue=QUEUE))) == [job, lost, dying, theirs]
    assert found(backend, dying).state is State.DEAD
    assert ids(backend.claims.list_free("mails")) == [elsewhere]
    assert ids(backend.claims.get(QUEUE, other.id).messages) == [theirs]
    assert backend.ack(first)


def test_what_is_named_twice_is_deleted_once(backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1")
    held = claim(backend, 1)
    assert backend.claims.delete_many(QUEUE, known[:1] * 3, held.id) == [Deleted.DONE] * 3
    assert backend.claims.delete_many(QUEUE, [known[1], known[1]]) == [Deleted.DONE] * 2
    assert backend.claims.delete_many(QUEUE, []) == []
    assert backend.claims.stats(QUEUE).total == 0


def test_what_an_ended_claim_held_is_free_for_a_delete_at_the_very_moment(
    harness: Harness, backend: QueueBackend
) -> None:
    known = post(backend, b"0", b"1")
    claim(backend, 2, ttl=60.0)
    harness.advance(60.0 - harness.tick)
    assert backend.claims.delete_many(QUEUE, known[:1]) == [Deleted.FORBIDDEN]
    harness.advance(harness.tick)
    assert backend.claims.delete_many(QUEUE, known[:1]) == [Deleted.DONE]
    assert ids(claim(backend).messages) == known[1:]


def test_what_an_ended_claim_held_is_not_for_another_claim_to_delete(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1")
    claim(backend, 1, ttl=60.0)
    other = claim(backend, 1, ttl=600.0)
    harness.advance(60.0)
    assert backend.claims.delete_many(QUEUE, known, other.id) == [Deleted.FORBIDDEN, Deleted.DONE]


@pytest.mark.parametrize("way", ["claim", "no claim", "pop"])
def test_an_id_that_was_given_is_known_for_a_while_after_its_delete(
    harness: Harness, backend: QueueBackend, way: str
) -> None:
    backend.enqueue(a_job(identifier="a-job"))
    backend.claims.post(QUEUE, [a_post(ident="a-post")])
    if way == "pop":
        backend.claims.pop(QUEUE, 2)
    else:
        held = claim(backend).id if way == "claim" else None
        backend.claims.delete_many(QUEUE, ["a-job", "a-post"], held)
    harness.advance(599.0)
    backend.enqueue(a_job(identifier="a-job"))
    backend.claims.post(QUEUE, [a_post(ident="a-post")])
    assert nothing_to_claim(backend)
    harness.advance(1.1)
    backend.enqueue(a_job(identifier="a-job"))
    backend.claims.post(QUEUE, [a_post(ident="a-post")])
    assert ids(claim(backend).messages) == ["a-job", "a-post"]


@pytest.mark.needs("key_store")
@pytest.mark.parametrize("way", ["claim", "no claim", "pop"])
def test_a_deleted_job_gives_its_unique_key_free(backend: QueueBackend, way: str) -> None:
    first = backend.enqueue(a_job(unique=True, idempotency_key="only"))
    if way == "pop":
        backend.claims.pop(QUEUE, 1)
    else:
        held = claim(backend).id if way == "claim" else None
        assert backend.enqueue(a_job(unique=True, idempotency_key="only")) == first
        backend.claims.delete_many(QUEUE, [first], held)
    assert backend.enqueue(a_job(unique=True, idempotency_key="only")) != first


# --- taking for good --------------------------------------------------------------------------------------


@pytest.mark.spans
def test_pop_takes_the_oldest_and_leaves_nothing(harness: Harness, backend: QueueBackend) -> None:
    late = backend.enqueue(a_job(priority=9))
    known = post(backend, b"0", b"1", b"2")
    post(backend, delay=10.0)
    claim(backend, 1, ttl=60.0)
    popped = backend.claims.pop(QUEUE, 1)
    assert (ids(popped), bodies(popped), popped[0].queue, popped[0].claim) == (known[1:2], [b"1"], QUEUE, None)
    assert ids(backend.claims.pop(QUEUE, 20)) == [known[2], late]
    assert backend.claims.pop(QUEUE, 20) == []
    assert [backend.inspect(ident) for ident in (known[1], known[2], late)] == [None] * 3
    harness.advance(60.0)
    [claimed] = backend.claims.pop(QUEUE, 1)
    assert (claimed.id, claimed.claims, popped[0].claims) == (known[0], 1, 0)
    assert backend.claims.pop("nothing", 1) == []


# --- claimed too often ------------------------------------------------------------------------------------


def claim_again(backend: QueueBackend, most: int, limit: int = 1) -> list[str]:
    """Claim and release; the ids."""
    held = backend.claims.claim(QUEUE, limit=limit, ttl=60.0, grace=60.0, max_claims=most)
    if held is None:
        return []
    backend.claims.release(QUEUE, held.id)
    return ids(held.messages)


def test_the_claim_after_the_last_one_makes_it_a_dead_letter(harness: Harness, backend: QueueBackend) -> None:
    [bad] = post(backend, b"bad", life=1000.0)
    assert [claim_again(backend, 2) for _ in range(2)] == [[bad], [bad]]
    harness.advance(5.0)
    assert claim_again(backend, 2) == []
    dead = found(backend, bad)
    assert (dead.state, dead.reason, dead.claims, dead.deliveries) == (State.DEAD, CLAIM_LIMIT, 2, 2)
    assert (dead.claim, dead.expires_at, dead.last_error, dead.cause) == (None, None, None, None)
    assert dead.died_at == pytest.approx(harness.now(), abs=1e-5)


def test_what_dies_makes_room_for_the_next(backend: QueueBackend) -> None:
    known = post(backend, b"0", b"1", b"2")
    job = backend.enqueue(a_job(priority=9))
    assert claim_again(backend, 0, limit=2) == known[:2]
    assert claim_again(backend, 1, limit=2) == [known[2], job]
    assert [found(backend, ident).state for ident in known[:2]] == [State.DEAD, State.DEAD]
    assert claim_again(backend, 1, limit=2) == []
    assert found(backend, job).reason == CLAIM_LIMIT


def test_neither_a_renewal_nor_an_end_resets_the_count(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend)
    held = claim(backend, ttl=60.0, max_claims=1)
    assert backend.claims.renew(QUEUE, held.id, ttl=60.0).messages[0].claims == 1
    harness.advance(60.0)
    assert claim_again(backend, 1) == []
    assert found(backend, ident).state is State.DEAD


def test_without_a_limit_it_can_be_claimed_for_ever(backend: QueueBackend) -> None:
    [ident] = post(backend)
    assert [claim_again(backend, 0) for _ in range(12)] == [[ident]] * 12
    assert claim_again(backend, 13) == [ident]
    assert found(backend, ident).claims == 13


def test_more_than_a_claim_can_hold_die_in_one_call(backend: QueueBackend) -> None:
    known = post(backend, *(b"%d" % number for number in range(45)))
    for _ in range(3):
        claim(backend, 20)
    for held in backend.claims.list_claims(QUEUE):
        backend.claims.release(QUEUE, held.id)
    [good] = post(backend, b"good")
    assert claim_again(backend, 1, limit=20) == [good]
    assert backend.stats(QUEUE).dead == len(known)


# --- bounds -----------------------------------------------------------------------------------------------


def test_what_is_at_its_bounds_is_taken(backend: QueueBackend) -> None:
    post(backend, b"0", b"1")
    least = claim(backend, 1, ttl=60.0, grace=60.0, max_claims=2**31 - 1)
    most = claim(backend, 20, ttl=43_200.0, grace=43_200.0)
    assert (most.ttl, most.grace) == (43_200.0, 43_200.0)
    assert backend.claims.renew(QUEUE, least.id, ttl=43_200.0, grace=60.0).ttl == 43_200.0
    assert backend.claims.renew(QUEUE, most.id, ttl=60, grace=43_200.0).ttl == 60.0


@pytest.mark.above
def test_what_is_beyond_a_bound_is_refused_by_name_and_changes_nothing(backend: QueueBackend) -> None:
    [ident] = post(backend)
    claims = backend.claims
    good = {"limit": 1, "ttl": 60.0, "grace": 60.0}
    for name, bad, bound in [
        ("limit", 0, "1 to 20"),
        ("limit", 21, "1 to 20"),
        ("ttl", 59.999, "60 to 43,200"),
        ("ttl", 43_200.001, "60 to 43,200"),
        ("grace", 59.999, "60 to 43,200"),
        ("grace", 43_200.001, "60 to 43,200"),
        ("max_claims", -1, "0 to"),
    ]:
        with pytest.raises(ValueError, match=f"{name} .*{re.escape(bound)}"):
            claims.claim(QUEUE, **{**good, name: bad})  # type: ignore[arg-type]
    held = claim(backend)
    for ttl, grace, name in [(59.9, None, "ttl"), (43_201, None, "ttl"), (60, 59.9, "grace"), (60, 43_201, "grace")]:
        with pytest.raises(ValueError, match=f"{name} .*60 to 43,200"):
            claims.renew(QUEUE, held.id, ttl=ttl, grace=grace)
    for limit in (0, 21):
        with pytest.raises(ValueError, match=r"limit .*1 to 20"):
            claims.pop(QUEUE, limit)
    with pytest.raises(ValueError, match="0 to 20"):
        claims.delete_many(QUEUE, [ident] * 21)
    assert claims.get(QUEUE, held.id) == held
