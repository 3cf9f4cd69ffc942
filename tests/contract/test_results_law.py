"""Results: kept in the step of the ack and in no other, for as long as was said; and states of jobs by their ids."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import settle
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import NewPost
from jobpool.broker.tracking import RUNNING_SPACE, statuses
from jobpool.broker.values import ENQUEUE_MEMORY, Message, MessageFilter, Verb
from jobpool.client.awaited import MAX_WAITING_CALLS
from jobpool.client.jobs import Jobs
from jobpool.errors import (
    BackendUnavailable,
    InvalidJob,
    JobFailed,
    NoResult,
    ResultNotKept,
    ResultPending,
    ResultTooLarge,
    UnknownJob,
    Unsupported,
)
from jobpool.message.guards import Guards
from jobpool.message.lease import JobLease
from jobpool.message.results import JobHandle, JobState, Kept, capped, keep
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

needs_results = pytest.mark.needs("leases", "key_store")
LIMIT_S = 30.0


def a_lease(backend: QueueBackend, queue: str = QUEUE, ttl: float = 100_000.0, **fields: object) -> JobLease:
    """A new message, leased."""
    ident = backend.enqueue(a_job(queue=queue, **fields))
    [lease] = [lease for lease in backend.fetch_many(queue, limit=10, ttl=ttl) if lease.id == ident]
    return lease


def of(lease: JobLease, text: str = '{"pages":7}', ttl: float = 100.0) -> Ack:
    return Ack(result=keep(text, ttl, lease, 0.0))


# --- kept with the ack, and with nothing else ------------------------------------------------------------


@pytest.mark.spans
@needs_results
def test_a_result_is_kept_with_the_ack_for_as_long_as_was_said(harness: Harness, backend: QueueBackend) -> None:
    lease = a_lease(backend)
    assert settle(backend, lease, of(lease)) is Settled.OK
    assert backend.inspect(lease.id) is None
    assert harness.open().result(lease.id, timeout=0) == {"pages": 7}
    status = backend.status(lease.id)
    assert (status.state, status.queue, status.handler) == (JobState.DONE, QUEUE, lease.envelope.job)
    harness.advance(99.0)
    assert backend.result(lease.id, timeout=0) == {"pages": 7}
    harness.advance(1.1)
    assert backend.status(lease.id).state is JobState.UNKNOWN
    with pytest.raises(ResultNotKept, match="or its result_ttl is over"):
        backend.result(JobHandle(lease.id, backend), timeout=0)


@pytest.mark.spans
@needs_results
@pytest.mark.parametrize("many", [1, 3, 150])
def test_a_result_goes_when_its_id_is_given_to_another_job(harness: Harness, backend: QueueBackend, many: int) -> None:
    jobs = [a_job(identifier=f"order-{number}") for number in range(many)]
    backend.enqueue_many(jobs)
    for lease in backend.fetch_many(QUEUE, limit=many):
        assert settle(backend, lease, of(lease, ttl=10_000.0))
    backend.enqueue_many(jobs)  # known still: no other job
    assert backend.result("order-0", timeout=0) == {"pages": 7}
    harness.advance(ENQUEUE_MEMORY + 1.0)
    assert backend.result("order-0", timeout=0) == {"pages": 7}
    backend.enqueue_many(jobs)
    leases = backend.fetch_many(QUEUE, limit=many)
    assert [settle(backend, lease, Ack()) for lease in leases] == [Settled.OK] * many
    for job in jobs:
        assert backend.status(str(job.identifier)).state is JobState.UNKNOWN
        with pytest.raises(UnknownJob):
            backend.result(str(job.identifier), timeout=0)


@needs_results
def test_a_result_stays_when_no_job_gets_its_id(harness: Harness, backend: QueueBackend) -> None:
    lease = a_lease(backend, identifier="order-7")
    assert settle(backend, lease, of(lease, ttl=10_000.0))
    harness.advance(ENQUEUE_MEMORY + 1.0)
    jobs = [a_job(identifier="order-7"), a_job(batch="unknown")]
    with suppress(Unsupported), pytest.raises(InvalidJob, match="is not open"):
        backend.enqueue_many(jobs)
    assert backend.kept(["order-7"])
    backend.claims.post(QUEUE, [NewPost("order-7", given=True, body=b"")])
    assert backend.kept(["order-7"])


@pytest.mark.spans
@needs_results
def test_of_two_jobs_with_an_id_in_two_queues_the_result_is_the_later_one(
    harness: Harness, backend: QueueBackend
) -> None:
    for number, queue in enumerate(("b", "a", "b", "c")):
        lease = a_lease(backend, queue, identifier="order-7")
        assert settle(backend, lease, Ack(result=keep(str(number), 10_000.0, lease, harness.now())))
        assert backend.result("order-7", timeout=0) == number
        harness.advance(ENQUEUE_MEMORY + 1.0)


@pytest.mark.spans
@needs_results
def test_an_enqueue_that_is_repeated_after_its_job_has_moved_and_ended_changes_nothing(
    harness: Harness, backend: QueueBackend
) -> None:
    lease = a_lease(backend, identifier="order-7")
    for source, target in ((QUEUE, "mails"), ("mails", QUEUE), (QUEUE, "mails")):
        assert settle(backend, lease, Move(target, crashes=1))
        harness.advance(1.0)
        backend.enqueue(a_job(identifier="order-7", queue=source))
        assert backend.stats(source).pending == 0
        [lease] = backend.fetch_many(target, limit=9)
    assert settle(backend, lease, of(lease))
    backend.enqueue(a_job(identifier="order-7"))
    assert backend.result("order-7", timeout=0) == {"pages": 7}
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.spans
@needs_results
def test_each_of_a_batch_keeps_its_own(backend: QueueBackend) -> None:
    leases = [a_lease(backend, queue) for queue in (QUEUE, "mails", QUEUE, "mails", QUEUE)]
    batch = [(lease, of(lease, str(number)) if number % 2 else Ack()) for number, lease in enumerate(leases)]
    assert backend.settle_many(batch) == [Settled.OK] * 5
    assert set(backend.kept([lease.id for lease in leases])) == {leases[1].id, leases[3].id}
    assert [backend.result(leases[number].id, timeout=0) for number in (1, 3)] == [1, 3]


@pytest.mark.spans
@needs_results
def test_it_is_kept_beside_follow_ups_keys_and_other_verbs(backend: QueueBackend) -> None:
    """All that an ack may bring along: a unique key, an id of the producer's own, a guard, jobs."""
    unique = a_lease(backend, idempotency_key="k", unique=True)
    given = a_lease(backend, identifier="order-7", idempotency_key="g", unique=True)
    guarded, guards = a_lease(backend), Guards(key="order-17", keep=100.0)
    assert backend.keys.begin_many([(guarded, guards)])
    follow_up = a_job(numbered(9), queue="mails")
    batch: list[tuple[JobLease, Settlement]] = [
        (a_lease(backend), Nack(5.0, "boom")),
        (unique, of(unique, "1")),
        (given, replace(of(given, "2"), follow_ups=(follow_up,))),
        (guarded.guarded(guards), of(guarded, "3")),
        (a_lease(backend, "mails"), Abandon("hopeless")),
    ]
    assert backend.settle_many(batch) == [Settled.OK] * 5
    assert [backend.result(lease.id, timeout=0) for lease in (unique, given, guarded)] == [1, 2, 3]
    assert backend.stats("mails").waiting == 1
    assert not backend.keys.forget(QUEUE, "never")
    assert backend.keys.forget(QUEUE, "order-17")


