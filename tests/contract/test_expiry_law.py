"""A job with `expires_in` expires by the broker's clock, whatever this machine's says, before its first start only."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job
from support.looks import a_lease, recover

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, Verb
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Expired
from jobpool.message.settlement import Nack, Release, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector

pytestmark = pytest.mark.needs("leases")

SLACK = 10.0
"""Seconds that a busy machine may take between two calls."""


def test_its_time_counts_on_the_brokers_clock(harness: Harness) -> None:
    harness.advance(3600.0)
    backend = harness.open()
    told = backend.broker_time()
    now = backend.clock.wall() if told is None else told

    backend.enqueue(a_job(expires_in=30.0))
    [lease] = backend.fetch_many(QUEUE, limit=1)

    assert lease.envelope.expires == pytest.approx(now + 30.0, abs=SLACK)
    inspect = LeaseInspector(EnvelopeSigner(), {}).inspect
    assert inspect(lease, backend.time.now) is None
    assert inspect(lease, lambda: backend.time.now() + 30.0 + SLACK) == Expired()


# --- it counts until the first start ---------------------------------------------------------------------


def has_expired(lease: JobLease) -> bool:
    """Whether a pool that has it long after its time gives it up."""
    return LeaseInspector(EnvelopeSigner("secret"), {}).inspect(lease, lambda: 2.0**40) == Expired()


@pytest.fixture
def backend(harness: Harness) -> QueueBackend:
    """One that signs: what is to expire no more cannot be taken out of a body."""
    return harness.open(signer=EnvelopeSigner("secret"))


@pytest.fixture
def lease(backend: QueueBackend) -> JobLease:
    backend.enqueue(a_job(expires_in=30.0))
    return a_lease(backend)


NOT_BEGUN: list[Settlement] = [Release(begun=False), Release(2.0, begun=False)]


@pytest.mark.parametrize("settlement", [Nack(), Nack(2.0), Release(), Release(2.0)])
def test_what_was_started_in_time_does_not_expire(
    harness: Harness, backend: QueueBackend, lease: JobLease, settlement: Settlement
) -> None:
    assert has_expired(lease)
    assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
    harness.advance(2.0)
    for after in (*NOT_BEGUN, Nack()):
        again = a_lease(backend)
        assert (again.id, again.body, again.expires) == (lease.id, lease.body, None)
        assert not has_expired(again)
        assert backend.settle_many([(again, after)]) == [Settled.OK]
        harness.advance(2.0)


@pytest.mark.parametrize("settlement", NOT_BEGUN)
def test_what_was_held_and_not_started_expires(
    harness: Harness, backend: QueueBackend, lease: JobLease, settlement: Settlement
) -> None:
    assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
    harness.advance(2.0)
    assert has_expired(a_lease(backend))


@pytest.mark.needs("exact_crashes")
def test_what_crashed_does_not_expire(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job(expires_in=30.0))
    a_lease(backend, ttl=1.0)
    recover(harness, backend, 1.0)
    assert not has_expired(a_lease(backend))


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.RESUME])
@pytest.mark.parametrize("reason", ["expired", "failed"])
def test_a_dead_letter_that_is_raised_has_another_life(
    harness: Harness, backend: QueueBackend, lease: JobLease, reason: str, verb: Verb
) -> None:
    assert backend.abandon(lease, reason)
    assert backend.bulk(MessageFilter(ids=(lease.id,)), verb) == 1
    for settlement in (*NOT_BEGUN, Release()):
        again = a_lease(backend)
        assert (again.id, again.body) == (lease.id, lease.body)
        assert not has_expired(again)
        assert backend.settle_many([(again, settlement)]) == [Settled.OK]
        harness.advance(2.0)
