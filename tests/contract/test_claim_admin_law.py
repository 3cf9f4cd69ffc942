"""The administrator's side of claims: lists, counts, bulk verbs and dead letters, of posts and of what is claimed."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple
from support.claims import bodies, claim, found, ids, post
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import CLAIM_LIMIT, ClaimStats
from jobpool.broker.values import Message, MessageFilter, State, Verb

pytestmark = pytest.mark.needs("leases", "claims")


def one_of_each(harness: Harness, backend: QueueBackend) -> dict[str, str]:
    """Posts and jobs in every state, in enqueue order; their ids."""
    known = {"dead": post(backend, b"Dead", ident="dead", life=5000.0)[0]}
    bury(backend)
    known["job dead"] = backend.enqueue(a_job("dead job"))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease, "timeout")
    known["claimed"] = post(backend, b"Claimed", life=5000.0)[0]
    known["job claimed"] = backend.enqueue(a_job("claimed job"))
    claim(backend, 2, ttl=500.0)
    known["job leased"] = backend.enqueue(a_job("leased job"))
    backend.fetch_many(QUEUE, limit=1, ttl=50.0)
    known["free"] = post(backend, b"Free", life=6000.0)[0]
    known["job free"] = backend.enqueue(a_job("free job", priority=9))
    known["delayed"] = post(backend, b"Delayed", delay=100.0)[0]
    known["job delayed"] = backend.enqueue(a_job("delayed job", scheduled_at=at(harness.now() + 100)))
    return known


def bury(backend: QueueBackend, queue: str = QUEUE, limit: int = 1) -> None:
    """The first free messages are claimed once, and then once too often."""
    backend.claims.release(queue, claim(backend, limit, queue=queue).id)
    dead = backend.stats(queue).dead
    held = backend.claims.claim(queue, limit=1, ttl=60.0, grace=60.0, max_claims=1)
    assert backend.stats(queue).dead == dead + limit
    if held:
        backend.claims.release(queue, held.id)


def at_a_time(backend: QueueBackend, **options: object) -> list[str]:
    """The ids of a list that is read in pages of two."""
    seen: list[str] = []
    after: str | None = None
    while page := backend.claims.list_free(QUEUE, after=after, limit=2, **options):  # type: ignore[arg-type]
        assert len(page) <= 2
        seen += ids(page)
        after = page[-1].cursor
    return seen


# --- the store of messages --------------------------------------------------------------------------------


@pytest.mark.spans
def test_posts_are_messages_like_any_others_and_tell_of_their_claims_and_lives(
    harness: Harness, backend: QueueBackend
) -> None:
    known = one_of_each(harness, backend)
    messages = {name: found(backend, ident) for name, ident in known.items()}
    states = {name: message.state for name, message in messages.items()}
    assert states == {
        "dead": State.DEAD,
        "job dead": State.DEAD,
        "claimed": State.LEASED,
        "job claimed": State.LEASED,
        "job leased": State.LEASED,
        "free": State.WAITING,
        "job free": State.WAITING,
        "delayed": State.DELAYED,
        "job delayed": State.DELAYED,
    }
    assert {name for name, message in messages.items() if message.handler} == {n for n in known if "job" in n}
    assert backend.list_messages(MessageFilter(queue=QUEUE)) == list(messages.values())
    assert ids(backend.list_messages()) == list(known.values())
    [held] = backend.claims.list_claims(QUEUE)
    for name in ("claimed", "job claimed"):
        message = found(backend, known[name])
        assert (message.claim, message.claims, message.deliveries) == (held.id, 1, 1)
        assert message.expires_at == pytest.approx(harness.now() + 500.0, abs=1e-4)
    assert found(backend, known["claimed"]).ends_at == pytest.approx(harness.now() + 5000.0, abs=1e-4)
    leased, free = found(backend, known["job leased"]), found(backend, known["free"])
    assert (leased.claim, leased.claims, leased.ends_at) == (None, 0, None)
    assert (free.claim, free.claims, free.expires_at, free.attempts, free.crashes) == (None, 0, None, 0, 0)
    dead = found(backend, known["dead"])
    assert (dead.reason, dead.claims, dead.ends_at, dead.claim) == (CLAIM_LIMIT, 1, None, None)


@pytest.mark.spans
def test_a_claim_that_has_ended_holds_nothing_though_nobody_noticed(harness: Harness, backend: QueueBackend) -> None:
    known = [*post(backend), backend.enqueue(a_job())]
    held = claim(backend, ttl=60.0)
    harness.advance(60.0 - harness.tick)
    assert [message.claim for message in backend.list_messages()] == [held.id] * 2
    harness.advance(harness.tick)
    assert [message.claim for message in backend.list_messages(MessageFilter(queue=QUEUE))] == [None] * 2
    assert [found(backend, ident).claim for ident in known] == [None] * 2


FILTERS = {
    "jobs": (MessageFilter(handler="report"), "job dead|job claimed|job leased|job free|job delayed"),
    "posts": (MessageFilter(handler=""), "dead|claimed|free|delayed"),
    "waiting": (MessageFilter(states=(State.WAITING,)), "free|job free"),
    "delayed": (MessageFilter(states=(State.DELAYED,)), "delayed|job delayed"),
    "leased": (MessageFilter(states=(State.LEASED,)), "claimed|job claimed|job leased"),
    "dead": (MessageFilter(states=(State.DEAD,)), "dead|job dead"),
    "reason": (MessageFilter(reason=CLAIM_LIMIT), "dead"),
    "two": (MessageFilter(queue=QUEUE, states=(State.DEAD, State.WAITING)), "dead|job dead|free|job free"),
    "text": (MessageFilter(text="FREE"), "free|job free"),
    "text and state": (MessageFilter(text="claimed", states=(State.LEASED,)), "claimed|job claimed"),
    "ids": (MessageFilter(ids=("dead", "nothing")), "dead"),
    "another queue": (MessageFilter(queue="mails"), ""),
}


@pytest.mark.spans
def test_filters_and_counts_know_posts_too(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    names = {ident: name for name, ident in known.items()}
    for wanted, (where, expected) in FILTERS.items():
        assert "|".join(names[ident] for ident in ids(backend.list_messages(where))) == expected, wanted
        assert backend.count(where) == len(backend.list_messages(where)), wanted
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free, stats.delayed, stats.total, stats.expired) == (3, 2, 2, 7, 0)
    of_jobs = backend.stats(QUEUE)
    assert (of_jobs.waiting, of_jobs.delayed, of_jobs.leased, of_jobs.dead) == (1, 1, 2, 2)
    assert (of_jobs.posted, of_jobs.pending) == (3, 4)
    assert backend.claims.stats("nothing") == ClaimStats()


@pytest.mark.spans
def test_any_bytes_can_be_searched(backend: QueueBackend) -> None:
    wanted, *_ = post(backend, b"\xff\0 Zoll \xfe", b"\xff\xfe", b"", b"\0", b"zo\xffll", b"{}")
    assert ids(backend.list_messages(MessageFilter(text="zOLL"))) == [wanted]
    assert backend.count(MessageFilter(queue=QUEUE, text="nothing")) == 0


def test_age_counts_from_the_post_and_of_the_dead_from_their_death(harness: Harness, backend: QueueBackend) -> None:
    [old] = post(backend, ident="old")
    harness.advance(10.0)
    bury(backend)
    [new] = post(backend, ident="new")
    harness.advance(2.0)
    post(backend)
    assert ids(backend.list_messages(MessageFilter(older_than=1.0))) == [old, new]
    assert ids(backend.list_messages(MessageFilter(queue=QUEUE, older_than=3.0))) == []


@pytest.mark.spans
def test_queues_are_those_that_hold_a_post_too(backend: QueueBackend) -> None:
    post(backend, queue="a")
    post(backend, queue="b", delay=10.0)
    post(backend, queue="c")
    claim(backend, queue="c")
    [gone] = post(backend, queue="d")
    backend.claims.delete_many("d", [gone])
    post(backend, queue="e")
    bury(backend, "e")
    assert backend.queues() == ["a", "b", "c", "e"]


# --- counts -----------------------------------------------------------------------------------------------


def test_stats_are_exact_from_the_very_moment_on(harness: Harness, backend: QueueBackend) -> None:
    """Claims end at 60 and 120 s, lives at 80 and 90, delays at 100 and 110."""

    def counts() -> tuple[int, ...]:
        return astuple(backend.claims.stats(QUEUE))

    post(backend, b"claimed")
    backend.enqueue(a_job("claimed"))
    claim(backend, 1, ttl=60.0)
    claim(backend, 1, ttl=120.0)
    post(backend, b"ends", life=80.0)
    post(backend, b"ends", life=90.0)
    post(backend, b"delayed", delay=100.0)
    backend.enqueue(a_job("delayed", scheduled_at=at(harness.now() + 110.0)))
    expected = {
        0: (2, 2, 2, 0),
        60: (1, 3, 2, 0),
        80: (1, 2, 2, 1),
        90: (1, 1, 2, 2),
        100: (1, 2, 1, 2),
        110: (1, 3, 0, 2),
        120: (0, 4, 0, 2),
    }
    passed, before = 0.0, expected[0]
    for moment, after in expected.items():
        if moment:
            harness.advance(moment - passed - harness.tick)
            assert counts() == before, moment
            harness.advance(harness.tick)
        assert counts() == after, moment
        passed, before = float(moment), after
    assert backend.claims.stats(QUEUE).total == 4


@pytest.mark.spans
def test_each_step_moves_the_counts(backend: QueueBackend) -> None:
    def counts() -> tuple[int, int, int, int]:
        stats, of_jobs = backend.claims.stats(QUEUE), backend.stats(QUEUE)
        return stats.claimed, stats.free, of_jobs.posted, of_jobs.pending

    known = post(backend, b"0", b"1", b"2")
    backend.enqueue(a_job(priority=9))
    assert counts() == (0, 4, 3, 1)
    held = claim(backend, 3)
    assert counts() == (3, 1, 3, 1)
    backend.claims.delete_many(QUEUE, known[:1], held.id)
    assert counts() == (2, 1, 2, 1)
    backend.claims.release(QUEUE, held.id)
    assert counts() == (0, 3, 2, 1)
    backend.claims.pop(QUEUE, 1)
    assert counts() == (0, 2, 1, 1)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert counts() == (1, 1, 1, 1)
    backend.ack(lease)
    backend.claims.delete_many(QUEUE, known)
    assert counts() == (0, 0, 0, 0)
    assert backend.queues() == []


def test_a_job_in_a_claim_is_not_the_oldest_that_waits(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job(priority=1))
    harness.advance(5.0)
    backend.enqueue(a_job(priority=9))
    held = claim(backend, 1)
    assert backend.stats(QUEUE).oldest == pytest.approx(0.0, abs=0.01)
    backend.claims.release(QUEUE, held.id)
    assert backend.stats(QUEUE).oldest == pytest.approx(5.0, abs=0.01)


# --- lists ------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_what_is_free_is_listed_in_enqueue_order_page_by_page(backend: QueueBackend) -> None:
    late = backend.enqueue(a_job(priority=9))
    known = post(backend, b"0", b"1", b"2", b"3")
    soon = backend.enqueue(a_job(priority=1))
    whole = [late, *known, soon]
    assert ids(backend.claims.list_free(QUEUE)) == whole
    assert at_a_time(backend) == whole
    first = backend.claims.list_free(QUEUE, limit=1)[0]
    assert (first.id, first.priority, first.handler, first.claim, first.claims) == (late, 9, "report", None, 0)
    assert backend.claims.list_free("nothing") == []


def test_what_is_claimed_or_leased_is_listed_only_on_request(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    free = [known["free"], known["job free"]]
    held = [known["claimed"], known["job claimed"], known["job leased"]]
    assert ids(backend.claims.list_free(QUEUE)) == at_a_time(backend) == free
    everything = backend.claims.list_free(QUEUE, claimed=True)
    assert ids(everything) == at_a_time(backend, claimed=True) == held + free
    [holder] = backend.claims.list_claims(QUEUE)
    assert [message.claim for message in everything] == [holder.id, holder.id, None, None, None]
    assert [message.claims for message in everything] == [1, 1, 0, 0, 0]


def test_lists_show_the_very_moment(harness: Harness, backend: QueueBackend) -> None:
    [claimed] = post(backend, b"claimed")
    claim(backend, ttl=60.0)
    [delayed] = post(backend, b"delayed", delay=60.0)
    [ending] = post(backend, b"ending", life=60.0)
    harness.advance(60.0 - harness.tick)
    assert ids(backend.claims.list_free(QUEUE)) == [ending]
    assert ids(backend.claims.list_free(QUEUE, claimed=True)) == [claimed, ending]
    harness.advance(harness.tick)
    listed = backend.claims.list_free(QUEUE, claimed=True)
    assert ids(listed) == ids(backend.claims.list_free(QUEUE)) == [claimed, delayed]
    assert [(message.claim, message.claims) for message in listed] == [(None, 1), (None, 0)]


@pytest.mark.above
@pytest.mark.parametrize("limit", [0, 1001])
def test_a_page_out_of_bounds_is_refused(backend: QueueBackend, limit: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        backend.claims.list_free(QUEUE, limit=limit)
    with pytest.raises(ValueError, match="1 to 1000"):
        backend.claims.list_claims(QUEUE, limit=limit)


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1;2", "9" * 40])
def test_a_cursor_that_is_none_is_refused(backend: QueueBackend, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        backend.claims.list_free(QUEUE, after=cursor)


@pytest.mark.spans
def test_live_claims_are_listed_by_id_with_what_they_hold(harness: Harness, backend: QueueBackend) -> None:
    known = post(backend, *(b"%d" % number for number in range(12)))
    held = [claim(backend, 2, ttl=60.0 + number) for number in range(5)]
    post(backend, queue="mails")
    claim(backend, queue="mails")
    backend.claims.delete_many(QUEUE, known[:1], held[0].id)
    backend.claims.delete_many(QUEUE, known[2:4], held[1].id)
    backend.claims.release(QUEUE, held[4].id)
    listed = backend.claims.list_claims(QUEUE)
    expected = {held[0].id: 1, held[1].id: 0, held[2].id: 2, held[3].id: 2}
    assert [(one.id, one.count) for one in listed] == sorted(expected.items())
    assert {(one.queue, one.grace, one.age, one.messages) for one in listed} == {(QUEUE, 60.0, 0, ())}
    assert {one.id: one.ttl for one in listed} == {one.id: one.ttl for one in held[:4]}
    pages = [backend.claims.list_claims(QUEUE, limit=3)]
    pages.append(backend.claims.list_claims(QUEUE, limit=3, after=pages[0][-1].id))
    assert pages[0] + pages[1] == listed
    harness.advance(62.0)
    assert ids(backend.claims.list_claims(QUEUE)) == [held[3].id]
    assert backend.claims.list_claims("nothing") == []


# --- bulk -------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_delete_takes_posts_and_never_what_is_claimed(harness: Harness, backend: QueueBackend) -> None:
    known = one_of_each(harness, backend)
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 6
    assert ids(backend.list_messages()) == [known["claimed"], known["job claimed"], known["job leased"]]
    assert backend.bulk(MessageFilter(states=(State.LEASED,)), Verb.DELETE) == 0
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free, stats.delayed, stats.expired) == (3, 0, 0, 0)
    assert backend.stats(QUEUE).dead == 0
    [held] = backend.claims.list_claims(QUEUE)
    assert backend.claims.release(QUEUE, held.id) == 2
    assert bodies(claim(backend).messages)[0] == b"Claimed"


def dead_post(harness: Harness, backend: QueueBackend) -> Message:
    """A dead letter that was a post with a life, and another post behind it."""
    [ident, _] = post(backend, b"dead", b"behind", life=100.0)
    bury(backend, limit=1)
    harness.advance(5.0)
    return found(backend, ident)


def test_a_dead_post_has_no_life_any_more(harness: Harness, backend: QueueBackend) -> None:
    dead = dead_post(harness, backend)
    harness.advance(1e6)
    assert found(backend, dead.id) == dead
    assert backend.stats(QUEUE).dead == 1
    assert backend.claims.stats(QUEUE).expired == 1


@pytest.mark.parametrize(("verb", "claims"), [(Verb.RETRY, 0), (Verb.RESUME, 1)])
def test_a_dead_post_is_raised_to_its_old_place_and_lives_for_ever(
    harness: Harness, backend: QueueBackend, verb: Verb, claims: int
) -> None:
    dead = dead_post(harness, backend)
    assert backend.bulk(MessageFilter(reason=CLAIM_LIMIT), verb) == 1
    message = found(backend, dead.id)
    assert (message.state, message.reason, message.died_at, message.ends_at) == (State.WAITING, None, None, None)
    assert (message.claims, message.deliveries, message.enqueued_at) == (claims, 1, dead.enqueued_at)
    assert (backend.stats(QUEUE).posted, backend.stats(QUEUE).dead, backend.stats(QUEUE).waiting) == (2, 0, 0)
    assert backend.fetch_many(QUEUE, limit=5) == []
    assert bodies(claim(backend).messages) == [b"dead", b"behind"]
    assert found(backend, dead.id).ends_at is None


@pytest.mark.parametrize(("verb", "state"), [(Verb.RETRY, State.LEASED), (Verb.RESUME, State.DEAD)])
def test_only_a_retry_gives_it_its_claims_again(
    harness: Harness, backend: QueueBackend, verb: Verb, state: State
) -> None:
    dead = dead_post(harness, backend)
    backend.bulk(MessageFilter(reason=CLAIM_LIMIT), verb)
    backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0, max_claims=1)
    assert found(backend, dead.id).state is state


def test_a_job_that_was_claimed_too_often_is_a_dead_letter_like_any_other(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    bury(backend)
    assert backend.fetch_many(QUEUE, limit=1) == []
    assert backend.bulk(MessageFilter(reason=CLAIM_LIMIT), Verb.RESUME) == 1
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert (lease.id, lease.deliveries, lease.attempts, lease.crashes) == (ident, 2, 0, 0)


def test_the_caps_of_dead_letters_count_posts(harness: Harness) -> None:
    backend = harness.open(dead_max=2)
    jobs = backend.enqueue_many(numbered(2))
    for lease in backend.fetch_many(QUEUE, limit=2):
        backend.abandon(lease, "hopeless")
        harness.advance(1.0)
    posts = post(backend, b"0", b"1")
    backend.claims.release(QUEUE, claim(backend, 1).id)
    assert ids(claim(backend, 1, max_claims=1).messages) == posts[1:]
    dead = MessageFilter(states=(State.DEAD,))
    assert ids(backend.list_messages(dead)) == [jobs[1], posts[0]]
    backend.enqueue(a_job())
    harness.advance(1.0)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease, "hopeless")
    assert ids(backend.list_messages(dead)) == [posts[0], lease.id]
    assert backend.stats(QUEUE).dead == 2


@pytest.mark.spans
@pytest.mark.lacks("native_reap")
def test_the_age_of_dead_letters_is_capped_for_posts_too(harness: Harness) -> None:
    backend = harness.open(dead_max_age=10)
    [ident] = post(backend)
    bury(backend)
    harness.advance(10.0 - harness.tick)
    backend.reap(QUEUE)
    assert found(backend, ident).state is State.DEAD
    harness.advance(harness.tick)
    backend.reap(QUEUE)
    assert backend.inspect(ident) is None
    assert backend.stats(QUEUE).dead == 0
