"""Crashes: each lease that ended without a verdict is charged once, whoever takes it back (laws 4 and 5)."""

from __future__ import annotations

import pytest
from support.crashes import EXPIRED, each_way, lose
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered
from support.looks import a_lease, dead_letter

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, ReapPolicy, Verb
from jobpool.message.settlement import Move, Settled

pytestmark = pytest.mark.needs("leases")

THERE = "mails"


def at_once(max_crashes: int = 0) -> ReapPolicy:
    return ReapPolicy(max_crashes, window=1e6, back_off=0.0)


def crash(
    harness: Harness, backend: QueueBackend, cause: str, policy: ReapPolicy | None = None, queue: str = QUEUE
) -> None:
    """Lease the next message and lose it; where the broker takes it back, the next fetch charges it by this policy."""
    lose(harness, backend, [a_lease(backend, queue, 1.0)], cause)
    backend.reap(queue, policy or at_once())


@pytest.mark.needs("exact_crashes")
@pytest.mark.parametrize("before", ["releases", "delayed releases", "nacks", "renewals", "retry", "resume"])
def test_one_expiry_is_one_crash_whatever_was_before(harness: Harness, backend: QueueBackend, before: str) -> None:
    backend.enqueue(a_job())
    for _ in range(2):
        lease = a_lease(backend)
        if before == "releases":
            backend.release(lease)
        elif before == "delayed releases":
            backend.release(lease, 5.0)
        elif before == "nacks":
            backend.nack(lease)
        elif before == "renewals":
            backend.release(backend.renew(backend.renew(lease, 1.0), 1.0))
        else:
            backend.abandon(lease, "hopeless")
            assert backend.bulk(MessageFilter(queue=QUEUE), Verb(before)) == 1
        harness.advance(5.0)
    crash(harness, backend, EXPIRED)
    lease = a_lease(backend)
    assert (lease.crashes, lease.deliveries) == (1, 4)
    assert lease.attempts == (2 if before == "nacks" else 0)


@each_way
def test_past_the_limit_it_is_a_dead_letter_with_the_cause(harness: Harness, backend: QueueBackend, cause: str) -> None:
    ident = backend.enqueue(a_job())
    told = backend.reap(QUEUE, at_once(max_crashes=2))
    for _ in range(3):
        lose(harness, backend, [a_lease(backend, ttl=1.0)], cause)
        told += backend.reap(QUEUE, at_once(max_crashes=2))
    assert backend.fetch_many(QUEUE, limit=1) == []
    stats = backend.stats(QUEUE)
    assert (stats.pending, stats.dead) == (0, 1)
    dead = dead_letter(backend, ident)
    assert (dead.reason, dead.crashes, dead.attempts, dead.cause) == ("crash-limit", 3, 0, cause)
    assert dead.deliveries == 3
    assert dead.died_at == pytest.approx(harness.now(), abs=1.0)
    told += backend.reap(QUEUE, at_once(max_crashes=2))
    assert [(reaped.crashes, reaped.dead) for reaped in told] == [(1, False), (2, False), (3, True)]


def test_the_cause_of_the_last_crash_is_kept_with_the_dead_letter(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=1))
    for cause in ("SIGSEGV", "SIGBUS"):
        crash(harness, backend, cause, at_once(max_crashes=1))
    assert (backend.stats(QUEUE).pending, backend.stats(QUEUE).dead) == (0, 1)
    assert dead_letter(backend, ident).cause == "SIGBUS"


@pytest.mark.needs("exact_crashes")
def test_the_cause_of_a_forfeit_is_not_that_of_the_next_crash(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    told = []
    for cause in ("SIGSEGV", EXPIRED):
        lose(harness, backend, [a_lease(backend, ttl=1.0)], cause)
        told += backend.reap(QUEUE, at_once())
    assert a_lease(backend).crashes == 2
    assert [reaped.cause for reaped in told + backend.reap(QUEUE)] == ["SIGSEGV", EXPIRED]


@each_way
def test_what_waits_after_a_crash_holds_up_no_other(harness: Harness, backend: QueueBackend, cause: str) -> None:
    policy = ReapPolicy(0, 1e6, back_off=1e6, back_off_cap=1e6)
    backend.enqueue_many(numbered(3))
    backend.reap(QUEUE, policy)
    for _ in range(2):
        lose(harness, backend, backend.fetch_many(QUEUE, limit=3, ttl=1.0), cause)
        backend.reap(QUEUE, policy)
    backend.enqueue(a_job("fresh"))
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=1)] == ["fresh"]
    assert backend.stats(QUEUE).pending == 4
    assert backend.fetch_many(QUEUE, limit=4) == []
    assert backend.stats(QUEUE).delayed == 3


@pytest.mark.spans
@each_way
def test_a_crash_counts_on_top_of_those_that_came_with_a_move(
    harness: Harness, backend: QueueBackend, cause: str
) -> None:
    ident = backend.enqueue(a_job())
    assert backend.settle_many([(a_lease(backend), Move(THERE, crashes=1, cause="SIGKILL"))]) == [Settled.OK]
    backend.reap(THERE, at_once(max_crashes=1))
    crash(harness, backend, cause, at_once(max_crashes=1), THERE)
    assert backend.fetch_many(THERE, limit=1) == []
    dead = dead_letter(backend, ident)
    assert (dead.queue, dead.crashes, dead.cause) == (THERE, 2, cause)


@each_way
@pytest.mark.parametrize(("verb", "crashes"), [(Verb.RETRY, 1), (Verb.RESUME, 3)])
def test_what_died_of_crashes_and_was_raised_crashes_anew_or_on(
    harness: Harness, backend: QueueBackend, cause: str, verb: Verb, crashes: int
) -> None:
    backend.enqueue(a_job())
    backend.reap(QUEUE, at_once(max_crashes=1))
    for _ in range(2):
        crash(harness, backend, cause, at_once(max_crashes=1))
    assert backend.fetch_many(QUEUE, limit=1) == []
    backend.reap(QUEUE, at_once(max_crashes=0))
    assert backend.bulk(MessageFilter(reason="crash-limit"), verb) == 1
    crash(harness, backend, cause)
    lease = a_lease(backend)
    assert (lease.crashes, lease.deliveries) == (crashes, 4)
