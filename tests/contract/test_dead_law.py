"""Dead letters: why they died, and raised again with or without their past."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease, numbered
from support.looks import a_lease, dead_letter, in_order, is_refusal, recover, seen

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, ReapPolicy, State, Verb
from jobpool.message.settlement import Abandon, Nack, Settled, Settlement

pytestmark = pytest.mark.needs("leases")

AT_ONCE = ReapPolicy(max_crashes=9, back_off=0.0)


def settle(backend: QueueBackend, settlement: Settlement) -> str:
    """Lease the next message and settle it; its id."""
    lease = a_lease(backend)
    assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
    return lease.id


def settled(backend: QueueBackend, settlement: Settlement) -> Message:
    """As `settle`; the message as it is then."""
    return seen(backend, settle(backend, settlement))


def crash(harness: Harness, backend: QueueBackend, policy: ReapPolicy = AT_ONCE) -> Message:
    lease = a_lease(backend, ttl=1.0)
    recover(harness, backend, 1.0, policy)
    return seen(backend, lease.id)


# --- causes -----------------------------------------------------------------------------------------------

CAUSE = '{"signal": "SIGKILL", "stack": "Zürich\\n  line 2"}'


@pytest.mark.spans
@pytest.mark.parametrize(
    "settlement", [Nack(0.0, "boom", CAUSE), Nack(60.0, None, CAUSE), Abandon("timeout", "x", CAUSE)]
)
def test_how_an_attempt_ended_is_kept_with_its_message(
    harness: Harness, backend: QueueBackend, settlement: Settlement
) -> None:
    ident = backend.enqueue(a_job())
    settle(backend, settlement)
    message = backend.inspect(ident)
    assert message.cause == CAUSE if message else not backend.capabilities.lists_live
    harness.advance(60.0)
    assert seen(backend, ident).cause == CAUSE


@pytest.mark.needs("exact_crashes")
def test_a_crash_takes_the_place_of_a_cause_and_a_cause_that_of_a_crash(
    harness: Harness, backend: QueueBackend
) -> None:
    backend.enqueue(a_job())
    settle(backend, Nack(0.0, "boom", "killed"))
    assert crash(harness, backend).cause == "lease expired"
    assert settled(backend, Nack(0.0, None, "killed again")).cause == "killed again"


def test_a_refused_settlement_leaves_no_cause(backend: QueueBackend) -> None:
    lease = new_lease(backend)
    backend.release(lease)
    [answer] = backend.settle_many([(lease, Nack(0.0, "boom", "late"))])
    assert is_refusal(backend, answer, Settled.NOT_IN_FLIGHT)
    message = seen(backend, lease.id)
    assert (message.cause, message.last_error) == (None, None)


def test_messages_are_found_by_a_word_of_their_cause(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    dead = settle(backend, Abandon("timeout", "boom", CAUSE))
    waiting = settle(backend, Nack(0.0, "boom", "OUT OF MEMORY"))
    assert [message.id for message in backend.list_messages(MessageFilter(text="zürich"))] == [dead]
    shown = [waiting] if backend.capabilities.lists_live else []
    assert [message.id for message in backend.list_messages(MessageFilter(text="of memory"))] == shown
    assert backend.count(MessageFilter(text="of memory")) == len(shown)


# --- attempts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [0, 2])
@pytest.mark.parametrize("reason", ["failed", "unrecoverable", "timeout", "memory-limit"])
def test_a_dead_letter_counts_the_failure_that_it_died_of(backend: QueueBackend, reason: str, failures: int) -> None:
    backend.enqueue(a_job())
    for _ in range(failures):
        backend.nack(a_lease(backend))
    lease = a_lease(backend)
    assert backend.abandon(lease, reason) is Settled.OK
    backend.abandon(lease, reason)  # a repeat counts nothing
    assert dead_letter(backend, lease.id).attempts == failures + 1
    assert backend.bulk(MessageFilter(ids=(lease.id,)), Verb.RESUME) == 1
    resumed = a_lease(backend)
    assert (resumed.attempts, resumed.envelope.attempts) == (failures + 1, failures + 1)
    backend.abandon(resumed, reason)
    assert dead_letter(backend, lease.id).attempts == failures + 2
    assert backend.bulk(MessageFilter(ids=(lease.id,)), Verb.RETRY) == 1
    assert a_lease(backend).attempts == 0


@pytest.mark.parametrize("reason", ["", "rejected", "cancelled", "expired", "unknown-handler", "handler-not-allowed"])
def test_what_died_without_a_failure_counts_none(backend: QueueBackend, reason: str) -> None:
    backend.enqueue(a_job())
    backend.nack(a_lease(backend))
    lease = a_lease(backend)
    assert backend.abandon(lease, reason) is Settled.OK
    assert dead_letter(backend, lease.id).attempts == 1


# --- raised again -----------------------------------------------------------------------------------------


@pytest.fixture
def dead(harness: Harness, backend: QueueBackend) -> Message:
    """A dead letter with a past: two failures, a crash between them, and a verdict; another message waits."""
    ident = backend.enqueue(a_job("first"))
    settle(backend, Nack(0.0, "boom", "killed"))
    a_lease(backend, ttl=1.0)
    recover(harness, backend, 1.0, AT_ONCE)
    settle(backend, Nack(0.0, "boom again"))
    lease = a_lease(backend)
    backend.enqueue(a_job("behind"))
    assert backend.settle_many([(lease, Abandon("hopeless", "given up", "at last"))]) == [Settled.OK]
    return dead_letter(backend, ident)


def test_resume_goes_on_where_it_ended(harness: Harness, backend: QueueBackend, dead: Message) -> None:
    harness.advance(5.0)
    assert backend.bulk(MessageFilter(ids=(dead.id,)), Verb.RESUME) == 1
    message = seen(backend, dead.id)
    assert (message.state, message.reason, message.died_at) == (State.WAITING, None, None)
    assert (message.attempts, message.crashes, message.deliveries) == (dead.attempts, dead.crashes, dead.deliveries)
    assert (message.attempts, message.last_error, message.cause) == (2, "given up", "at last")
    assert (message.enqueued_at, message.body) == (dead.enqueued_at, dead.body)


def test_what_was_resumed_has_its_old_place_and_counts_on(backend: QueueBackend, dead: Message) -> None:
    backend.bulk(MessageFilter(queue=QUEUE), Verb.RESUME)
    leases = backend.fetch_many(QUEUE, limit=2)
    assert in_order(backend, [lease.envelope.payload for lease in leases]) == in_order(backend, ["first", "behind"])
    [lease] = [lease for lease in leases if lease.id == dead.id]
    assert (lease.attempts, lease.envelope.attempts, lease.deliveries) == (2, 2, dead.deliveries + 1)
    backend.nack(lease)
    assert seen(backend, dead.id).attempts == 3


def test_retry_forgets_it_all_but_its_place(backend: QueueBackend, dead: Message) -> None:
    assert backend.bulk(MessageFilter(ids=(dead.id,)), Verb.RETRY) == 1
    leases = backend.fetch_many(QUEUE, limit=2)
    assert in_order(backend, [lease.envelope.payload for lease in leases]) == in_order(backend, ["first", "behind"])
    [lease] = [lease for lease in leases if lease.id == dead.id]
    assert (lease.attempts, lease.crashes, lease.deliveries) == (0, 0, dead.deliveries + 1)
    assert lease.body == dead.body
    assert all(backend.release(lease) for lease in leases)
    message = seen(backend, dead.id)
    assert (message.state, message.attempts, message.crashes) == (State.WAITING, 0, 0)
    assert (message.last_error, message.reason, message.cause, message.died_at) == (None, None, None, None)


@pytest.mark.needs("exact_crashes")
def test_what_was_resumed_crashes_on_and_within_the_window_of_before(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    window = harness.lasts(1.0) + 10.0
    policy = ReapPolicy(max_crashes=1, window=window, back_off=0.0)
    crash(harness, backend, policy)
    assert crash(harness, backend, policy).state is State.DEAD
    backend.bulk(MessageFilter(), Verb.RESUME)
    again = crash(harness, backend, policy)
    assert (again.state, again.crashes) == (State.DEAD, 3)
    backend.bulk(MessageFilter(), Verb.RESUME)
    harness.advance(window)
    last = crash(harness, backend, policy)
    assert (last.state, last.crashes) == (State.WAITING, 1)


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_only_the_dead_are_raised(backend: QueueBackend, verb: Verb) -> None:
    backend.enqueue_many(numbered(4))
    one, two, _ = backend.fetch_many(QUEUE, limit=3)
    backend.nack(one, delay=60.0)
    backend.abandon(two, "hopeless")
    assert backend.bulk(MessageFilter(), verb) == 1
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed, stats.leased, stats.dead) == (2, 1, 1, 0)
    assert backend.bulk(MessageFilter(), verb) == 0


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME, Verb.DELETE])
def test_raised_or_deleted_are_the_oldest_that_match_up_to_the_limit(backend: QueueBackend, verb: Verb) -> None:
    known = backend.enqueue_many(numbered(6))
    leases = backend.fetch_many(QUEUE, limit=6)
    backend.settle_many([(lease, Abandon("odd" if place % 2 else "even")) for place, lease in enumerate(leases)])
    assert backend.bulk(MessageFilter(reason="odd"), verb, limit=2) == 2
    left = backend.list_messages(MessageFilter(states=(State.DEAD,)))
    assert [message.id for message in left] == [known[place] for place in (0, 2, 4, 5)]
    raised = [lease.id for lease in backend.fetch_many(QUEUE, limit=6)]
    assert in_order(backend, raised) == in_order(backend, [] if verb is Verb.DELETE else [known[1], known[3]])
    assert backend.bulk(MessageFilter(reason="odd"), verb, limit=2) == 1
