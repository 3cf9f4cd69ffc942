"""What comes back, moves or dies is all that it was, and alone: also where it is a copy of what was settled."""

from __future__ import annotations

from typing import Any

import pytest
from support.claims import AT_ONCE
from support.harness import Harness
from support.jobs import QUEUE, a_job
from support.looks import a_lease, seen

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = [pytest.mark.needs("leases"), pytest.mark.spans]

THERE = "mails"
PAYLOAD = {"customer": [7, "Zürich"], "z": 1, "a": 2.5}
REST: dict[str, Any] = {"name": "daily", "max_retries": 7, "timeout": 2.5}
DELAY = 20.0

COPIES = [
    pytest.param(Nack(0.0, "new"), 1, 0, "new", "SIGBUS", id="nack"),
    pytest.param(Nack(DELAY, None, "killed"), 1, 0, "boom", "killed", id="delayed nack"),
    pytest.param(Release(), 0, 0, "boom", "SIGBUS", id="release"),
    pytest.param(Release(DELAY), 0, 0, "boom", "SIGBUS", id="delayed release"),
    pytest.param(Forfeit("SIGILL"), 0, 1, "boom", "SIGILL", id="forfeit"),
    pytest.param(Move(THERE, 1, 1, "new", "SIGKILL"), 1, 1, "new", "SIGKILL", id="move"),
    pytest.param(Move(THERE), 0, 0, "boom", "SIGBUS", id="plain move"),
]


@pytest.fixture
def lease(harness: Harness, backend: QueueBackend) -> JobLease:
    """Of a message with a past: failed once, killed by a signal then, five seconds old, leased for the second time."""
    backend.enqueue(a_job(PAYLOAD, identifier="order-17", priority=2, handler="invoice", meta={"who": "me"}, **REST))
    assert backend.settle_many([(a_lease(backend), Nack(0.0, "boom", "SIGBUS"))]) == [Settled.OK]
    harness.advance(5.0)
    return a_lease(backend)


@pytest.mark.parametrize(("settlement", "attempts", "crashes", "error", "cause"), COPIES)
def test_one_message_is_there_and_it_is_what_it_was_and_leased_for_as_long(
    harness: Harness,
    backend: QueueBackend,
    lease: JobLease,
    settlement: Settlement,
    attempts: int,
    crashes: int,
    error: str,
    cause: str,
) -> None:
    queue, other = (THERE, QUEUE) if isinstance(settlement, Move) else (QUEUE, THERE)
    assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
    backend.reap(queue, AT_ONCE)
    stats = backend.stats(queue)
    assert (stats.pending, stats.leased, stats.dead, backend.stats(other).pending) == (1, 0, 0, 0)
    harness.advance(DELAY)
    [again] = backend.fetch_many(queue, limit=9, ttl=30.0)
    assert again.expires_at == pytest.approx(backend.clock.boot() + harness.lasts(30.0), abs=0.5)
    harness.advance(harness.lasts(30.0) - 1.0)
    assert (again.id, again.queue, again.deliveries) == ("order-17", queue, lease.deliveries + 1)
    assert (again.attempts, again.crashes) == (lease.attempts + attempts, lease.crashes + crashes)
    if queue == QUEUE or not backend.capabilities.keeps_records:  # else its time is that of its place
        assert again.enqueued_at == pytest.approx(lease.enqueued_at, abs=0.01)
    assert again.body == lease.body or queue == THERE  # signed for another queue
    envelope = again.envelope
    assert (envelope.payload, envelope.job, envelope.meta["who"]) == (PAYLOAD, "invoice", "me")
    assert {field: getattr(envelope, field) for field in REST} == REST
    assert backend.release(again)
    message = seen(backend, "order-17", queue)
    assert (message.last_error, message.cause, message.handler) == (error, cause, "invoice")
    assert (message.reason, message.died_at) == (None, None)
    assert message.priority == 2 or not backend.capabilities.priorities
    assert backend.ack(a_lease(backend, queue)) is Settled.OK
    assert (backend.stats(queue).pending, backend.stats(queue).dead) == (0, 0)


@pytest.mark.parametrize(("verb", "said", "cause"), [(Verb.RETRY, "SIGILL", "SIGILL"), (Verb.RESUME, None, "SIGBUS")])
def test_a_dead_letter_and_what_is_raised_from_it_are_what_it_was(
    harness: Harness, backend: QueueBackend, lease: JobLease, verb: Verb, said: str | None, cause: str
) -> None:
    assert backend.settle_many([(lease, Abandon("hopeless", None, said))]) == [Settled.OK]
    [dead] = backend.list_messages(MessageFilter(queue=QUEUE))
    assert (dead.id, dead.state, dead.handler, dead.body) == ("order-17", State.DEAD, "invoice", lease.body)
    assert (dead.attempts, dead.crashes, dead.deliveries) == (lease.attempts, lease.crashes, lease.deliveries)
    assert (dead.reason, dead.last_error, dead.cause, dead.expires_at) == ("hopeless", "boom", cause, None)
    assert dead.died_at == pytest.approx(harness.now(), abs=1.0)
    assert dead.enqueued_at == pytest.approx(lease.enqueued_at, abs=0.01)
    assert dead.priority == 2 or not backend.capabilities.priorities
    harness.advance(5.0)
    assert backend.bulk(MessageFilter(queue=QUEUE), verb) == 1
    stats = backend.stats(QUEUE)
    assert (stats.pending, stats.dead) == (1, 0)
    again = a_lease(backend)
    assert (again.id, again.body, again.deliveries) == ("order-17", lease.body, lease.deliveries + 1)
    assert again.attempts == (lease.attempts if verb is Verb.RESUME else 0)
    assert again.enqueued_at == pytest.approx(lease.enqueued_at, abs=0.01)


@pytest.mark.needs("priorities")
@pytest.mark.parametrize("settlement", [Nack(), Nack(DELAY), Release(), Release(DELAY), Forfeit("SIGILL")])
def test_what_comes_back_has_the_priority_it_had(
    harness: Harness, backend: QueueBackend, settlement: Settlement
) -> None:
    backend.enqueue_many([a_job("late", priority=9), a_job("soon", priority=1)])
    soon = a_lease(backend)
    assert backend.settle_many([(soon, settlement)]) == [Settled.OK]
    backend.reap(QUEUE, AT_ONCE)
    backend.enqueue_many([a_job("middle", priority=5), a_job("first", priority=0)])
    harness.advance(DELAY)
    order = [found.envelope.payload for found in backend.fetch_many(QUEUE, limit=9)]
    assert order == ["first", "soon", "middle", "late"]
