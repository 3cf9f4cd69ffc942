"""`QueueWorker`: whole deliveries through a real backend, in this process; and jobs run inline by `sync://`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.claims import found
from support.modest import Breakable, OwnLeases
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Message, MessageFilter, State
from jobpool.client import worker as worker_module
from jobpool.client.jobs import Jobs
from jobpool.client.worker import JobFailedError, QueueWorker, inline_runner
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, JobFailed, ResultNotKept, Unsupported
from jobpool.handlers import ending
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Status, WorkerResult
from jobpool.message.results import JobState
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.retry import RetryPolicy
from jobpool_backends.memory import MemoryBackend

LIMIT = 10.0
"""Seconds for which a test waits for what must happen."""


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


@pytest.fixture
def backend(clock: ManualClock) -> Iterator[MemoryBackend]:
    opened = MemoryBackend(clock=clock)
    yield opened
    opened.close()


class Unsteady(MemoryBackend):
    """A broker that is silent for the next so many settlements and renewals, and keeps what it leased out."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock)
        self.silent_settlements = 0
        self.silent_renewals = 0
        self.renewals = 0
        self.leases: list[JobLease] = []

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.leases = super()._fetch(queue, limit, ttl, fetch_id)
        return self.leases

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if self.silent_settlements:
            self.silent_settlements -= 1
            raise BackendUnavailable("silent")
        return super()._settle(settlements, brought, call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        self.renewals += 1
        if self.silent_renewals:
            self.silent_renewals -= 1
            raise BackendUnavailable("silent")
        return super()._renew(leases, ttl)


put_there = worker_module.LeaseKeeper.put


def put(backend: QueueBackend, handler: str, payload: Any = None, **fields: Any) -> str:
    return backend.enqueue(JobDefinition(handler, {} if payload is None else payload, queue="reports", **fields))


def nothing() -> None: ...


def fails() -> None:
    raise RuntimeError("no paper")


def hangs() -> None:
    while True:
        pass


def dead(backend: QueueBackend) -> Message:
    [message] = backend.list_messages(MessageFilter(states=(State.DEAD,)))
    return message


def test_a_job_that_succeeds_is_acked(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    seen: list[tuple[int, str]] = []

    @registry.handler("report")
    def build(_ctx: JobContext, customer: int, month: str) -> str:
        seen.append((customer, month))
        return "done"

    put(backend, "report", {"customer": 7, "month": "2026-06"})
    worker = QueueWorker(backend, registry)
    assert worker.process_once("reports") == WorkerResult(Status.ACKED, attempts=1)
    assert seen == [(7, "2026-06")]
    assert backend.stats("reports").pending == 0
    assert worker.counters == {"reports": {"jobs_fetched": 1, "jobs_succeeded": 1}}
    assert worker.process_once("reports").status is Status.EMPTY


def test_a_handler_that_runs_on_after_its_own_commit_has_succeeded(
    registry: HandlerRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal finds that its message is gone."""
    told = threading.Event()
    monkeypatch.setattr(worker_module.LeaseKeeper, "put", lambda keeper, event: (put_there(keeper, event), told.set()))
    path = tmp_path / "jobs.db"

    @registry.handler("book", ack_in_transaction=True)
    def book(ctx: JobContext) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            ctx.ack(connection)
        assert told.wait(LIMIT)

    with closing(open_backend(f"sqlite:///{path}")) as backend:
        put(backend, "book")
        assert QueueWorker(backend, registry, ttl=0.5).process_once("reports") == WorkerResult(Status.ACKED, attempts=1)


def test_the_context_knows_its_delivery(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    seen: list[Any] = []

    @registry.handler("report", max_retries=4)
    def build(ctx: JobContext) -> None:
        seen.extend([ctx.id, ctx.queue, ctx.attempt, ctx.fence, ctx.crashes, ctx.max_retries])

    ident = put(backend, "report")
    [first] = backend.fetch_many("reports", limit=1, ttl=30)
    backend.release(first)
    QueueWorker(backend, registry).process_once("reports")
    assert seen == [ident, "reports", 1, 2, 0, 4]


def test_the_last_failure_makes_a_dead_letter_and_one_critical_line(
    backend: MemoryBackend, registry: HandlerRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.handler("report")(fails)
    ident = put(backend, "report", name="daily-report")
    result = QueueWorker(backend, registry).process_once("reports")
    assert (result.status, result.attempts) == (Status.DEAD_LETTERED, 1)
    letter = dead(backend)
    assert letter.reason == "failed"
    assert "RuntimeError: no paper" in str(letter.last_error)
    [record] = caplog.records
    assert record.levelno == logging.CRITICAL
    line = record.getMessage()
    assert line.startswith(f"job {ident} (daily-report) of queue reports is a dead letter after 1 attempts: ")
    assert "no paper" in line


def test_a_handlers_own_back_off_wins_over_the_workers(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    registry.handler("report", max_retries=3, backoff="fixed base=1m")(fails)
    ident = put(backend, "report")
    QueueWorker(backend, registry, retry=RetryPolicy("fixed", base=5)).process_once("reports")
    message = found(backend, ident)
    assert message.available_at - backend.clock.wall() == pytest.approx(60, abs=2)


def test_the_hard_timeout(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    registry.handler("report")(hangs)
    before = signal.getsignal(signal.SIGALRM)
    put(backend, "report", timeout=0.05, name="endless")
    worker = QueueWorker(backend, registry)
    result = worker.process_once("reports")
    assert result.status is Status.DEAD_LETTERED
    assert str(result.error).startswith("Job 'endless' exceeded maximum execution time of 0.05 seconds.")
    assert dead(backend).reason == "timeout"
    assert worker.counters["reports"]["jobs_timed_out"] == 1
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_whose_timeout_applies(backend: MemoryBackend) -> None:
    for case, job, of_handler, pool, seconds in [
        ("the job's", 3.0, 2.0, 1.0, 3.0),
        ("the handler's", None, 2.0, 1.0, 2.0),
        ("the default", None, None, 1.0, 1.0),
        ("unlimited is written", 0.0, 2.0, 1.0, None),
    ]:
        registry, seen = HandlerRegistry(), list[float | None]()
        registry.handler("report", timeout=of_handler)(lambda ctx, seen=seen: seen.append(ctx.deadline))
        put(backend, "report", timeout=job)
        begun = time.monotonic()
        worker = QueueWorker(backend, registry, default_timeout=pool)
        assert worker.process_once("reports").status is Status.ACKED, case
        assert seen == [None if seconds is None else pytest.approx(begun + seconds, abs=0.5)], case


def test_no_job_gets_more_than_the_workers_most(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    seen: list[float] = []

    @registry.handler("report", timeout=0)
    def build(ctx: JobContext) -> None:
        assert ctx.deadline is not None
        seen.append(ctx.deadline - time.monotonic())

    put(backend, "report", timeout=0)
    assert QueueWorker(backend, registry, max_timeout=30.0).process_once("reports").status is Status.ACKED
    assert seen == [pytest.approx(30.0, abs=0.5)]


@pytest.mark.parametrize("hooks", [False, True])
def test_an_interrupt_in_a_handler_ends_the_caller_and_frees_the_job(
    backend: MemoryBackend, registry: HandlerRegistry, hooks: bool
) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    @registry.handler("awaited")
    async def wait() -> None:
        interrupted()

    registry.handler("report")(interrupted)
    if hooks:
        registry.after_attempt(lambda *_: None)
    worker = QueueWorker(backend, registry)
    for handler in ("report", "awaited"):
        ident = put(backend, handler)
        with pytest.raises(KeyboardInterrupt):
            worker.process_once("reports")
        message = found(backend, ident)
        assert (message.state, message.attempts, message.crashes) == (State.WAITING, 0, 0)
        backend.cancel(ident)
    run = inline_runner(registry)
    registry.handler("first")(lambda ctx: ctx.enqueue("report"))
    for handler in ("awaited", "first"):
        with pytest.raises(KeyboardInterrupt):
            run(JobDefinition(handler))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()], ids=repr)
def test_an_interrupt_while_an_error_is_put_into_words_ends_the_caller(
    backend: MemoryBackend, registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def interrupted(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""

    @registry.handler("report")
    def build() -> None:
        raise error

    monkeypatch.setattr(ending, "traceback_text", interrupted)
    ident = put(backend, "report")
    with pytest.raises(KeyboardInterrupt):
        QueueWorker(backend, registry).process_once("reports")
    assert (found(backend, ident).state, found(backend, ident).attempts) == (State.WAITING, 0)


def test_in_another_thread_it_works_without_the_alarm(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    @registry.handler("report")
    def build(ctx: JobContext) -> None:
        # The watch is set a moment behind the deadline that the context tells, once the attempt is ready to run.
        wait_until(lambda: ctx.deadline is not None and time.monotonic() > ctx.deadline + 0.5)

    put(backend, "report", timeout=0.05)
    results: list[WorkerResult] = []
    worker = QueueWorker(backend, registry)
    thread = threading.Thread(target=lambda: results.append(worker.process_once("reports")))
    thread.start()
    thread.join(LIMIT)
    assert [result.status for result in results] == [Status.DEAD_LETTERED]
    assert dead(backend).reason == "timeout"


def test_follow_ups_are_enqueued_with_the_ack(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    ids: list[str] = []

    @registry.handler("report")
    def build(ctx: JobContext) -> None:
        ids.append(ctx.enqueue(JobDefinition("mail", {"to": 7}, queue="mails")))
        if ctx.attempt == 1:
            raise RuntimeError("after the enqueue")

    put(backend, "report", max_retries=1)
    worker = QueueWorker(backend, registry, retry=RetryPolicy("none"))
    worker.process_once("reports")
    assert backend.stats("mails").waiting == 0
    worker.process_once("reports")
    assert [message.id for message in backend.list_messages(MessageFilter(queue="mails"))] == [ids[1]]


# --- what is not run -------------------------------------------------------------------------------------------------


def test_a_wrong_signature_is_rejected_and_its_handler_not_run(
    backend: MemoryBackend, registry: HandlerRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.handler("report")(fails)
    backend.signer = EnvelopeSigner("theirs")
    put(backend, "report", max_retries=5)
    put(backend, "report", max_retries=5)
    backend.signer = EnvelopeSigner("ours")
    worker = QueueWorker(backend, registry)
    results = [worker.process_once("reports") for _ in range(2)]
    assert [result.status for result in results] == [Status.REJECTED] * 2
    assert results[0].attempts == 0
    assert worker.counters["reports"] == {"jobs_fetched": 2, "jobs_rejected_signature": 2}
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]  # one line for both


def test_an_unknown_handler_is_waited_for_and_then_given_up(
    backend: MemoryBackend, registry: HandlerRegistry, clock: ManualClock
) -> None:
    put(backend, "gone")
    worker = QueueWorker(backend, registry, unknown_handler_grace=12)
    results = []
    for _ in range(4):
        results.append(worker.process_once("reports"))
        clock.advance(5)
    assert [result.status for result in results] == [*[Status.RELEASED] * 3, Status.DEAD_LETTERED]
    assert [result.error for result in results[:3]] == ["no handler 'gone' here"] * 3
    letter = dead(backend)
    assert letter.reason == "unknown-handler"
    assert letter.attempts == 0


def test_a_handler_that_is_deployed_in_time_runs(
    backend: MemoryBackend, registry: HandlerRegistry, clock: ManualClock
) -> None:
    put(backend, "report")
    worker = QueueWorker(backend, registry)
    assert worker.process_once("reports").status is Status.RELEASED
    registry.handler("report")(nothing)
    clock.advance(5)
    assert worker.process_once("reports") == WorkerResult(Status.ACKED, attempts=1)


def test_a_handler_that_the_queue_does_not_allow(backend: MemoryBackend, registry: HandlerRegistry) -> None:
    registry.handler("shell")(nothing)
    put(backend, "shell", max_retries=5)
    worker = QueueWorker(backend, registry, queue_handlers={"reports": ["report"]})
    assert worker.process_once("reports").status is Status.DEAD_LETTERED
    assert dead(backend).reason == "handler-not-allowed"


def test_a_job_that_expired_is_not_started(
    backend: MemoryBackend, registry: HandlerRegistry, clock: ManualClock
) -> None:
    registry.handler("report")(nothing)
    put(backend, "report", expires_in=10)
    clock.advance(10)
    assert QueueWorker(backend, registry).process_once("reports").status is Status.DEAD_LETTERED
    assert dead(backend).reason == "expired"


# --- the lease -------------------------------------------------------------------------------------------------------


def test_too_late_nothing_is_settled(backend: MemoryBackend, registry: HandlerRegistry, clock: ManualClock) -> None:
    registry.handler("report")(lambda: clock.advance(30))
    ident = put(backend, "report")
    worker = QueueWorker(backend, registry, ttl=30)
    assert worker.process_once("reports") == WorkerResult(Status.LOST, attempts=1, error="lease lost")
    assert worker.counters["reports"] == {"jobs_fetched": 1, "jobs_lease_lost": 1}
    message = found(backend, ident)
    assert message.state is State.LEASED
    assert backend.reap_expired("reports") == 1


def test_the_lease_is_renewed_while_the_handler_runs(registry: HandlerRegistry) -> None:
    backend = Unsteady()
    backend.silent_renewals = 1

    # At least 1.3 of the lease's 0.9 s, one renewal lost.
    registry.handler("report")(lambda: wait_until(lambda: backend.renewals >= 6))
    put(backend, "report")
    with Stalls() as stalls:  # in one that is long the lease ends, as it should
        result = QueueWorker(backend, registry, ttl=0.9).process_once("reports")
    assert result.status is Status.ACKED or stalls.longest > 0.2
    assert the_renewals_have_ended()
    backend.close()


def test_a_lease_shorter_than_asked_for_is_renewed_by_its_own_length(registry: HandlerRegistry) -> None:
    backend = OwnLeases(1.5)  # a busy machine may stand still for some of it

    registry.handler("report")(lambda: wait_until(lambda: len(backend.renewed_at) >= 4))
    put(backend, "report")
    assert QueueWorker(backend, registry, ttl=600.0).process_once("reports").status is Status.ACKED
    backend.close()


def test_a_lease_longer_than_asked_for_is_not_renewed_too_early(registry: HandlerRegistry) -> None:
    backend = OwnLeases(600.0)

    registry.handler("report")(lambda: threading.Event().wait(0.3))
    put(backend, "report")
    assert QueueWorker(backend, registry, ttl=0.3).process_once("reports").status is Status.ACKED
    assert backend.renewed_at == []
    backend.close()


def the_renewals_have_ended() -> bool:
    return not any("renew" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("made", "lose", "ttl", "error"),
    [
        pytest.param(Breakable, lambda it: it.break_all(it.leases), 600.0, "lease lost", id="it breaks"),
        pytest.param(Unsteady, lambda it: it.release(it.leases[0]), 0.6, "lease lost", id="a renewal is told"),
        pytest.param(
            Unsteady,
            lambda it: it.release(it.leases[0]),
            600.0,
            "the backend refused the settlement: not-in-flight",
            id="the settlement is refused",
        ),
    ],
)
def test_a_lease_that_is_lost_meanwhile_is_not_settled(
    made: Callable[[], Any], lose: Callable[[Any], object], ttl: float, error: str, registry: HandlerRegistry
) -> None:
    backend = made()

    @registry.handler("report")
    def build() -> None:
        lose(backend)
        if error == "lease lost":  # it is noticed while the handler runs
            wait_until(the_renewals_have_ended)

    put(backend, "report")
    worker = QueueWorker(backend, registry, ttl=ttl)
    result = worker.process_once("reports")
    assert (result.status, result.error) == (Status.LOST, error)
    assert worker.counters["reports"] == {"jobs_fetched": 1, "jobs_lease_lost": 1}
    assert backend.stats("reports").waiting == 1
    backend.close()


def test_a_silent_broker_is_asked_again_while_the_lease_runs(registry: HandlerRegistry) -> None:
    backend = Unsteady()
    backend.silent_settlements = 2
    registry.handler("report")(nothing)
    put(backend, "report")
    assert QueueWorker(backend, registry).process_once("reports").status is Status.ACKED
    assert backend.stats("reports").pending == 0
    backend.close()


def test_a_broker_that_stays_silent_is_an_error_not_a_result(registry: HandlerRegistry) -> None:
    backend = Unsteady()
    backend.silent_settlements = 1000
    registry.handler("report")(nothing)
    put(backend, "report")
    with pytest.raises(BackendUnavailable):
        QueueWorker(backend, registry, ttl=0.3).process_once("reports")
    backend.close()


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": -1}, {"default_timeout": -1}], ids=str)
def test_options_out_of_bounds(backend: MemoryBackend, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        QueueWorker(backend, **options)  # type: ignore[arg-type]


def test_on_sqlite_from_the_client_to_the_ack(tmp_path: Path, registry: HandlerRegistry) -> None:
    registry.handler("report")(nothing)
    with Jobs(f"sqlite:///{tmp_path}/jobs.db", signing_key="secret") as jobs:
        jobs.define("report").queue("reports").dispatch()
        jobs.define("report").queue("reports").dispatch()
        worker = QueueWorker(jobs.backend, registry)
        statuses = [worker.process_once("reports").status for _ in range(3)]
    assert statuses == [Status.ACKED, Status.ACKED, Status.EMPTY]


# --- inline ----------------------------------------------------------------------------------------------------------


def test_sync_runs_a_job_at_enqueue(registry: HandlerRegistry) -> None:
    seen: list[Any] = []
    registry.handler("report")(lambda ctx: seen.append(ctx.payload))
    with Jobs("sync://", runner=inline_runner(registry)) as jobs:
        ident = jobs.define("report", {"customer": 7}).dispatch()
    assert seen == [{"customer": 7}]
    assert ident.startswith("sync-")


def test_under_sync_the_handler_has_the_id_that_the_producer_gets(registry: HandlerRegistry) -> None:
    seen: list[str] = []
    registry.handler("report")(lambda ctx: seen.append(ctx.id))
    with Jobs("sync://", runner=inline_runner(registry)) as jobs:
        assert jobs.enqueue(JobDefinition("report", identifier="order-17")) == "order-17"
        assert seen == ["order-17", jobs.enqueue("report")]


def test_sync_says_itself_why_there_is_no_result_and_nothing_to_cancel(registry: HandlerRegistry) -> None:
    registry.handler("report", result_ttl=600)(lambda _ctx: 7)
    with Jobs("sync://", runner=inline_runner(registry)) as jobs:
        handle = jobs.enqueue("report")
        for ask in (handle.result, lambda **_: asyncio.run(jobs.aresult(handle))):
            with pytest.raises(
                ResultNotKept, match=f"sync:// ran job {handle} at its enqueue and keeps no result, what"
            ):
                ask(timeout=1)
        for refused in (handle.cancel, jobs.pools, lambda: jobs.pause("reports")):
            with pytest.raises(Unsupported, match=r"sync:// runs each job before .*nothing is there to cancel") as told:
                refused()
            assert "state=" not in str(told.value)


def test_a_kept_result_ends_by_the_brokers_clock(registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "broker_time", lambda _: 5e9)
    backend = MemoryBackend()
    registry.handler("report", result_ttl=600)(lambda: 7)
    ident = put(backend, "report")
    assert QueueWorker(backend, registry).process_once("reports").status is Status.ACKED
    assert backend.status(ident).ended_at == pytest.approx(5e9, abs=5.0)


def test_sync_runs_the_handlers_of_the_process_by_default(
    registry: HandlerRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    registry.handler("report")(lambda ctx: seen.append(ctx.attempt))
    monkeypatch.setattr(worker_module, "DEFAULT", registry)
    with Jobs("sync://") as jobs:
        jobs.define("report").dispatch()
    assert seen == [1]


def test_the_inline_runner_returns_the_result(registry: HandlerRegistry) -> None:
    registry.handler("report")(lambda _ctx: {"pages": 3})
    result = inline_runner(registry)(JobDefinition("report"))
    assert (result.success, result.output, result.error, result.handler) == (True, '{"pages":3}', None, "report")


def test_what_fails_inline_is_raised(registry: HandlerRegistry) -> None:
    registry.handler("report")(fails)
    backend = open_backend("sync://", runner=inline_runner(registry))
    with pytest.raises(JobFailed, match="no paper") as caught:
        backend.enqueue(JobDefinition("report", queue="slow", max_retries=5))
    told = caught.value.status
    assert (told.state, told.queue, told.handler, told.reason) == (JobState.DEAD, "slow", "report", "failed")
    assert "no paper" in told.error


def test_an_unknown_handler_inline_is_raised(registry: HandlerRegistry) -> None:
    with pytest.raises(JobFailedError, match="no handler is named 'gone' here"):
        inline_runner(registry)(JobDefinition("gone"))


def test_a_timeout_inline_is_raised(registry: HandlerRegistry) -> None:
    registry.handler("report", timeout=0.05)(hangs)
    with pytest.raises(JobFailedError, match="exceeded maximum execution time"):
        inline_runner(registry)(JobDefinition("report"))


def test_follow_ups_run_inline_too(registry: HandlerRegistry) -> None:
    seen: list[str] = []

    @registry.handler("report")
    def build(ctx: JobContext) -> None:
        seen.append(ctx.handler)
        ctx.enqueue("mail", {"to": 7})
        ctx.enqueue("mail", {"to": 8})

    @registry.handler("mail")
    def mail(ctx: JobContext, to: int) -> None:
        seen.append(f"{ctx.handler} {to}")

    inline_runner(registry)(JobDefinition("report"))
    assert seen == ["report", "mail 7", "mail 8"]


def test_a_follow_up_of_the_future_is_refused_inline(registry: HandlerRegistry) -> None:
    @registry.handler("report")
    def build(ctx: JobContext) -> None:
        ctx.enqueue(JobDefinition("mail", scheduled_at=datetime.now(UTC) + timedelta(hours=1)))

    with pytest.raises(Unsupported, match="'mail' is due at"):
        inline_runner(registry)(JobDefinition("report"))
