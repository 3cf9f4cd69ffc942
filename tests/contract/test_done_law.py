"""Idempotency keys: done with the ack and with nothing else, for exactly as long as was said (FAULTS row 25)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, a_job, numbered
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, Verb
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.guards import IDEMPOTENCY_TTL, LONGEST_KEPT, Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store")

KEY = Guards(key="order-17", keep=100.0)
DONE = Begun(Begin.DONE, "order-17")
HELD = Begun(Begin.HELD, "order-17")


def a_lease(backend: QueueBackend, queue: str = QUEUE, ttl: float = 100_000.0) -> JobLease:
    """A new message, leased."""
    ident = backend.enqueue(a_job(queue=queue))
    [lease] = [lease for lease in backend.fetch_many(queue, limit=10, ttl=ttl) if lease.id == ident]
    return lease


def begin(backend: QueueBackend, lease: JobLease, guards: Guards = KEY) -> Begun:
    [answer] = backend.keys.begin_many([(lease, guards)])
    return answer


def begun(backend: QueueBackend, guards: Guards = KEY) -> JobLease:
    """A new message that runs under the key."""
    lease = a_lease(backend)
    assert begin(backend, lease, guards)
    return lease.guarded(guards)


def is_done(backend: QueueBackend, key: str = "order-17") -> bool:
    """Asked by a message of its own, which holds nothing afterwards."""
    lease = a_lease(backend)
    answer = begin(backend, lease, Guards(key=key))
    backend.ack(lease)
    return answer.answer is Begin.DONE


# --- done with the ack, and with nothing else -------------------------------------------------------------


def test_it_is_done_in_the_same_step_for_all_of_a_batch(backend: QueueBackend) -> None:
    guards = [Guards(key=f"order-{number}") for number in range(5)]
    held = [begun(backend, one) for one in guards]
    assert backend.settle_many([(lease, Ack()) for lease in held]) == [Settled.OK] * 5
    assert backend.keys.begin_many([(a_lease(backend), one) for one in guards]) == [
        Begun(Begin.DONE, f"order-{number}") for number in range(5)
    ]


@pytest.mark.spans
@pytest.mark.parametrize(
    "settlement",
    [
        Nack(60.0, "boom"),
        Abandon("hopeless", "boom"),
        Release(60.0),
        Release(60.0, begun=False),
        Move("mails"),
        Forfeit("SIGSEGV"),
    ],
)
def test_no_other_settlement_makes_it_done(backend: QueueBackend, settlement: Settlement) -> None:
    assert backend.settle_many([(begun(backend), settlement)]) == [Settled.OK]
    assert not is_done(backend)


@pytest.mark.lacks("native_reap")
def test_a_lease_that_runs_out_does_not_make_it_done(harness: Harness, backend: QueueBackend) -> None:
    lease = a_lease(backend, ttl=1.0)
    assert begin(backend, lease)
    harness.expire_leases(1.0)
    assert backend.ack(lease.guarded(KEY)) is Settled.EXPIRED
    assert not is_done(backend)


def test_nothing_but_an_accepted_ack_with_its_guards_makes_it_done(backend: QueueBackend) -> None:
    lease = begun(backend)
    backend.release(lease)
    assert backend.ack(lease) is Settled.NOT_IN_FLIGHT
    assert not is_done(backend)
    # It is the caller who goes on with `lease.guarded(…)`.
    lease = begun(backend)
    assert backend.ack(replace(lease, guards=None))
    assert not is_done(backend)
    lease = a_lease(backend).guarded(Guards())
    assert backend.ack(lease) is Settled.OK
    assert not is_done(backend)
    lease = begun(backend)
    backend.release(lease)
    assert backend.bulk(MessageFilter(ids=(lease.id,)), Verb.DELETE) == 1
    assert not is_done(backend)


@pytest.mark.spans
def test_follow_ups_come_with_an_ack_that_marks_a_key(backend: QueueBackend) -> None:
    [answer] = backend.settle_many([(begun(backend), Ack((a_job("next", queue="mails"),)))])
    assert answer is Settled.OK
    assert backend.stats("mails").waiting == 1
    assert is_done(backend)


def test_one_call_settles_guarded_leases_and_others(backend: QueueBackend) -> None:
    plain, keyed, given_back = a_lease(backend), begun(backend), a_lease(backend, "mails")
    rated = Guards(rates=(Rate("queue", 1), Rate("tenant", 1)))
    assert begin(backend, given_back, rated)
    last = (given_back.guarded(rated), Release(begun=False))
    assert backend.settle_many([(plain, Ack()), (keyed, Ack()), last], "once") == [Settled.OK] * 3
    assert is_done(backend)
    for rate in rated.rates:
        assert backend.keys.take("mails", rate, "mine") == 0.0
        assert backend.keys.take("mails", rate, "more") > 0.0


# --- a life of keys, as FAULTS row 25 tells it ------------------------------------------------------------


def test_a_retry_is_skipped_when_another_has_done_it_meanwhile(harness: Harness, backend: QueueBackend) -> None:
    one, other = begun(backend), a_lease(backend)
    backend.nack(one, delay=5.0)
    assert begin(backend, other)
    assert backend.ack(other.guarded(KEY))
    harness.advance(5.0)
    [again] = backend.fetch_many(QUEUE, limit=1)
    assert (again.id, begin(backend, again)) == (one.id, DONE)


# --- for how long -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.5, 100.0, IDEMPOTENCY_TTL])
def test_it_is_done_for_exactly_so_long(harness: Harness, backend: QueueBackend, keep: float) -> None:
    harness.advance(1.0)
    backend.ack(begun(backend, Guards(key="order-17", keep=keep)))
    harness.advance(keep - harness.tick)
    assert begin(backend, a_lease(backend)) == DONE
    harness.advance(harness.tick)
    assert begin(backend, a_lease(backend))


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_ack_does_not_prolong_it(harness: Harness, backend: QueueBackend) -> None:
    lease = begun(backend)
    assert backend.ack(lease) is Settled.OK
    harness.advance(50.0)
    assert backend.ack(lease) is Settled.ALREADY
    harness.advance(50.0)
    assert not is_done(backend)


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_ack_does_not_mark_what_was_forgotten(backend: QueueBackend) -> None:
    lease = begun(backend)
    assert backend.ack(lease) is Settled.OK
    assert backend.keys.forget(QUEUE, "order-17")
    assert backend.ack(lease) is Settled.ALREADY
    assert not is_done(backend)


# --- first_run and forget ---------------------------------------------------------------------------------


@pytest.mark.spans
def test_the_first_run_of_a_key_is_true_once(harness: Harness, backend: QueueBackend) -> None:
    assert backend.keys.first_run(QUEUE, "order-17") is True
    assert harness.open().keys.first_run(QUEUE, "order-17") is False
    assert backend.keys.first_run(QUEUE, "order-18") is True
    assert backend.keys.first_run("mails", "order-17") is True


def test_a_first_run_lasts_for_its_ttl_which_no_later_call_prolongs(harness: Harness, backend: QueueBackend) -> None:
    assert backend.keys.first_run(QUEUE, "order-17", ttl=10.0)
    harness.advance(10.0 - harness.tick)
    assert not backend.keys.first_run(QUEUE, "order-17", ttl=1000.0)
    harness.advance(harness.tick)
    assert backend.keys.first_run(QUEUE, "order-17", ttl=10.0)


def test_a_first_run_is_done_for_jobs_too_and_an_acked_job_for_first_runs(backend: QueueBackend) -> None:
    backend.keys.first_run(QUEUE, "order-17")
    assert begin(backend, a_lease(backend)) == DONE
    backend.ack(begun(backend, Guards(key="order-18")))
    assert backend.keys.first_run(QUEUE, "order-18") is False


def test_a_key_that_runs_is_not_done_and_its_ack_marks_it_anew(harness: Harness, backend: QueueBackend) -> None:
    running = begun(backend)
    assert backend.keys.first_run(QUEUE, "order-17", ttl=10.0) is True
    assert backend.keys.first_run(QUEUE, "order-17", ttl=10.0) is False
    harness.advance(5.0)
    assert backend.ack(running) is Settled.OK
    harness.advance(KEY.keep - harness.tick)
    assert backend.keys.first_run(QUEUE, "order-17") is False
    harness.advance(harness.tick)
    assert backend.keys.first_run(QUEUE, "order-17") is True


@pytest.mark.spans
def test_forgotten_it_is_not_done_any_more(backend: QueueBackend) -> None:
    assert backend.keys.forget(QUEUE, "order-17") is False
    backend.keys.first_run(QUEUE, "order-17")
    assert backend.keys.forget("mails", "order-17") is False
    assert backend.keys.forget(QUEUE, "order-17") is True
    assert backend.keys.forget(QUEUE, "order-17") is False
    assert begin(backend, a_lease(backend))


def test_what_has_ended_by_itself_there_is_nothing_to_forget_of(harness: Harness, backend: QueueBackend) -> None:
    backend.keys.first_run(QUEUE, "order-17", ttl=10.0)
    harness.advance(10.0)
    assert backend.keys.forget(QUEUE, "order-17") is False


def test_forgetting_leaves_alone_what_a_running_job_holds(backend: QueueBackend) -> None:
    running = begun(backend)
    assert backend.keys.forget(QUEUE, "order-17") is False
    assert begin(backend, a_lease(backend)) == HELD
    assert backend.ack(running)
    assert begin(backend, a_lease(backend)) == DONE


@pytest.mark.above
def test_a_key_or_a_ttl_that_cannot_be_is_refused(backend: QueueBackend) -> None:
    for key in ("", "x" * 256, "a\nb"):
        for call in (backend.keys.first_run, backend.keys.forget):
            with row(key), pytest.raises(InvalidJob, match="idempotency key"):
                call(QUEUE, key)
    for ttl in (0.0, -1.0, float("nan"), float("inf"), LONGEST_KEPT + 1):
        with row(ttl), pytest.raises(ConfigurationError, match="ttl"):
            backend.keys.first_run(QUEUE, "order-17", ttl)


def test_many_keys_end_and_the_rest_stay(harness: Harness, backend: QueueBackend) -> None:
    """Whatever sweeps what has ended takes nothing else."""
    for number in range(60):
        backend.keys.first_run(QUEUE, f"order-{number}", ttl=10.0 if number % 2 else 1000.0)
    harness.advance(500.0)
    backend.enqueue_many(numbered(3))
    backend.reap(QUEUE)
    assert [backend.keys.first_run(QUEUE, f"order-{number}") for number in range(60)] == [
        bool(number % 2) for number in range(60)
    ]
