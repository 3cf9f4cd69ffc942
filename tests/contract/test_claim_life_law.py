"""Time and claims: the age of a claim, the life of a posted message, and how a claim prolongs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.claims import claim, found, ids, nothing_to_claim, post
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import ClaimNotFound

pytestmark = pytest.mark.needs("leases", "claims")

LONGEST = 1_209_600.0
MINE = "0123456789abcdef" * 2
EXACT = 1e-5
"""Seconds by which a Unix time may be off that was a float on its way."""


def life_left(harness: Harness, backend: QueueBackend, ident: str) -> float:
    """Seconds until the life of this message ends."""
    ends_at = found(backend, ident).ends_at
    assert ends_at is not None
    return ends_at - harness.now()


# --- age --------------------------------------------------------------------------------------------------


def test_age_is_whole_seconds_since_the_claim_or_its_renewal(harness: Harness, backend: QueueBackend) -> None:
    post(backend)
    held = claim(backend)
    assert held.age == 0
    for passed, age in [(1.0 - harness.tick, 0), (harness.tick, 1), (61.0, 62), (0.999, 62), (0.001, 63)]:
        harness.advance(passed)
        assert backend.claims.get(QUEUE, held.id).age == age
        assert backend.claims.list_claims(QUEUE)[0].age == age
    assert backend.claims.renew(QUEUE, held.id, ttl=300.0).age == 0
    harness.advance(2.5)
    assert backend.claims.get(QUEUE, held.id).age == 2


def test_age_is_never_negative_when_the_clock_is_set_back(harness: Harness, backend: QueueBackend) -> None:
    post(backend)
    held = claim(backend)
    harness.set_clock(-7.0)
    assert backend.claims.get(QUEUE, held.id).age == 0
    assert [listed.age for listed in backend.claims.list_claims(QUEUE)] == [0]
    assert backend.claims.renew(QUEUE, held.id, ttl=300.0).age == 0
    harness.set_clock(-7.0)
    assert backend.claims.get(QUEUE, held.id).age == 0


@pytest.mark.needs("leases")
def test_a_claim_ends_by_the_clock_by_which_a_lease_ends(harness: Harness, backend: QueueBackend) -> None:
    """Where the broker's wall clock decides, both have ended when it is set; else neither has."""
    lease = new_lease(backend, ttl=60.0)
    post(backend)
    held = claim(backend)
    backend.claims.renew(QUEUE, held.id, ttl=60.0)
    harness.set_clock(100.0)
    listed = [live.id for live in backend.claims.list_claims(QUEUE)]
    assert bool(listed) is (backend.renew_many([lease], 60.0)[0] is not None)


# --- a life of its own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", [60.0, LONGEST])
def test_a_life_ends_at_its_end(harness: Harness, backend: QueueBackend, life: float) -> None:
    [ident] = post(backend, life=life)
    assert life_left(harness, backend, ident) == pytest.approx(life, abs=EXACT)
    harness.advance(life - harness.tick)
    assert ids(backend.claims.list_free(QUEUE)) == [ident]
    assert backend.claims.stats(QUEUE).free == 1
    harness.advance(harness.tick)
    assert nothing_to_claim(backend)
    assert backend.claims.stats(QUEUE).expired == 1


def test_the_last_moment_of_a_life_is_early_enough_for_a_claim(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend, life=60.0)
    harness.advance(60.0 - harness.tick)
    assert ids(claim(backend).messages) == [ident]


def test_a_life_counts_from_the_post_and_can_end_before_a_delay(harness: Harness, backend: QueueBackend) -> None:
    post(backend, b"never free", life=60.0, delay=900.0)
    post(backend, b"never free either", life=60.0, delay=60.0)
    [third] = post(backend, b"free for two seconds", life=62.0, delay=60.0)
    assert backend.claims.stats(QUEUE).delayed == 3
    harness.advance(60.0)
    stats = backend.claims.stats(QUEUE)
    assert (stats.free, stats.delayed, stats.expired) == (1, 0, 2)
    assert ids(backend.claims.list_free(QUEUE)) == [third]
    harness.advance(2.0)
    assert backend.claims.stats(QUEUE).expired == 3


