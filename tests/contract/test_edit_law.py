"""Edits of what waits or is delayed: when it runs, its priority and its queue, each in one conditional step."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace
from support.claims import claim, found, post
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import picture
from support.waiting import wait_until

from jobpool.broker import editing
from jobpool.broker.backend import QueueBackend
from jobpool.broker.filters import FIRST_PAGE, PAGE_MESSAGES
from jobpool.broker.packing import EDITED_BYTES_IN_A_STEP
from jobpool.broker.values import Edit, Edited, Message, MessageFilter, State, Verb
from jobpool.errors import InvalidJob, Unsupported
from jobpool.message.envelope import decode, verify
from jobpool.message.lease import JobLease
from jobpool.message.results import keep
from jobpool.message.settlement import Ack, Settled
from jobpool.message.signing import EnvelopeSigner

pytestmark = pytest.mark.needs("edits")
moves = pytest.mark.needs("moving_edits")

THERE = "big-machines"


def edit(backend: QueueBackend, idents: list[str], **changes: Any) -> dict[str, Edited]:
    return editing.edit(backend, editing.read_changes(backend, **changes), idents)


def edit_matching(backend: QueueBackend, where: MessageFilter, **changes: Any) -> dict[Edited, int]:
    return editing.edit_matching(backend, editing.read_changes(backend, **changes), where)


def order(backend: QueueBackend, queue: str = QUEUE) -> list[str]:
    """The ids of what is fetched, in order; given back to where they were."""
    leases = backend.fetch_many(queue, limit=100)
    for lease in leases:
        assert backend.release(lease)
    return [lease.id for lease in leases]


def fetched(backend: QueueBackend, queue: str = QUEUE) -> JobLease:
    [lease] = backend.fetch_many(queue, limit=1)
    return lease


def an_edit(message: Message, **changes: object) -> Edit:
    return replace(Edit(message, message.queue, message.priority), **changes)


def counts(backend: QueueBackend, queue: str = QUEUE) -> tuple[int, int, int, int]:
    stats = backend.stats(queue)
    return stats.waiting, stats.delayed, stats.leased, stats.dead


# --- when it runs -----------------------------------------------------------------------------------------


def test_what_waits_is_put_off_and_comes_back_to_its_place(harness: Harness, backend: QueueBackend) -> None:
    first, second = backend.enqueue_many(numbered(2))
    assert edit(backend, [first], at=at(harness.now() + 60.0)) == {first: Edited.EDITED}
    message = found(backend, first)
    assert message.state is State.DELAYED
    assert message.available_at == pytest.approx(harness.now() + 60.0, abs=1.0)
    assert counts(backend) == (1, 1, 0, 0)
    assert order(backend) == [second]
    harness.advance(61.0)
    assert order(backend) == [first, second]


def test_what_is_delayed_runs_now_in_its_place(harness: Harness, backend: QueueBackend) -> None:
    delayed = backend.enqueue(a_job(scheduled_at=at(harness.now() + 3600.0)))
    [waiting] = backend.enqueue_many(numbered(1))
    assert order(backend) == [waiting]
    assert edit(backend, [delayed, waiting], at=0) == {delayed: Edited.EDITED, waiting: Edited.UNCHANGED}
    assert edit(backend, [delayed], at=at(1.0)) == {delayed: Edited.UNCHANGED}
    assert (found(backend, delayed).state, counts(backend)) == (State.WAITING, (2, 0, 0, 0))
    assert order(backend) == [delayed, waiting]


@pytest.mark.needs("key_store")
def test_a_done_job_has_ended_while_its_result_is_kept(harness: Harness, backend: QueueBackend) -> None:
    kept, unkept = backend.enqueue_many(numbered(2))
    [first, second] = backend.fetch_many(QUEUE, limit=2)
    assert backend.settle_many([(first, Ack(result=keep("7", 60.0, first, 0.0))), (second, Ack())])
    assert edit(backend, [kept, unkept], at=0) == {kept: Edited.ENDED, unkept: Edited.UNKNOWN}
    harness.advance(61.0)
    assert edit(backend, [kept], at=0) == {kept: Edited.UNKNOWN}


def test_a_delay_is_made_shorter_and_longer(harness: Harness, backend: QueueBackend) -> None:
    sooner, later = backend.enqueue_many(numbered(2, scheduled_at=at(harness.now() + 100.0)))
    edit(backend, [sooner], at=at(harness.now() + 50.0))
    edit(backend, [later], at=at(harness.now() + 150.0))
    for passed, due in ((51.0, [sooner]), (50.0, [sooner]), (50.0, [sooner, later])):
        harness.advance(passed)
        assert order(backend) == due


def test_what_failed_and_waits_for_its_retry_keeps_its_counters(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    lease = fetched(backend)
    assert backend.nack(lease, 600.0, "boom")
    before = found(backend, ident)
    assert edit(backend, [ident], at=0, priority=1) == {ident: Edited.EDITED}
    after = found(backend, ident)
    assert (after.attempts, after.deliveries, after.last_error) == (1, 1, "boom")
    assert (after.enqueued_at, after.id) == (before.enqueued_at, ident)
    lease = fetched(backend)
    assert (lease.attempts, lease.deliveries) == (1, 2)


# --- priority ---------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_its_rank_is_that_of_its_new_priority(backend: QueueBackend) -> None:
    first, second, third, fourth = backend.enqueue_many(numbered(4))
    assert edit(backend, [third, fourth], priority=1) == dict.fromkeys((third, fourth), Edited.EDITED)
    assert edit(backend, [fourth], priority=1) == {fourth: Edited.UNCHANGED}
    edit(backend, [first], priority=255)
    assert order(backend) == [third, fourth, second, first]
    assert [message.id for message in backend.list_messages()] == [first, second, third, fourth], "in enqueue order"
    edit(backend, [first, third, fourth], priority=5)
    assert order(backend) == [first, second, third, fourth]
    assert counts(backend) == (4, 0, 0, 0)


def test_what_is_delayed_has_its_new_priority_when_it_falls_due(harness: Harness, backend: QueueBackend) -> None:
    first, second = backend.enqueue_many(numbered(2, scheduled_at=at(harness.now() + 60.0)))
    edit(backend, [second], priority=0)
    assert (found(backend, second).state, order(backend)) == (State.DELAYED, [])
    harness.advance(61.0)
    assert order(backend) == [second, first]


def test_the_body_says_the_new_priority_and_is_signed_for_it(backend: QueueBackend) -> None:
    backend.signer = EnvelopeSigner("a key of sixteen or more")
    ident = backend.enqueue(a_job({"x": [1, "ü"]}, priority=9, name="daily", max_retries=7, timeout=2.5))
    before = decode(found(backend, ident).body, attempts=0)
    assert edit(backend, [ident], priority=2) == {ident: Edited.EDITED}
    lease = fetched(backend)
    verify(lease.envelope, backend.signer, QUEUE)
    assert lease.envelope == replace(before, priority=2, sig=lease.envelope.sig)
    assert backend.ack(lease)
    assert backend.inspect(ident) is None


# --- another queue ----------------------------------------------------------------------------------------


@moves
def test_it_is_gone_here_and_waits_there_as_it_was(backend: QueueBackend) -> None:
    backend.signer = EnvelopeSigner("a key of sixteen or more")
    ident = backend.enqueue(a_job({"x": 1}, expires_in=500.0))
    lease = fetched(backend)
    expires = lease.expires
    assert expires is not None
    assert backend.release(lease)
    other = backend.enqueue(a_job(queue=THERE))
    before = found(backend, ident)
    assert edit(backend, [ident], queue=THERE) == {ident: Edited.EDITED}
    after = found(backend, ident)
    told = replace(after, queue=before.queue, body=before.body, cursor=before.cursor)
    assert (after.queue, told) == (THERE, before)
    assert (counts(backend), counts(backend, THERE)) == ((0, 0, 0, 0), (2, 0, 0, 0))
    assert (backend.queues(), order(backend)) == ([THERE], [])
    [moved, _] = backend.fetch_many(THERE, limit=2)
    assert (moved.id, moved.envelope.expires, moved.begun) == (ident, expires, True), "its age is its place"
    verify(moved.envelope, backend.signer, THERE)
    assert backend.ack(moved)
    assert [message.id for message in backend.list_messages()] == [other]


@moves
def test_what_is_delayed_waits_there_until_it_is_due(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job(scheduled_at=at(harness.now() + 60.0)))
    edit(backend, [ident], queue=THERE)
    assert (counts(backend), counts(backend, THERE)) == ((0, 0, 0, 0), (0, 1, 0, 0))
    assert order(backend, THERE) == []
    harness.advance(61.0)
    assert order(backend, THERE) == [ident]
    assert edit(backend, [ident], queue=QUEUE, at=at(harness.now() + 60.0), priority=0) == {ident: Edited.EDITED}
    message = found(backend, ident)
    assert (message.queue, message.state, message.priority) == (QUEUE, State.DELAYED, 0)
    assert edit(backend, [ident], queue=QUEUE, priority=0) == {ident: Edited.UNCHANGED}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"priority": 7}, id="priority"),
        pytest.param({"queue": THERE}, id="queue", marks=moves),
        pytest.param({"queue": THERE, "priority": 7}, id="both", marks=moves),
    ],
)
def test_a_lease_from_before_an_edit_is_refused_and_changes_nothing(
    backend: QueueBackend, changes: dict[str, Any]
) -> None:
    """With which refusal, is the broker's: it may look for the message only where it was leased."""
    ident = backend.enqueue(a_job())
    former = fetched(backend)
    assert backend.release(former)
    edit(backend, [ident], **changes)
    for _ in range(2):
        assert backend.nack(former, error="boom") in (Settled.NOT_IN_FLIGHT, Settled.NOT_OWNER)
        assert backend.renew_many([former], 60.0) == [None]
        lease = fetched(backend, changes.get("queue", QUEUE))
        assert (lease.id, lease.attempts) == (ident, 0)
        assert not backend.ack(former)
        assert backend.release(lease)