@needs_results
def test_a_late_owner_keeps_nothing(harness: Harness, backend: QueueBackend) -> None:
    first = a_lease(backend, ttl=10.0)
    harness.expire_leases(10.0)
    assert settle(backend, first, of(first, '"late"')) is Settled.EXPIRED
    assert backend.reap_expired(QUEUE) == 1
    [second] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    assert settle(backend, first, of(first, '"late"')) is Settled.NOT_OWNER
    assert backend.kept([first.id]) == {}
    assert settle(backend, second, of(second, '"in time"')) is Settled.OK
    assert settle(backend, first, of(first, '"late"')) is Settled.NOT_IN_FLIGHT
    assert backend.result(first.id, timeout=0) == "in time"


@needs_results
def test_a_repeated_call_keeps_what_the_first_did(backend: QueueBackend) -> None:
    lease = a_lease(backend)
    assert settle(backend, lease, of(lease, "1"), "call") is Settled.OK
    assert settle(backend, lease, of(lease, "2"), "call") is Settled.ALREADY
    assert settle(backend, lease, of(lease, "3"), "another") is Settled.NOT_IN_FLIGHT
    assert backend.result(lease.id, timeout=0) == 1


@needs_results
def test_a_second_ack_in_the_same_call_keeps_nothing(backend: QueueBackend) -> None:
    lease = a_lease(backend)
    answers = backend.settle_many([(lease, of(lease, "1")), (lease, of(lease, "2"))])
    assert answers == [Settled.OK, Settled.NOT_IN_FLIGHT]
    assert backend.result(lease.id, timeout=0) == 1