@pytest.mark.spans
def test_what_has_ended_is_nowhere(harness: Harness, backend: QueueBackend) -> None:
    """Nobody has noticed its end before this: each look is the first."""
    looks: dict[str, Callable[[QueueBackend], bool]] = {
        "claim": nothing_to_claim,
        "pop": lambda backend: backend.claims.pop(QUEUE, 20) == [],
        "list_free": lambda backend: backend.claims.list_free(QUEUE, claimed=True) == [],
        "claims.stats": lambda backend: backend.claims.stats(QUEUE).total == 0,
        "stats": lambda backend: backend.stats(QUEUE).posted == 0,
        "inspect": lambda backend: backend.inspect("mine") is None,
        "list": lambda backend: backend.list_messages() == [],
        "list of a queue": lambda backend: backend.list_messages(MessageFilter(queue=QUEUE)) == [],
        "list by state": lambda backend: backend.list_messages(MessageFilter(states=(State.WAITING,))) == [],
        "list by id": lambda backend: backend.list_messages(MessageFilter(ids=("mine",))) == [],
        "count": lambda backend: backend.count(MessageFilter()) == 0,
        "count of a queue": lambda backend: backend.count(MessageFilter(queue=QUEUE, text="hel")) == 0,
        "bulk": lambda backend: backend.bulk(MessageFilter(), Verb.DELETE) == 0,
        "bulk by id": lambda backend: backend.bulk(MessageFilter(ids=("mine",)), Verb.DELETE) == 0,
        "fetch": lambda backend: backend.fetch_many(QUEUE, limit=1) == [],
    }
    for look in looks:
        post(backend, b"hello", ident="mine", life=60.0)
        post(backend, b"hello too", life=60.0, delay=50.0)
        harness.advance(60.0)
        assert looks[look](backend), look
        backend.claims.stats(QUEUE)
        assert backend.queues() == [], look
        harness.advance(601.0)
    assert backend.claims.stats(QUEUE).expired == 2 * len(looks)


def test_what_was_deleted_in_time_did_not_end_with_its_life(harness: Harness, backend: QueueBackend) -> None:
    held, free, popped = post(backend, b"0", b"1", b"2", life=60.0)
    backend.claims.delete_many(QUEUE, [held], claim(backend, 1, ttl=60.0).id)
    backend.claims.delete_many(QUEUE, [free])
    assert ids(backend.claims.pop(QUEUE, 1)) == [popped]
    post(backend, b"3", life=60.0)
    backend.bulk(MessageFilter(), Verb.DELETE)
    harness.advance(1000.0)
    assert nothing_to_claim(backend)
    assert backend.claims.stats(QUEUE).expired == 0


@pytest.mark.parametrize("way", ["claim", "no claim"])
def test_what_has_ended_is_as_good_as_gone_to_a_delete_and_is_counted(
    harness: Harness, backend: QueueBackend, way: str
) -> None:
    """Nobody has noticed its end before."""
    post(backend, b"claimed")
    held = claim(backend).id if way == "claim" else None
    [ended] = post(backend, b"ended", life=60.0)
    harness.advance(60.0)
    assert backend.claims.delete_many(QUEUE, [ended], held) == [Deleted.DONE]
    assert backend.claims.stats(QUEUE).expired == 1


@pytest.mark.lacks("native_reap")
def test_a_reap_removes_what_has_ended_and_counts_it(harness: Harness, backend: QueueBackend) -> None:
    post(backend, b"0", b"1", life=60.0)
    post(backend, b"2", life=61.0)
    harness.advance(60.0)
    assert backend.reap(QUEUE) == []
    assert backend.reap_expired(QUEUE, visibility_timeout=1.0) == 0
    assert (backend.stats(QUEUE).posted, backend.claims.stats(QUEUE).expired) == (1, 2)