@moves
def test_it_can_die_and_be_raised_where_it_went(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    edit(backend, [ident], queue=THERE)
    lease = fetched(backend, THERE)
    assert backend.abandon(lease, "failed", "boom")
    assert edit(backend, [ident], queue=QUEUE) == {ident: Edited.DEAD}
    assert backend.bulk(MessageFilter(ids=(ident,)), Verb.RETRY) == 1
    assert edit(backend, [ident], queue=QUEUE) == {ident: Edited.EDITED}
    assert order(backend) == [ident]


@moves
@pytest.mark.needs("key_store")
def test_a_unique_key_goes_with_its_job(backend: QueueBackend) -> None:
    job = a_job(unique=True, idempotency_key="k")
    ident = backend.enqueue(job)
    assert edit(backend, [ident], queue=THERE) == {ident: Edited.EDITED}
    assert backend.enqueue(job.with_queue(THERE)) == ident
    second = backend.enqueue(job)
    assert second != ident
    assert edit(backend, [second], queue=THERE) == {second: Edited.DUPLICATE}
    assert found(backend, second).queue == QUEUE
    assert edit(backend, [ident], queue=QUEUE) == {ident: Edited.DUPLICATE}
    lease = fetched(backend, THERE)
    assert backend.ack(lease)
    assert edit(backend, [second], queue=THERE) == {second: Edited.DUPLICATE}, "known for a while after the ack"
    assert backend.bulk(MessageFilter(ids=(second,)), Verb.DELETE) == 1
    assert backend.enqueue(job) not in (ident, second)


@pytest.mark.spans
@pytest.mark.needs("key_store")
def test_a_unique_key_stays_while_the_priority_changes(backend: QueueBackend) -> None:
    job = a_job(unique=True, idempotency_key="k")
    ident = backend.enqueue(job)
    assert edit(backend, [ident], priority=1) == {ident: Edited.EDITED}
    assert backend.enqueue(job) == ident
    lease = fetched(backend)
    assert backend.ack(lease)
    assert backend.enqueue(job) == ident
    assert counts(backend) == (0, 0, 0, 0)


@pytest.mark.spans
@pytest.mark.lacks("moving_edits")
def test_where_no_step_spans_two_queues_a_move_is_refused(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    with pytest.raises(Unsupported, match="atomic_across_queues"):
        edit(backend, [ident], queue=THERE)
    with pytest.raises(Unsupported, match="atomic_across_queues"):
        backend.edit_many([an_edit(found(backend, ident), queue=THERE)])
    assert found(backend, ident).queue == QUEUE


# --- what is left alone -----------------------------------------------------------------------------------


def test_what_runs_is_dead_or_unknown_is_left_and_said_so(backend: QueueBackend) -> None:
    dead, leased = backend.enqueue_many(numbered(2))
    lease = fetched(backend)
    assert backend.abandon(lease, "failed")
    lease = fetched(backend)
    before = picture(backend, QUEUE)
    answers = edit(backend, [leased, dead, "nobody"], at=0, priority=1)
    assert answers == {leased: Edited.RUNNING, dead: Edited.DEAD, "nobody": Edited.UNKNOWN}
    assert picture(backend, QUEUE) == before
    assert backend.ack(lease)


@pytest.mark.needs("claims")
def test_what_is_claimed_or_posted_is_left(backend: QueueBackend) -> None:
    posted, claimed = post(backend, b"post")[0], backend.enqueue(a_job())
    held = claim(backend)
    later = post(backend, b"later", delay=60.0)[0]
    for answers in (edit(backend, [posted, claimed, later], at=0, priority=1),):
        assert set(answers.values()) == {Edited.CLAIMED}
    assert edit_matching(backend, MessageFilter(queue=QUEUE), priority=1) == {}
    assert {message.priority for message in backend.list_messages()} <= {0, 5}
    backend.claims.release(QUEUE, held.id)
    assert edit(backend, [claimed], priority=1) == {claimed: Edited.EDITED}
    message = found(backend, claimed)
    assert (message.priority, message.claims, message.handler) == (1, 1, "report"), "it was claimed once"


@pytest.mark.needs("claims")
def test_what_an_ended_claim_held_can_be_edited(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    claim(backend, ttl=60.0)
    harness.advance(61.0)
    backend.reap(QUEUE)
    assert edit(backend, [ident], priority=1) == {ident: Edited.EDITED}
    assert order(backend) == [ident]


@pytest.mark.above
def test_what_is_not_signed_by_a_known_key_is_left(backend: QueueBackend) -> None:
    plain = backend.enqueue(a_job())
    backend.signer = EnvelopeSigner("an old key of the same")
    old = backend.enqueue(a_job())
    backend.signer = EnvelopeSigner("quite another")
    other = backend.enqueue(a_job())
    backend.signer = EnvelopeSigner(["a new key of the same", "an old key of the same"])
    answers = edit(backend, [plain, old, other], priority=1)
    assert answers == {plain: Edited.NOT_SIGNED, old: Edited.EDITED, other: Edited.NOT_SIGNED}
    assert edit(backend, [plain, other], at=60) == {plain: Edited.EDITED, other: Edited.EDITED}, "no time is signed"
    message = found(backend, old)
    verify(decode(message.body, attempts=0), EnvelopeSigner("a new key of the same"), QUEUE)
    backend.signer = EnvelopeSigner()
    assert edit(backend, [plain, old], priority=2) == {plain: Edited.EDITED, old: Edited.NOT_SIGNED}


# --- one conditional step ---------------------------------------------------------------------------------


def test_what_has_moved_on_since_the_look_is_not_changed(backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job(identifier="mine"))
    stale = [found(backend, ident)]
    lease = fetched(backend)
    assert backend.edit_many([an_edit(stale[0], due=0.0)]) == [Edited.CHANGED]
    assert backend.release(lease)
    edit(backend, [ident], priority=1)
    assert backend.edit_many([an_edit(stale[0], priority=9)]) == [Edited.CHANGED]
    assert backend.bulk(MessageFilter(ids=(ident,)), Verb.DELETE) == 1
    assert backend.edit_many([an_edit(stale[0], priority=9)]) == [Edited.CHANGED]
    assert backend.enqueue(a_job(queue="mails", identifier="other")) == "other"
    assert backend.edit_many([an_edit(replace(stale[0], id="other"), priority=9)]) == [Edited.CHANGED]
    assert backend.list_messages(MessageFilter(queue=QUEUE)) == []


@pytest.mark.spans
def test_a_repeated_call_answers_the_same_and_changes_nothing(harness: Harness, backend: QueueBackend) -> None:
    idents = backend.enqueue_many(numbered(2))
    seen = [found(backend, ident) for ident in idents]
    asked = [an_edit(seen[0], priority=1), an_edit(replace(seen[1], priority=7), due=0.0)]
    first = backend.edit_many(asked, "a call")
    assert first == [Edited.EDITED, Edited.CHANGED]
    edit(backend, idents[:1], priority=5)
    assert harness.open().edit_many(asked, "a call") == first
    assert [found(backend, ident).priority for ident in idents] == [5, 5]
    harness.advance(61.0)
    assert backend.edit_many(asked, "a call") == first
    assert found(backend, idents[0]).priority == 1, "a call is known for a minute"


def test_two_edits_of_one_message_in_a_call_meet_its_state(backend: QueueBackend) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    seen = found(backend, ident)
    again = an_edit(replace(seen, priority=1), priority=2)
    answers = backend.edit_many([an_edit(seen, priority=1), an_edit(seen, priority=9), again])
    assert answers == [Edited.EDITED, Edited.CHANGED, Edited.EDITED]
    assert found(backend, ident).priority == 2


@pytest.mark.above
def test_large_bodies_are_changed_in_several_steps(backend: QueueBackend) -> None:
    size = EDITED_BYTES_IN_A_STEP // 5
    idents = [backend.enqueue(a_job("x" * size)) for _ in range(12)]
    assert edit_matching(backend, MessageFilter(queue=QUEUE), priority=1) == {Edited.EDITED: 12}
    assert [(message.id, message.priority) for message in backend.list_messages()] == [(ident, 1) for ident in idents]


# --- by filter --------------------------------------------------------------------------------------------


@moves
def test_a_filter_changes_each_of_many_once(harness: Harness, backend: QueueBackend) -> None:
    number = FIRST_PAGE + PAGE_MESSAGES + 3
    idents = backend.enqueue_many(numbered(number))
    late = backend.enqueue(a_job(scheduled_at=at(harness.now() + 60.0)))
    backend.enqueue(a_job(queue="mails"))
    [leased] = backend.fetch_many(QUEUE, limit=1)
    answers = edit_matching(backend, MessageFilter(queue=QUEUE), priority=2, queue=THERE)
    assert answers == {Edited.EDITED: number}, "all but the one that runs"
    assert (counts(backend), counts(backend, THERE)) == ((0, 0, 1, 0), (number - 1, 1, 0, 0))
    assert edit_matching(backend, MessageFilter(), queue=THERE) == {Edited.EDITED: 1, Edited.UNCHANGED: number}
    assert edit_matching(backend, MessageFilter(states=(State.DELAYED,)), at=0) == {Edited.EDITED: 1}
    assert edit_matching(backend, MessageFilter(states=(State.LEASED, State.DEAD)), at=0) == {}
    found = [lease.id for lease in backend.fetch_many(THERE, limit=2 * number)]
    assert found[: number - 1] == idents[1:]
    assert found[number - 1] == late
    assert backend.ack(leased)


# --- waiters and races ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["now", pytest.param("moved", marks=moves)])
def test_an_edit_wakes_whoever_waits(harness: Harness, opener: Opener, how: str) -> None:
    waiting, editing = harness.keep(opener()), harness.keep(opener())
    far = at(editing.time.now() + 3600.0)
    idents = {
        "now": editing.enqueue(a_job(scheduled_at=far)),
        "moved": editing.enqueue(a_job(queue=THERE)) if how == "moved" else "",
    }
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, [QUEUE], 30.0)
        assert not found.done()
        changes: Any = {"at": 0} if how == "now" else {"queue": QUEUE}
        assert edit(editing, [idents[how]], **changes) == {idents[how]: Edited.EDITED}
        assert found.result(10.0) == QUEUE


@moves
@pytest.mark.needs("key_store")
def test_jobs_that_are_moved_while_others_fetch_are_each_done_once(harness: Harness, opener: Opener) -> None:
    clients = [harness.keep(opener()) for _ in range(4)]
    unique = [a_job(number, unique=True, idempotency_key=str(number)) for number in range(150)]
    idents = clients[0].enqueue_many([*numbered(150), *unique])
    done: list[str] = []
    is_over = threading.Event()

    def move_to_and_fro(backend: QueueBackend) -> None:
        while not is_over.is_set():
            for here, there in ((QUEUE, THERE), (THERE, QUEUE)):
                edit_matching(backend, MessageFilter(queue=here), queue=there, priority=3)

    def work(backend: QueueBackend, queue: str) -> None:
        while not is_over.is_set():
            for lease in backend.fetch_many(queue, limit=3, ttl=600.0):
                assert backend.settle_many([(lease, Ack())]) == [Settled.OK]
                done.append(lease.id)

    with ThreadPoolExecutor(4) as executor:
        try:
            calls = [executor.submit(move_to_and_fro, backend) for backend in clients[:2]]
            calls += [executor.submit(work, *pair) for pair in zip(clients[2:], (QUEUE, THERE), strict=True)]
            wait_until(lambda: len(done) >= len(idents) or any(call.done() for call in calls), limit=120.0)
        finally:
            is_over.set()
        for call in calls:
            call.result(60.0)
    assert sorted(done) == sorted(idents)
    assert clients[0].list_messages() == []


# --- bounds -----------------------------------------------------------------------------------------------


@pytest.mark.above
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 256},
        {"priority": -1},
        {"priority": True},
        {"queue": "no such name!"},
        {"at": datetime(2126, 1, 1)},
    ],
)
def test_changes_out_of_bounds_are_refused(backend: QueueBackend, changes: dict[str, Any]) -> None:
    [ident] = backend.enqueue_many(numbered(1))
    with pytest.raises(InvalidJob):
        edit(backend, [ident], **changes)
    with pytest.raises(ValueError, match="at is a number"):
        edit(backend, [ident], at=float("nan"))


@pytest.mark.above
def test_a_time_is_seconds_from_now_or_aware(live: QueueBackend) -> None:
    [ident] = live.enqueue_many(numbered(1))
    assert edit(live, [ident], at=60) == {ident: Edited.EDITED}
    due = found(live, ident).available_at
    assert due == pytest.approx(live.time.now() + 60.0, abs=60.0)
    assert edit(live, [ident], at=at(due)) == {ident: Edited.UNCHANGED}
    assert edit(live, [ident], at=1e300) == {ident: Edited.EDITED}
    assert edit(live, [ident], at=-5) == {ident: Edited.EDITED}
    assert found(live, ident).state is State.WAITING