@needs_results
def test_a_large_result_comes_back_whole(backend: QueueBackend) -> None:
    lease = a_lease(backend)
    assert settle(backend, lease, of(lease, '"' + "é\\u0000x" * 40_000 + '"')) is Settled.OK
    assert backend.result(lease.id, timeout=0) == "é\0x" * 40_000


# --- what the producer is told ------------------------------------------------------------------------------


@needs_results
def test_each_lack_has_its_error(backend: QueueBackend) -> None:
    unkept, large, failed, forged = (a_lease(backend) for _ in range(4))
    assert backend.ack(unkept)
    assert settle(backend, large, of(large, capped(b'"123456789"', 8)))
    assert settle(backend, failed, Abandon("failed", "Traceback …\nValueError: boom"))
    with pytest.raises(ResultNotKept, match="result_ttl"):
        backend.result(JobHandle(unkept.id, backend))
    with pytest.raises(ResultTooLarge, match="11 bytes"):
        backend.result(large.id)
    assert settle(backend, forged, of(forged, "rubbish"))
    with pytest.raises(ResultNotKept, match="is not JSON: its handler has forged it"):
        backend.result(forged.id)
    for record in (b"rubbish\n\n", b"7\n1", b'["report","q","x",1]\n1'):
        changed = a_lease(backend)
        assert settle(backend, changed, Ack((), Kept(record, 60.0))) is Settled.OK
        assert backend.status(changed.id).state is JobState.DONE
        with pytest.raises(ResultNotKept, match="somebody has changed it in the broker"):
            backend.result(changed.id)
    with pytest.raises(JobFailed, match=r"\(failed\): ValueError: boom") as raised:
        backend.result(failed.id)
    assert raised.value.status.attempts == 1
    with pytest.raises(UnknownJob, match="no job never"):
        backend.result("never")
    waiting = backend.enqueue(a_job())
    with pytest.raises(ResultPending, match="it is waiting"):
        backend.result(waiting, timeout=0)
    assert issubclass(ResultPending, TimeoutError)
    assert issubclass(ResultPending, NoResult)


@pytest.mark.needs("leases", "lists_live")
def test_a_job_tells_its_state_through_its_life(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job())
    assert backend.status(ident).state is JobState.WAITING
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    running = backend.status(ident)
    assert (running.state, running.queue, running.where) == (JobState.RUNNING, QUEUE, None)
    backend.nack(lease, delay=50.0, error="boom")
    delayed = backend.status(ident)
    assert (delayed.state, delayed.attempts, delayed.error) == (JobState.DELAYED, 1, "boom")
    assert delayed.due == pytest.approx(harness.now() + 50.0, abs=2.0)
    harness.advance(harness.delayed(50.0))
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    assert settle(backend, lease, Ack())
    assert backend.status(ident).state is JobState.UNKNOWN