# --- prolonged by a claim ---------------------------------------------------------------------------------

CASES = [
    pytest.param(60.0, 60.0, 60.0, 120.0, id="the least of all"),
    pytest.param(60.0, 300.0, 60.0, 360.0, id="shorter than the claim"),
    pytest.param(310.0, 300.0, 60.0, 360.0, id="within the grace"),
    pytest.param(359.0, 300.0, 60.0, 360.0, id="a second less"),
    pytest.param(360.0, 300.0, 60.0, 360.0, id="the same"),
    pytest.param(361.0, 300.0, 60.0, 361.0, id="a second more"),
    pytest.param(3_000.0, 300.0, 60.0, 3_000.0, id="longer: never shortened"),
    pytest.param(60.0, 43_200.0, 43_200.0, 86_400.0, id="the most that a claim can do"),
    pytest.param(86_401.0, 43_200.0, 43_200.0, 86_401.0, id="longer than that"),
    pytest.param(LONGEST, 43_200.0, 43_200.0, LONGEST, id="the longest"),
]


@pytest.mark.parametrize(("life", "ttl", "grace", "left"), CASES)
def test_a_claimed_message_lives_until_the_end_of_the_claim_and_its_grace(
    harness: Harness, backend: QueueBackend, life: float, ttl: float, grace: float, left: float
) -> None:
    [ident] = post(backend, life=life)
    [message] = claim(backend, ttl=ttl, grace=grace).messages
    assert message.ends_at == pytest.approx(harness.now() + left, abs=EXACT)
    assert message.ends_at == found(backend, ident).ends_at
    harness.advance(left - harness.tick)
    assert ids(backend.claims.list_free(QUEUE)) == [ident]
    harness.advance(harness.tick)
    assert backend.claims.list_free(QUEUE) == []


def test_no_claim_prolongs_a_life_beyond_the_longest(harness: Harness, backend: QueueBackend) -> None:
    """No claim that the public methods make is so long; a backend has the cap all the same."""
    short, long = post(backend, b"short", life=60.0) + post(backend, b"long", life=LONGEST)
    harness.advance(30.0)
    backend.claims._claim(QUEUE, MINE, 2, LONGEST - 60.0, 61.0, 0)
    assert life_left(harness, backend, short) == pytest.approx(LONGEST, abs=EXACT)
    harness.advance(5.0)
    backend.claims._renew(QUEUE, MINE, LONGEST - 60.0, 59.0)
    assert life_left(harness, backend, short) == pytest.approx(LONGEST - 1.0, abs=EXACT)
    backend.claims._renew(QUEUE, MINE, LONGEST, LONGEST)
    assert life_left(harness, backend, short) == pytest.approx(LONGEST, abs=EXACT)
    assert life_left(harness, backend, long) == pytest.approx(LONGEST, abs=EXACT)


def test_a_renewal_prolongs_what_is_still_in_the_claim_and_a_release_leaves_it(
    harness: Harness, backend: QueueBackend
) -> None:
    short, long, free = post(backend, b"short", life=60.0) + post(backend, b"1", life=1000.0) + post(backend, b"2")
    held = claim(backend, ttl=300.0, grace=60.0)
    harness.advance(100.0)
    first, second, third = backend.claims.renew(QUEUE, held.id, ttl=400.0).messages
    assert (first.ends_at, second.ends_at) == pytest.approx((harness.now() + 460.0, harness.now() + 900.0), abs=EXACT)
    assert (first.id, second.id, third.id, third.ends_at) == (short, long, free, None)
    backend.claims.renew(QUEUE, held.id, ttl=60.0, grace=60.0)
    assert life_left(harness, backend, short) == pytest.approx(460.0, abs=EXACT)
    backend.claims.renew(QUEUE, held.id, ttl=60.0, grace=1000.0)
    assert life_left(harness, backend, short) == pytest.approx(1060.0, abs=EXACT)
    assert life_left(harness, backend, long) == pytest.approx(1060.0, abs=EXACT)
    backend.claims.release(QUEUE, held.id)
    assert life_left(harness, backend, short) == pytest.approx(1060.0, abs=EXACT)


