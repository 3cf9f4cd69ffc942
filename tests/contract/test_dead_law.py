"""Dead letters: why they died, raised again with or without their past, and never more than the caps allow."""

from __future__ import annotations

from typing import Any

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered

from jobpool.backend import Message, MessageFilter, QueueBackend, ReapPolicy, State, Verb
from jobpool.lease import JobLease
from jobpool.settlement import Abandon, Nack, Settled, Settlement

pytestmark = pytest.mark.needs("leases")

AT_ONCE = ReapPolicy(max_crashes=9, back_off=0.0)


def a_lease(backend: QueueBackend, ttl: float = 30.0) -> JobLease:
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=ttl)
    return lease


def settle(backend: QueueBackend, settlement: Settlement) -> Message:
    """Lease the one message and settle it; as it is then."""
    lease = a_lease(backend)
    assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
    return found(backend, lease.id)


def found(backend: QueueBackend, ident: str) -> Message:
    message = backend.inspect(ident)
    assert message is not None
    return message


def crash(harness: Harness, backend: QueueBackend, policy: ReapPolicy = AT_ONCE) -> Message:
    lease = a_lease(backend, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE, policy)
    return found(backend, lease.id)


# --- causes -----------------------------------------------------------------------------------------------

CAUSE = '{"signal": "SIGKILL", "stack": "Zürich\\n  line 2"}'


@pytest.mark.parametrize(
    "settlement", [Nack(0.0, "boom", CAUSE), Nack(60.0, None, CAUSE), Abandon("timeout", "x", CAUSE)]
)
def test_how_an_attempt_ended_is_kept_with_its_message(backend: QueueBackend, settlement: Settlement) -> None:
    backend.enqueue(a_job())
    assert settle(backend, settlement).cause == CAUSE