@pytest.mark.needs("leases", "key_store", "lists_live")
def test_what_a_pool_says_of_a_running_job_is_told_of_that_delivery_alone(backend: QueueBackend) -> None:
    leases = [a_lease(backend) for _ in range(3)]
    idents = [lease.id for lease in leases]
    said = {ident: b'{"fence":%d,"where":"h:%d"}' % (1 + number, number) for number, ident in enumerate(idents[:2])}
    backend.keys.put_records(RUNNING_SPACE, said, 60.0)
    found = statuses(backend, idents)
    assert [(found[ident].state, found[ident].where) for ident in idents] == [
        (JobState.RUNNING, where) for where in ("h:0", None, None)
    ]


@pytest.mark.needs("leases")
@pytest.mark.parametrize(
    ("reason", "state", "end"),
    [
        ("failed", JobState.DEAD, r"failed for good .* ago \(failed\)"),
        ("expired", JobState.EXPIRED, "expired .* ago"),
        ("cancelled", JobState.CANCELLED, "was cancelled .* ago"),
    ],
)
def test_a_dead_letter_tells_how_it_ended(backend: QueueBackend, reason: str, state: JobState, end: str) -> None:
    ident = backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    error = "boom\n  File app.py, line 7\n    time.sleep(1)"
    assert backend.abandon(lease, reason, error)
    status = backend.status(ident)
    assert (status.state, status.reason, status.error) == (state, reason, error)
    assert status.has_ended
    assert status.ended_at is not None
    with pytest.raises(JobFailed, match=rf"^job {ident} {end}: boom$"):
        backend.result(ident, timeout=0)


@needs_results
def test_a_running_job_tells_what_its_pool_has_said_of_this_delivery(backend: QueueBackend) -> None:
    lease = a_lease(backend)
    said = b'{"fence":%d,"where":"host:7","since":5.0,"progress":0.5,"note":"half"}'
    backend.keys.put_records("running", {lease.id: said % lease.deliveries}, 60.0)
    status = backend.status(lease.id)
    assert (status.where, status.since, status.progress, status.note) == ("host:7", 5.0, 0.5, "half")
    for other in (said % (lease.deliveries + 1), b"rubbish", b"[7]"):
        backend.keys.put_records("running", {lease.id: other}, 60.0)
        assert backend.status(lease.id).where is None


@needs_results
def test_states_of_many_come_in_their_order(backend: QueueBackend) -> None:
    done, dead = a_lease(backend), a_lease(backend, "mails")
    settle(backend, done, of(done))
    backend.abandon(dead, "failed", "boom")
    found = backend.wait([dead.id, "never", done.id, dead.id], timeout=LIMIT_S)
    states = [JobState.DEAD, JobState.UNKNOWN, JobState.DONE, JobState.DEAD]
    assert [status.state for status in found] == states
    waiting = backend.enqueue(a_job())
    [status] = backend.wait([waiting], timeout=0)
    assert status.state is JobState.WAITING
    assert not status.has_ended


# --- waiting ------------------------------------------------------------------------------------------------

ENDS = [
    pytest.param(lambda backend, lease: settle(backend, lease, of(lease)), JobState.DONE, id="with a result"),
    pytest.param(lambda backend, lease: backend.ack(lease), JobState.UNKNOWN, id="without one"),
    pytest.param(lambda backend, lease: backend.abandon(lease, "failed", "boom"), JobState.DEAD, id="dead"),
    pytest.param(lambda backend, lease: backend.settle_many([(lease, Nack(0.0))]), JobState.WAITING, id="tried again"),
    pytest.param(lambda backend, lease: _delete(backend, lease), JobState.UNKNOWN, id="removed"),
]


def _delete(backend: QueueBackend, lease: JobLease) -> None:
    backend.release(lease)
    backend.bulk(MessageFilter(ids=(lease.id,)), Verb.DELETE)