def test_a_refused_renewal_prolongs_nothing(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend, life=60.0)
    held = claim(backend, ttl=60.0, grace=100.0)
    harness.advance(60.0)
    with pytest.raises(ClaimNotFound):
        backend.claims.renew(QUEUE, held.id, ttl=300.0)
    assert life_left(harness, backend, ident) == pytest.approx(100.0, abs=EXACT)


def test_a_life_can_be_prolonged_again_and_again(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend, life=60.0)
    held = claim(backend, ttl=60.0, grace=60.0)
    for _ in range(3):
        harness.advance(59.0)
        held = backend.claims.renew(QUEUE, held.id, ttl=60.0)
    assert ids(held.messages) == [ident]
    harness.advance(60.0)
    assert ids(claim(backend, ttl=60.0).messages) == [ident]
    assert life_left(harness, backend, ident) == pytest.approx(120.0, abs=EXACT)


def test_the_life_of_what_a_claim_holds_is_never_shortened_by_a_clock_that_was_set_back(
    harness: Harness, backend: QueueBackend
) -> None:
    [ident] = post(backend, life=LONGEST)
    before = found(backend, ident).ends_at
    harness.set_clock(-100.0)
    assert claim(backend).messages[0].ends_at == before


def test_what_has_no_life_lives_for_ever_and_a_claim_gives_it_none(harness: Harness, backend: QueueBackend) -> None:
    [ident] = post(backend)
    job = backend.enqueue(a_job())
    harness.advance(10 * LONGEST)
    held = claim(backend)
    assert [message.ends_at for message in held.messages] == [None, None]
    assert [message.ends_at for message in backend.claims.renew(QUEUE, held.id, ttl=60.0).messages] == [None, None]
    assert (found(backend, ident).ends_at, found(backend, job).ends_at) == (None, None)


# --- more that ends, or falls due, at once than one call may tidy up -----------------------------------------

MANY = 1_040


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def counts(backend: QueueBackend) -> tuple[int, int, int, int]:
    """After what one call leaves for the next."""
    backend.claims.stats(QUEUE)
    stats = backend.claims.stats(QUEUE)
    return stats.claimed, stats.free, stats.delayed, stats.expired


def test_many_claims_end_together(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, *numbers(MANY + 20))
    for _ in range(MANY // 20):
        claim(backend, 20, ttl=60.0)
    harness.advance(60.0)
    held = claim(backend, 20)
    assert set(ids(held.messages)) < set(known)
    assert backend.claims.list_claims(QUEUE)[0].id == held.id
    assert counts(backend) == (20, MANY, 0, 0)
    backend.claims.release(QUEUE, held.id)
    assert ids(claim(backend, 20).messages) == known[:20]


def test_many_lives_end_together(harness: Harness, backend: QueueBackend) -> None:
    post(backend, *numbers(1_200), life=60.0)
    known = post(backend, b"left", b"over")
    harness.advance(60.0)
    assert ids(backend.claims.list_free(QUEUE)) == known
    assert ids(claim(backend, 1).messages) == known[:1]
    assert backend.stats(QUEUE).posted == 2
    assert counts(backend) == (1, 1, 0, 1_200)


def test_many_delays_end_together(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, *numbers(MANY), delay=60.0)
    harness.advance(60.0)
    assert ids(claim(backend, 20).messages) == known[:20]
    assert ids(backend.claims.list_free(QUEUE, limit=20)) == known[20:40]
    assert counts(backend) == (20, MANY - 20, 0, 0)
