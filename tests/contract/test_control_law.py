"""Requests of people to all pools: pauses and drains, told by one client and read by another, and cancels of jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.control import Cancel
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import InvalidJob
from jobpool.message.settlement import Move, Settled

pytestmark = pytest.mark.needs("key_store")


def paused(backend: QueueBackend) -> dict[str, control.Pause]:
    return control.read(backend).paused


def test_a_pause_by_one_client_is_read_by_another_until_it_is_resumed(harness: Harness) -> None:
    backend, other = harness.open(), harness.open()
    assert paused(other) == {}
    made = control.pause(backend, QUEUE, "the printer burns")
    assert (made.queue, made.reason, made.until) == (QUEUE, "the printer burns", None)
    control.pause(backend, "mails")
    assert paused(other).keys() == {QUEUE, "mails"}
    assert paused(other)[QUEUE] == made
    assert control.resume(other, QUEUE) is True
    assert control.resume(backend, QUEUE) is False
    assert paused(backend).keys() == {"mails"}


def test_a_second_pause_takes_the_place_of_the_first(backend: QueueBackend) -> None:
    control.pause(backend, QUEUE, "one", until=60.0)
    control.pause(backend, QUEUE, "two")
    assert (paused(backend)[QUEUE].reason, paused(backend)[QUEUE].until) == ("two", None)


def test_a_pause_with_an_end_ends_by_itself(harness: Harness, backend: QueueBackend) -> None:
    control.pause(backend, QUEUE, until=30.0)
    control.pause(backend, "mails", until=datetime.fromtimestamp(backend.control_time() + 90.0, UTC))
    harness.advance(29.0)
    assert paused(backend).keys() == {QUEUE, "mails"}
    harness.advance(2.0)
    assert paused(backend).keys() == {"mails"}
    harness.advance(60.0)
    assert paused(backend) == {}


@pytest.mark.above
def test_an_end_that_is_past_or_says_no_zone_is_refused(backend: QueueBackend) -> None:
    for until in (0.0, -1.0, 367 * 86400.0, datetime.now(UTC) - timedelta(days=1), datetime(2126, 1, 1)):
        with pytest.raises(InvalidJob):
            control.pause(backend, QUEUE, until=until)
    with pytest.raises(InvalidJob):
        control.pause(backend, "no such name!")
    assert paused(backend) == {}


@pytest.mark.above
def test_records_of_another_version_or_of_rubbish_end_no_pool(backend: QueueBackend) -> None:
    newer = b'{"queue":"q","reason":"why","colour":"red"}'
    rubbish = {"pause:a": b"rubbish", "pause:b": newer, "cancel:a": b"[1]", "cancel:b": b'{"colour":1}', "later:a": b""}
    backend.keys.put_records(control.ASKED, rubbish, 60.0)
    backend.keys.put_records(control.POOLS, {"one": b"{}", "two": b"rubbish"}, 60.0)
    asked = control.read(backend)
    assert (set(asked.paused), asked.paused["b"].reason) == ({"a", "b"}, "why")
    assert asked.cancels.keys() == {"b"}
    assert control.pools(backend) == []


@pytest.mark.above
def test_more_pauses_than_a_page_are_all_read(backend: QueueBackend) -> None:
    backend.keys.put_records(
        control.ASKED, {f"{control.PAUSE}q{number}": b'{"queue":"q"}' for number in range(2 * control.PAGE_RECORDS)}, 60
    )
    assert len(paused(backend)) == 2 * control.PAGE_RECORDS


def a_pool(ident: str, started: float = 1.0) -> control.PoolRecord:
    facts = {"name": "pool", "host": "here", "pid": 7, "version": "1", "state": "running", "queues": [QUEUE, "mails"]}
    return control.PoolRecord(id=ident, children=2, busy=1, lease_margin=3.5, started=started, **facts)  # type: ignore[arg-type]


def test_a_pool_that_tells_of_itself_is_listed_until_it_forgets_itself(harness: Harness) -> None:
    backend, other = harness.open(), harness.open()
    control.publish_pool(backend, a_pool("late", 2.0))
    control.publish_pool(backend, a_pool("early", 1.0))
    [early, late] = control.pools(other)
    assert (early.id, late.id, late.queues, late.lease_margin) == ("early", "late", [QUEUE, "mails"], 3.5)
    assert control.drain(other, "late")
    control.forget(backend, "late")
    assert [pool.id for pool in control.pools(other)] == ["early"]
    assert control.read(backend).drained == set()


def test_a_pool_is_silent_after_three_periods_and_its_record_ends(harness: Harness, backend: QueueBackend) -> None:
    control.publish_pool(backend, a_pool("one"))
    harness.advance(control.SILENT_AFTER_S - 2.0)
    assert [pool.silent for pool in control.pools(backend)] == [False]
    harness.advance(4.0)
    assert [pool.silent for pool in control.pools(backend)] == [True]
    control.publish_pool(backend, a_pool("one"))
    assert [pool.silent for pool in control.pools(backend)] == [False]
    harness.advance(control.KEPT_S)
    assert control.pools(backend) == []


@pytest.mark.above
def test_a_clock_that_is_put_back_makes_no_dead_pool_live(harness: Harness) -> None:
    control.publish_pool(harness.open(), a_pool("one"))
    harness.set_clock(-3600.0)
    assert [pool.silent for pool in control.pools(harness.open())] == [True]


def test_a_pool_is_drained_until_it_is_resumed(backend: QueueBackend) -> None:
    assert control.drain(backend, "nobody") is False
    control.publish_pool(backend, a_pool("one"))
    assert control.drain(backend, "one")
    assert control.read(backend).drained == {"one"}
    assert [control.undrain(backend, "one"), control.undrain(backend, "one")] == [True, False]
    assert control.read(backend).drained == set()


# --- cancels ----------------------------------------------------------------------------------------------


def no_wait(backend: QueueBackend, *idents: str, purge: bool = False) -> dict[str, control.Cancel]:
    return control.cancel(backend, idents, purge=purge, wait=0.0)


def test_what_waits_or_is_delayed_becomes_a_dead_letter_in_one_step(harness: Harness, backend: QueueBackend) -> None:
    kept, waiting = backend.enqueue_many(numbered(2))
    delayed = backend.enqueue(a_job(scheduled_at=at(harness.now() + 60.0)))
    assert no_wait(backend, waiting, delayed) == dict.fromkeys((waiting, delayed), Cancel.CANCELLED)
    for ident in (waiting, delayed):
        message = harness.open().inspect(ident)
        assert message is not None
        assert (message.state, message.reason, message.attempts) == (State.DEAD, "cancelled", 0)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead) == (1, 0, 0, 2)
    assert [lease.id for lease in backend.fetch_many(QUEUE, limit=5)] == [kept]
    assert no_wait(backend, waiting) == {waiting: Cancel.ALREADY}
    assert control.read(backend).cancels == {}
    [purged] = backend.enqueue_many(numbered(1))
    assert no_wait(backend, purged, purge=True) == {purged: Cancel.CANCELLED}
    assert backend.inspect(purged) is None
    assert no_wait(backend, purged) == {purged: Cancel.UNKNOWN}


def test_a_cancelled_job_is_raised_again_and_runs_in_its_old_place(backend: QueueBackend) -> None:
    first, second, third = backend.enqueue_many(numbered(3))
    [fetched] = backend.fetch_many(QUEUE, limit=1)
    assert fetched.id == first
    no_wait(backend, second)
    [later] = backend.fetch_many(QUEUE, limit=1)
    assert later.id == third
    assert backend.bulk(MessageFilter(ids=(second,)), Verb.RETRY) == 1
    [lease] = backend.fetch_many(QUEUE, limit=5)
    assert lease.id == second
    assert backend.ack(lease)


def test_what_is_leased_is_only_marked_and_its_own_holder_ends_it(backend: QueueBackend) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert backend.bulk(MessageFilter(ids=(ident,)), Verb.CANCEL) == 0
    assert no_wait(backend, ident) == {ident: Cancel.ASKED}
    [mark] = control.read(backend).cancels.values()
    assert mark.is_for(lease)
    assert not mark.is_for(replace(lease, enqueued_at=lease.enqueued_at + 1.0))
    assert control.read(backend).cancels.keys() == {ident}
    control.unmark(backend, [ident])
    assert control.read(backend).cancels == {}
    assert backend.abandon(lease, "cancelled")
    assert no_wait(backend, ident) == {ident: Cancel.ALREADY}


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_the_mark_of_a_job_that_died_meanwhile_does_not_outlast_its_retry(backend: QueueBackend, verb: Verb) -> None:
    idents = backend.enqueue_many(numbered(2))
    died, runs = backend.fetch_many(QUEUE, limit=2, ttl=100.0)
    assert no_wait(backend, *idents) == dict.fromkeys(idents, Cancel.ASKED)
    assert backend.abandon(died, "failed")
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), verb) == 1
    assert control.read(backend).cancels.keys() == {runs.id}


@pytest.mark.parametrize("won", ["ack", "nack", "abandon", "abandon as cancelled"])
def test_a_cancel_says_what_won_against_it(backend: QueueBackend, won: str) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    cancels = control._Cancels(backend, purge=False)
    assert cancels.step(ident) is None
    if won == "ack":
        assert backend.ack(lease)
    elif won == "nack":
        assert backend.nack(lease, 30.0)
    else:
        assert backend.abandon(lease, "cancelled" if won.endswith("cancelled") else "failed")
    answers = {"ack": Cancel.ENDED, "abandon": Cancel.DEAD}
    assert cancels.step(ident) is answers.get(won, Cancel.CANCELLED)


def test_a_job_that_moves_before_its_mark_is_read_is_marked_where_it_is(
    harness: Harness, backend: QueueBackend
) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    cancels = control._Cancels(backend, purge=False)
    assert cancels.step(ident) is None
    harness.advance(1.0)
    assert backend.settle_many([(lease, Move("mails", crashes=1))]) == [Settled.OK]
    [lease] = backend.fetch_many("mails", limit=1)
    assert cancels.step(ident) is None
    assert control.read(backend).cancels[ident].is_for(lease)


def test_a_filter_cancels_all_that_match_but_no_posts(backend: QueueBackend) -> None:
    idents = backend.enqueue_many([*numbered(3), a_job(queue="mails")])
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.claims.post(QUEUE, [NewPost("posted", True, b"{}")])
    count = control.cancel_matching(backend, MessageFilter(queue=QUEUE), wait=0.0)
    assert count == {Cancel.CANCELLED: 2, Cancel.ASKED: 1}
    assert control.cancel_matching(backend, MessageFilter(queue=QUEUE, states=(State.WAITING,)), purge=True) == {}
    assert (backend.stats(QUEUE).posted, backend.stats(QUEUE).dead, backend.stats("mails").waiting) == (1, 2, 1)
    assert lease.id in idents


def test_a_claimed_job_is_left_to_its_claim(backend: QueueBackend) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    assert backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0)
    assert no_wait(backend, ident) == {ident: Cancel.CLAIMED}