@pytest.mark.spans
@needs_results
@pytest.mark.parametrize(("end", "state"), ENDS)
def test_who_waits_learns_of_the_end(
    live: QueueBackend, end: Callable[[QueueBackend, JobLease], object], state: JobState
) -> None:
    lease, other = a_lease(live), a_lease(live, "mails")
    found: list[JobState] = []
    wanted = [lease.id, other.id]
    thread = threading.Thread(target=lambda: found.extend(s.state for s in live.wait(wanted, LIMIT_S)))
    thread.start()
    settle(live, other, of(other))
    end(live, lease)
    if state is JobState.WAITING:
        assert thread.is_alive()
        [again] = live.fetch_many(QUEUE, limit=1, ttl=60.0, wait=LIMIT_S)
        settle(live, again, of(again))
        state = JobState.DONE
    thread.join(LIMIT_S)
    assert found == [state, JobState.DONE]


@needs_results
def test_a_kept_result_wakes_who_waits_for_it(live: QueueBackend) -> None:
    """The wait itself ends, before the half second after which it looks again."""
    quick: list[bool] = []

    def is_woken() -> bool:
        lease = a_lease(live)
        timer = threading.Timer(0.05, lambda: settle(live, lease, of(lease)))
        timer.start()
        before = time.monotonic()
        live.wait_ended([lease.id], 0.5)
        quick.append(time.monotonic() - before < 0.4)
        timer.join()
        return quick.count(True) >= 3

    wait_until(is_woken)