def test_what_says_no_cause_leaves_the_last_one(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    settle(backend, Nack(0.0, "boom", "first"))
    assert settle(backend, Nack(0.0, "again")).cause == "first"
    assert backend.release(a_lease(backend))
    assert settle(backend, Abandon("hopeless")).cause == "first"


def test_a_later_cause_takes_the_place_of_an_earlier(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    settle(backend, Nack(0.0, "boom", "first"))
    assert settle(backend, Nack(0.0, "boom", "second")).cause == "second"
    assert settle(backend, Abandon("hopeless", None, "third")).cause == "third"


@pytest.mark.lacks("native_reap")
def test_a_crash_takes_the_place_of_a_cause_and_a_cause_that_of_a_crash(
    harness: Harness, backend: QueueBackend
) -> None:
    backend.enqueue(a_job())
    settle(backend, Nack(0.0, "boom", "killed"))
    assert crash(harness, backend).cause == "lease expired"
    assert settle(backend, Nack(0.0, None, "killed again")).cause == "killed again"


def test_a_refused_settlement_leaves_no_cause(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    lease = a_lease(backend)
    backend.release(lease)
    assert backend.settle_many([(lease, Nack(0.0, "boom", "late"))]) == [Settled.NOT_IN_FLIGHT]
    message = found(backend, lease.id)
    assert (message.cause, message.last_error) == (None, None)


def test_messages_are_found_by_a_word_of_their_cause(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    dead = settle(backend, Abandon("timeout", "boom", CAUSE))
    waiting = settle(backend, Nack(0.0, "boom", "OUT OF MEMORY"))
    assert [message.id for message in backend.list_messages(MessageFilter(text="zürich"))] == [dead.id]
    assert backend.count(MessageFilter(text="of memory")) == 1
    assert backend.list_messages(MessageFilter(text="of memory")) == [waiting]


# --- raised again -----------------------------------------------------------------------------------------


@pytest.fixture
def dead(harness: Harness, backend: QueueBackend) -> Message:
    """A dead letter with a past: two failures, the second of which killed it, and, where there is a reaper, a crash."""
    ident = backend.enqueue(a_job("first"))
    backend.enqueue(a_job("behind"))
    settle(backend, Nack(0.0, "boom", "killed"))
    if not backend.capabilities.native_reap:
        crash(harness, backend)
    settle(backend, Nack(0.0, "boom again"))
    settle(backend, Abandon("hopeless", "given up", "at last"))
    return found(backend, ident)


def test_resume_goes_on_where_it_ended(harness: Harness, backend: QueueBackend, dead: Message) -> None:
    harness.advance(5.0)
    assert backend.bulk(MessageFilter(ids=(dead.id,)), Verb.RESUME) == 1
    message = found(backend, dead.id)
    assert (message.state, message.reason, message.died_at) == (State.WAITING, None, None)
    assert (message.attempts, message.crashes, message.deliveries) == (dead.attempts, dead.crashes, dead.deliveries)
    assert (message.attempts, message.last_error, message.cause) == (2, "given up", "at last")
    assert (message.enqueued_at, message.body) == (dead.enqueued_at, dead.body)


def test_what_was_resumed_has_its_old_place_and_counts_on(backend: QueueBackend, dead: Message) -> None:
    backend.bulk(MessageFilter(queue=QUEUE), Verb.RESUME)
    lease, behind = backend.fetch_many(QUEUE, limit=2)
    assert (lease.id, behind.envelope.payload) == (dead.id, "behind")
    assert (lease.attempts, lease.envelope.attempts, lease.deliveries) == (2, 2, dead.deliveries + 1)
    backend.nack(lease)
    assert found(backend, dead.id).attempts == 3


def test_retry_forgets_it_all(backend: QueueBackend, dead: Message) -> None:
    assert backend.bulk(MessageFilter(ids=(dead.id,)), Verb.RETRY) == 1
    message = found(backend, dead.id)
    assert (message.attempts, message.crashes, message.deliveries) == (0, 0, dead.deliveries)
    assert (message.last_error, message.reason, message.cause, message.died_at) == (None, None, None, None)


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
def test_what_was_resumed_crashes_on_and_within_the_window_of_before(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    policy = ReapPolicy(max_crashes=1, window=40.0, back_off=0.0)
    crash(harness, backend, policy)
    assert crash(harness, backend, policy).state is State.DEAD
    backend.bulk(MessageFilter(), Verb.RESUME)
    again = crash(harness, backend, policy)
    assert (again.state, again.crashes) == (State.DEAD, 3)
    backend.bulk(MessageFilter(), Verb.RESUME)
    harness.advance(40.0)
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


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
def test_raised_are_the_oldest_that_match_up_to_the_limit(backend: QueueBackend, verb: Verb) -> None:
    known = backend.enqueue_many(numbered(6))
    leases = backend.fetch_many(QUEUE, limit=6)
    backend.settle_many([(lease, Abandon("odd" if place % 2 else "even")) for place, lease in enumerate(leases)])
    assert backend.bulk(MessageFilter(reason="odd"), verb, limit=2) == 2
    waiting = backend.list_messages(MessageFilter(states=(State.WAITING,)))
    assert [message.id for message in waiting] == [known[1], known[3]]
    assert backend.bulk(MessageFilter(reason="odd"), verb, limit=2) == 1


# --- caps -------------------------------------------------------------------------------------------------


def evicted(backend: Any, queue: str = QUEUE) -> int:
    count: int = backend.evicted(queue)
    return count


def die(harness: Harness, backend: QueueBackend, count: int) -> list[str]:
    """So many new messages, dead one after the other, a second apart; their ids."""
    known = backend.enqueue_many(numbered(count))
    for lease in backend.fetch_many(QUEUE, limit=count):
        backend.abandon(lease, "hopeless")
        harness.advance(1.0)
    return known


def left(backend: QueueBackend) -> list[str]:
    return [message.id for message in backend.list_messages(MessageFilter(states=(State.DEAD,)), limit=100)]


def test_without_caps_all_are_kept(harness: Harness, backend: QueueBackend) -> None:
    known = die(harness, backend, 20)
    harness.advance(366 * 86400.0)
    backend.reap(QUEUE)
    assert left(backend) == known
    assert evicted(backend) == 0


def test_beyond_the_count_the_oldest_go_and_are_counted(harness: Harness) -> None:
    backend = harness.open(dead_max=3)
    known = die(harness, backend, 5)
    assert left(backend) == known[2:]
    assert (backend.stats(QUEUE).dead, evicted(backend), evicted(backend, "mails")) == (3, 2, 0)
    assert backend.inspect(known[0]) is None


def test_the_count_is_of_each_queue(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    backend.enqueue_many([a_job(queue=f"q{number % 2}") for number in range(4)])
    for queue in ("q0", "q1"):
        for lease in backend.fetch_many(queue, limit=2):
            backend.abandon(lease, "hopeless")
    assert [backend.stats(queue).dead for queue in ("q0", "q1")] == [1, 1]
    assert [evicted(backend, queue) for queue in ("q0", "q1")] == [1, 1]


def test_the_count_holds_for_a_whole_batch(harness: Harness) -> None:
    backend = harness.open(dead_max=2)
    backend.enqueue_many(numbered(8))
    leases = backend.fetch_many(QUEUE, limit=8)
    assert backend.settle_many([(lease, Abandon("hopeless")) for lease in leases]) == [Settled.OK] * 8
    assert (backend.stats(QUEUE).dead, evicted(backend)) == (2, 6)


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
def test_what_dies_by_the_crash_limit_counts_too(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    backend.enqueue_many(numbered(3))
    for _ in range(2):
        backend.fetch_many(QUEUE, limit=3, ttl=1.0)
        harness.expire_leases(1.0)
        backend.reap(QUEUE, ReapPolicy(max_crashes=1, back_off=0.0))
    assert (backend.stats(QUEUE).dead, backend.stats(QUEUE).pending, evicted(backend)) == (1, 0, 2)


def test_beyond_the_age_they_go_when_something_dies(harness: Harness) -> None:
    backend = harness.open(dead_max_age=60.0)
    backend.enqueue_many(numbered(3))
    one, two, three = backend.fetch_many(QUEUE, limit=3, ttl=1000.0)
    backend.abandon(one, "hopeless")
    harness.advance(60.0 - harness.tick)
    backend.abandon(two, "hopeless")
    assert (left(backend), evicted(backend)) == ([one.id, two.id], 0)
    harness.advance(harness.tick)
    backend.abandon(three, "hopeless")
    assert (left(backend), evicted(backend)) == ([two.id, three.id], 1)


@pytest.mark.lacks("native_reap")
def test_beyond_the_age_they_go_with_a_reap(harness: Harness) -> None:
    backend = harness.open(dead_max_age=60.0)
    die(harness, backend, 4)
    harness.advance(58.0)
    backend.reap(QUEUE)
    assert (len(left(backend)), evicted(backend)) == (1, 3)


def test_what_was_raised_in_time_is_not_evicted(harness: Harness) -> None:
    backend = harness.open(dead_max=2, dead_max_age=60.0)
    known = die(harness, backend, 2)
    backend.bulk(MessageFilter(ids=(known[0],)), Verb.RESUME)
    others = backend.enqueue_many(numbered(2))
    for lease in backend.fetch_many(QUEUE, limit=9):
        if lease.id in others:
            backend.abandon(lease, "hopeless")
            harness.advance(1.0)
    assert left(backend) == others
    assert found(backend, known[0]).state is State.LEASED


@pytest.mark.needs("key_store")
def test_what_was_evicted_gives_its_key_free(harness: Harness) -> None:
    backend = harness.open(dead_max=1)
    unique = a_job(unique=True, idempotency_key="order-17")
    first = backend.enqueue(unique)
    for lease in (a_lease(backend), *backend.fetch_many(QUEUE, limit=1)):
        backend.abandon(lease, "hopeless")
    assert backend.enqueue(unique) == first
    harness.advance(1.0)
    die(harness, backend, 1)
    assert backend.enqueue(unique) != first


def test_an_id_that_was_evicted_is_remembered(harness: Harness) -> None:
    """Its producer may still be retrying the enqueue."""
    backend = harness.open(dead_max=1)
    backend.enqueue(a_job(identifier="order-17"))
    backend.abandon(a_lease(backend), "hopeless")
    harness.advance(1.0)
    die(harness, backend, 1)
    assert backend.enqueue(a_job(identifier="order-17")) == "order-17"
    assert backend.stats(QUEUE).pending == 0