@needs_results
def test_who_waits_looks_seldom_and_comes_back_when_the_backend_is_closed(
    live: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    idents = [live.enqueue(a_job()) for _ in range(3)] + [a_lease(live, "mails").id]
    looks, look = list[str](), live.list_messages

    def noted(where: MessageFilter, **page: Any) -> list[Message]:
        looks.extend(where.ids)
        return look(where, **page)

    monkeypatch.setattr(live, "list_messages", noted)
    with ThreadPoolExecutor(len(idents)) as executor:
        assert all(executor.map(lambda ident: live.wait([ident], 0.5), idents))
        assert len(looks) < 50
        waits = [executor.submit(live.wait, [ident], 2 * LIMIT_S) for ident in idents]
        wait_until(lambda: len(set(looks[-len(idents) :])) == len(idents))
        live.close()
        for wait in waits:
            with pytest.raises(BackendUnavailable):
                wait.result(LIMIT_S)


@needs_results
def test_the_end_of_another_job_is_not_waited_for(live: QueueBackend) -> None:
    lease, other = a_lease(live), a_lease(live)
    settle(live, other, of(other))
    with pytest.raises(ResultPending, match="it is running"):
        live.result(lease.id, timeout=0.2)


# --- brokers that keep none ---------------------------------------------------------------------------------


@pytest.mark.spans
@needs_results
def test_many_tasks_wait_and_each_learns_of_its_own(live: QueueBackend) -> None:
    """More than there are calls that wait, with an end of each kind: a result, an ack without one, a death."""
    jobs = Jobs(backend=live)
    idents = [JobHandle(ident, jobs) for ident in live.enqueue_many(numbered(MAX_WAITING_CALLS + 8))]
    leases = {lease.id: lease for lease in live.fetch_many(QUEUE, limit=len(idents), ttl=60.0)}
    dead, gone, *kept = (leases[ident] for ident in idents)

    async def main() -> Any:
        asked = [asyncio.create_task(jobs.aresult(ident, LIMIT_S)) for ident in idents]
        await asyncio.sleep(0.1)
        verbs: list[Settlement] = [Abandon("broken", "no"), Ack(), *map(of, kept)]
        for lease, verb in zip((dead, gone, *kept), verbs, strict=True):
            assert await asyncio.to_thread(settle, live, lease, verb) is Settled.OK
        return await asyncio.gather(*asked, return_exceptions=True)

    ends = asyncio.run(main())
    assert [type(end) for end in ends[:2]] == [JobFailed, ResultNotKept]
    assert ends[2:] == [{"pages": 7}] * len(kept)


@pytest.mark.lacks("key_store")
@pytest.mark.needs("leases")
def test_a_broker_that_keeps_none_says_so_at_the_enqueue(backend: QueueBackend) -> None:
    with pytest.raises(Unsupported, match=r"keeps no keys .* needs for result_ttl: leave result_ttl out"):
        backend.enqueue(a_job(result_ttl=60.0))
    ident = backend.enqueue(a_job(result_ttl=0.0))
    [lease] = backend.fetch_many(QUEUE, limit=1, ttl=10.0)
    assert lease.id == ident
    assert settle(backend, lease, of(lease)) is Settled.OK
    assert backend.kept([ident]) == {}
    assert backend.status(ident).state is JobState.UNKNOWN


@pytest.mark.lacks("lists_live")
@pytest.mark.needs("leases")
def test_a_broker_that_cannot_tell_whether_a_job_has_ended_does_not_say_it_has(backend: QueueBackend) -> None:
    handle = JobHandle(backend.enqueue(a_job()), backend)

    def refuses() -> None:
        for ask in (lambda: handle.result(0.0), lambda: backend.result(str(handle)), lambda: backend.wait([handle])):
            with pytest.raises(Unsupported, match=rf"{backend.scheme}:// .* whether a job has ended, and {handle}"):
                ask()

    refuses()
    [lease] = backend.fetch_many(QUEUE, limit=1)
    refuses()
    assert backend.abandon(lease, "failed", "boom")
    assert [status.state for status in backend.wait([handle, handle])] == [JobState.DEAD] * 2
    with pytest.raises(JobFailed, match="boom"):
        handle.result()


@pytest.mark.lacks("finds_all")
@pytest.mark.needs("leases")
def test_a_client_that_was_not_told_of_the_queue_does_not_say_that_a_job_has_ended(harness: Harness) -> None:
    other = harness.open()
    ident = Jobs(backend=harness.open()).enqueue(a_job(scheduled_at=at(harness.now() + 3600.0)))
    for known in (ident, str(ident)):
        for ask in (partial(other.result, known, 0.0), partial(other.wait, [known])):
            with pytest.raises(Unsupported, match=f"whether a job has ended, and {ident}"):
                ask()
    assert other.status(ident).state is JobState.UNKNOWN


@pytest.mark.lacks("finds_all")
@pytest.mark.needs("leases", "lists_live")
def test_a_client_that_has_enqueued_a_job_sees_that_it_is_gone(backend: QueueBackend) -> None:
    jobs = Jobs(backend=backend)
    [handle] = jobs.enqueue_many([a_job()])
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert backend.ack(lease)
    assert [status.state for status in jobs.wait([handle])] == [JobState.UNKNOWN]
    with pytest.raises(ResultNotKept):
        jobs.result(handle, 0.0)


@needs_results
@pytest.mark.parametrize(
    "settlement", [Release(5.0), Move("mails"), Forfeit("SIGSEGV")], ids=lambda s: type(s).__name__
)
def test_a_job_that_goes_on_has_no_result(backend: QueueBackend, settlement: Settlement) -> None:
    lease = a_lease(backend)
    assert settle(backend, lease, settlement) is Settled.OK
    with pytest.raises(ResultPending):
        backend.result(lease.id, timeout=0)


@needs_results
def test_a_handle_cancels_its_job_unless_it_has_ended(backend: QueueBackend) -> None:
    handle = JobHandle(backend.enqueue(a_job()), backend)
    assert handle.cancel() == "cancelled"
    assert handle.status().state is JobState.CANCELLED
    with pytest.raises(JobFailed):
        handle.result(timeout=0)
    lease = a_lease(backend)
    settle(backend, lease, of(lease))
    assert JobHandle(lease.id, backend).cancel() == "ended first"
