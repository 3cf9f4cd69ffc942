"""`jobpool.testing`: whole lives of jobs on virtual time, and every fault at every point."""

from __future__ import annotations

import asyncio
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from support.claims import found

import jobpool.testing
from jobpool import Limits, Retry, RetryPolicy, Snooze, Unrecoverable
from jobpool.broker.values import NewMessage, ReapPolicy, State
from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message import producer
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition
from jobpool.message.guards import Guards, Hold
from jobpool.message.outcome import ExecutionResult, Status
from jobpool.testing import POINTS, BrokerDown, Crash, Fault, LoseLease, Point, Timeout, VirtualPool, context

ROOT = Path(__file__).resolve().parents[3]

Log = list[str]


def a_job(handler: str = "report", **fields: object) -> JobDefinition:
    return JobDefinition(handler, **{"queue": "reports", **fields})  # type: ignore[arg-type]


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def registry(log: Log) -> HandlerRegistry:
    registry = HandlerRegistry()

    def before(_: JobContext) -> None:
        log.append("before")

    def after(result: ExecutionResult) -> None:
        log.append(f"after {result.success}")

    @registry.handler
    def report(_: JobContext) -> str:
        log.append("report")
        return "done"

    @registry.handler
    def fail(ctx: JobContext) -> None:
        log.append(f"attempt {ctx.attempt}")
        raise ValueError("no")

    @registry.handler
    def steps(ctx: JobContext) -> None:
        for step in (0.25, 0.5, 0.75):
            log.append(str(step))
            ctx.progress(step)

    @registry.handler(before_run=before, after_run=after)
    def hooked(_: JobContext) -> None:
        log.append("hooked")

    @registry.handler
    def parent(ctx: JobContext) -> None:
        log.append("parent")
        ctx.enqueue(a_job(queue="mails"))

    @registry.handler
    def forever(ctx: JobContext) -> None:
        ctx.enqueue(a_job("forever"))

    @registry.handler
    def sleepy(_: JobContext) -> None:
        log.append("sleepy")
        if len(log) < 3:
            raise Snooze(100)

    @registry.handler
    def hopeless(_: JobContext) -> None:
        raise Unrecoverable("never")

    return registry


@pytest.fixture
def pool(registry: HandlerRegistry) -> Iterator[VirtualPool]:
    pool = VirtualPool(registry)
    yield pool
    assert pool.unused == []
    pool.close()


# --- running ----------------------------------------------------------------------------------------------


def test_nothing_runs_where_nothing_is(pool: VirtualPool) -> None:
    assert pool.run_one("reports") is None
    assert pool.run_ready() == pool.run_all() == pool.run_all("reports") == []


def test_a_run_tells_all_about_it(pool: VirtualPool) -> None:
    ident = pool.enqueue(a_job())
    run = pool.run_one("reports")
    assert run is not None
    assert (run.status, run.attempts, run.error, run.output) == (Status.ACKED, 1, None, "done")
    assert (run.id, run.queue, run.handler, run.at) == (ident, "reports", "report", pool.clock.wall())
    assert pool.message(ident) is None
    assert pool.counters("reports") == {"jobs_fetched": 1, "jobs_succeeded": 1}


def test_no_time_passes_unless_it_is_asked_for(registry: HandlerRegistry, log: Log) -> None:
    pool = VirtualPool(registry, retry=RetryPolicy("fixed", 10, max_attempts=3))
    pool.enqueue(a_job("fail"))
    before = pool.clock.wall()
    [run] = pool.run_ready()
    assert (run.status, log, pool.clock.wall()) == (Status.REQUEUED, ["attempt 1"], before)
    assert [message.state for message in pool.waiting()] == [State.DELAYED]
    pool.advance(10.0)
    assert len(pool.run_ready("reports")) == 1


def test_a_delay_counts_by_the_clock_of_the_pool_that_is_entered() -> None:
    registry = HandlerRegistry()

    @registry.handler
    def report() -> None: ...

    @registry.handler(max_retries=1)
    def parent(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise Retry(after=600)
        ctx.enqueue(report.define().delay(60))

    with VirtualPool(registry) as pool:
        with VirtualPool(start=datetime(2020, 1, 1, tzinfo=UTC)):
            pass  # it gives the clock back
        pool.advance(3600)
        report.define().delay(60).dispatch()
        Jobs().define("report").delay(60).dispatch()
        assert pool.run_ready() == []
        pool.advance(61)
        assert len(pool.run_ready()) == 2
        parent.enqueue()
        first, *_, follow_up = pool.run_all()
        assert follow_up.at - first.at == pytest.approx(660)
    assert JobBuilder("report").delay(0).to_definition().scheduled_at < datetime.now(UTC) + timedelta(minutes=1)  # type: ignore[operator]


def test_run_all_goes_through_retries_to_the_dead_letter(registry: HandlerRegistry, log: Log) -> None:
    pool = VirtualPool(registry, retry=RetryPolicy("exponential", 10, max_delay=0, jitter=0.0, max_attempts=4))
    ident = pool.enqueue(a_job("fail"))
    runs = pool.run_all()
    assert [run.status for run in runs] == [Status.REQUEUED] * 3 + [Status.DEAD_LETTERED]
    assert [round(later.at - run.at, 3) for run, later in pairwise(runs)] == [10.0, 20.0, 40.0]
    assert [run.attempts for run in runs] == [1, 2, 3, 4]
    assert "ValueError: no" in str(runs[-1].error)
    [dead] = pool.dead("reports")
    assert (dead.id, dead.reason, len(log)) == (ident, "failed", 4)
    assert (pool.dead("mails"), pool.waiting()) == ([], [])


def test_run_all_waits_for_what_is_scheduled_or_snoozed(pool: VirtualPool, log: Log) -> None:
    later = datetime.fromtimestamp(pool.clock.wall(), UTC) + timedelta(hours=1)
    pool.enqueue(a_job("sleepy", scheduled_at=later))
    runs = pool.run_all()
    assert [run.status for run in runs] == [Status.RELEASED, Status.RELEASED, Status.ACKED]
    assert (runs[0].at, runs[-1].at - runs[0].at) == pytest.approx((later.timestamp(), 200.0))
    assert len(log) == 3


def test_run_all_brings_follow_ups_to_their_end_in_whatever_queue(pool: VirtualPool, log: Log) -> None:
    pool.enqueue(a_job("parent"))
    assert [run.queue for run in pool.run_all()] == ["reports", "mails"]
    assert log == ["parent", "report"]


def test_only_the_queues_that_are_named_run(pool: VirtualPool) -> None:
    pool.enqueue_many([a_job(), a_job(queue="mails"), a_job(queue="other")])
    assert [run.queue for run in pool.run_all("mails", "reports")] == ["mails", "reports"]
    assert [message.queue for message in pool.waiting()] == ["other"]


def test_a_paused_queue_runs_when_its_pause_is_over(pool: VirtualPool, log: Log) -> None:
    pool.jobs.pause("default", until=60.0)
    pool.jobs.pause("second")
    pool.enqueue("report")
    pool.enqueue(JobDefinition("report", queue="second"))
    assert pool.run_one() is None
    assert pool.run_ready() == []
    [run] = pool.run_all(limit=1)
    assert (run.queue, run.at) == ("default", pool.clock.wall())
    assert log == ["report"]
    pool.jobs.resume("second")
    assert [run.queue for run in pool.run_all()] == ["second"]


def test_what_was_posted_is_not_to_run_and_nothing_waits_for_it(pool: VirtualPool) -> None:
    start = pool.clock.wall()
    queue = pool.jobs.queue("reports")
    queue.post(["free"])
    queue.post(["delayed"], delay=90)
    pool.enqueue(a_job())
    assert [run.status for run in pool.run_all()] == [Status.ACKED]
    assert pool.waiting() == []
    assert pool.clock.wall() == start
    assert queue.stats().total == 2


def test_a_job_that_somebody_claimed_runs_when_the_claim_has_ended(pool: VirtualPool) -> None:
    start = pool.clock.wall()
    ident = pool.enqueue(a_job())
    assert pool.jobs.queue("reports").claim(ttl=60) is not None
    assert pool.run_ready() == []
    assert [run.id for run in pool.run_all()] == [ident]
    assert pool.clock.wall() == start + 60


def test_in_a_running_event_loop_a_coroutine_says_what_to_do(registry: HandlerRegistry) -> None:
    @registry.handler(max_retries=9)
    async def fetch(_: JobContext) -> str:
        return await asyncio.sleep(0, "fetched")

    async def test(pool: VirtualPool) -> str:
        pool.enqueue("fetch")
        assert "await asyncio.to_thread(pool.run_all)" in str(pool.run_ready(limit=1)[0].error)
        return (await asyncio.to_thread(pool.run_all))[0].output

    with VirtualPool(registry) as pool:
        assert asyncio.run(test(pool)) == "fetched"


def test_an_hour_of_waiting_takes_no_time(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry, limits=Limits(rates={"reports": 2}))
    pool.enqueue_many([a_job()] * 60)
    runs = [run for run in pool.run_all(limit=100_000) if run.status is Status.ACKED]
    assert len(runs) == 60
    assert runs[-1].at - runs[0].at >= 29 * 60.0
    assert all(third.at - first.at >= 60.0 for first, third in zip(runs, runs[2:], strict=False))


@pytest.mark.parametrize("run", ["run_ready", "run_all"])
def test_what_never_ends_is_stopped_and_as_many_runs_as_the_limit_are_fine(pool: VirtualPool, run: str) -> None:
    pool.enqueue_many([a_job()] * 5)
    assert len(getattr(pool, run)(limit=5)) == 5
    pool.enqueue(a_job("forever"))
    with pytest.raises(AssertionError, match="more to do after 25 runs"):
        getattr(pool, run)(limit=25)
    with pytest.raises(ConfigurationError, match="limit is 1 or more"):
        getattr(pool, run)(limit=0)


def test_a_permanent_failure_and_a_rejection_are_runs_too(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry, signing_key="a key of sixteen or more")
    ident = pool.enqueue(a_job("hopeless"))
    [hopeless] = pool.run_all()
    assert (hopeless.status, [message.id for message in pool.dead()]) == (Status.DEAD_LETTERED, [ident])
    pool.backend.signer = type(pool.backend.signer)("another key of sixteen")
    pool.enqueue(a_job())
    [rejected] = pool.run_all()
    assert (rejected.status, rejected.handler) == (Status.REJECTED, "report")


def test_a_body_that_is_no_wire_object_is_a_run_that_no_fault_is_meant_for(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry)
    body = NewMessage("odd", True, "reports", "?", 5, None, b"{")
    pool.backend._enqueue([body])
    for point in ("before_start", "before_settle"):
        pool.inject(Crash(), point)
    [run] = pool.run_all()
    assert (run.status, run.id, run.handler) == (Status.REJECTED, "odd", "")
    assert len(pool.unused) == 2


def test_a_lost_lease_is_lost_while_the_handler_runs() -> None:
    registry = HandlerRegistry()

    @registry.handler
    def look(ctx: JobContext) -> None:
        seen.append(found(pool.backend, ctx.id).expires_at == pool.clock.wall())

    seen: list[bool] = []
    pool = VirtualPool(registry)
    pool.enqueue(a_job("look"))
    pool.inject(LoseLease(), "in_handler")
    assert [run.status for run in pool.run_all()] == [Status.LOST, Status.ACKED]
    assert seen == [True, False]


def test_keys_and_locks_are_kept(pool: VirtualPool) -> None:
    pool.enqueue_many([a_job(idempotency_key="k")] * 2)
    assert [run.status for run in pool.run_ready()] == [Status.ACKED, Status.SKIPPED_IDEMPOTENT]
    ids = [pool.enqueue(a_job(idempotency_key="u", unique=True)) for _ in range(2)]
    assert ids[0] == ids[1]


def test_what_is_held_back_runs_when_the_holder_is_gone(pool: VirtualPool) -> None:
    """By a lease of the test's own, as another pool would hold it; it runs out."""
    job = a_job(name="nightly", single_instance=True)
    pool.enqueue_many([job, job])
    [held] = pool.backend.fetch_many("reports", limit=1, ttl=500.0)
    assert pool.backend.keys.begin_many([(held, Guards(holds=(Hold("job:nightly"),)))])[0]
    *waited, first, second = pool.run_all()
    assert {run.status for run in waited} == {Status.RELEASED}
    assert {first.id, second.id} == {held.id, *(run.id for run in waited)}
    assert (first.status, second.status) == (Status.ACKED, Status.ACKED)


def test_the_clock_starts_now_or_when_it_is_told(registry: HandlerRegistry) -> None:
    assert VirtualPool(registry).clock.wall() == pytest.approx(time.time(), abs=60.0)
    moment = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    assert VirtualPool(registry, start=moment).clock.wall() == moment.timestamp()
    with pytest.raises(ConfigurationError, match="timezone"):
        VirtualPool(registry, start=datetime(2026, 3, 29))


def test_as_a_context_it_takes_what_handlers_enqueue() -> None:
    registry = HandlerRegistry()
    handler = registry.handler("report", queue="reports")(lambda _: None)
    with VirtualPool(registry) as pool:
        handler.enqueue()
        handler.define().dispatch()
        assert len(pool.run_all()) == 2
    assert producer.process.producer is None


def test_as_a_context_it_takes_what_any_jobs_without_a_url_enqueues(tmp_path: Path) -> None:
    registry = HandlerRegistry()
    registry.handler("report")(lambda _: None)
    with Jobs() as before, Jobs(f"sqlite:///{tmp_path}/real.db") as real:
        with VirtualPool(registry) as pool:
            before.define("report").dispatch()
            Jobs().enqueue_many([JobDefinition("report")])
            with Jobs().batch() as batch:
                batch.add(JobDefinition("report"))
            real.enqueue("report")
            assert len(pool.run_all()) == 3
        assert real.stats().waiting == 1
    assert producer.process.chosen is None


def test_a_handler_enqueues_to_the_pool_whatever_the_url_and_cannot_look_as_in_a_child(tmp_path: Path) -> None:
    registry = HandlerRegistry()
    elsewhere = Jobs(f"sqlite:///{tmp_path}/elsewhere.db")

    @registry.handler
    async def report() -> None:
        handle = await elsewhere.aenqueue("mail")
        with elsewhere.batch() as batch:
            batch.add(mail.define())
        handle.result(0)

    @registry.handler
    def mail() -> None: ...

    with elsewhere, VirtualPool(registry) as pool:
        report.enqueue()
        looked, *mails = pool.run_all()
        assert looked.error is not None
        assert "a job cannot look into the broker" in looked.error
        assert [run.status for run in mails] == [Status.ACKED] * 2
        assert elsewhere.queues() == []


def test_after_an_inner_pool_the_outer_one_takes_what_handlers_enqueue() -> None:
    registry = HandlerRegistry()
    handler = registry.handler("report")(lambda _: None)
    with VirtualPool(registry) as outer:
        with VirtualPool(registry) as inner:
            handler.enqueue()
        handler.enqueue()
        assert [len(pool.waiting()) for pool in (outer, inner)] == [1, 1]
    assert producer.process.chosen is None


def test_no_name_of_the_kit_is_a_module_too() -> None:
    """Whichever is imported later would hide the other."""
    modules = {module.name for module in pkgutil.iter_modules(jobpool.testing.__path__)}
    assert modules.isdisjoint(jobpool.testing.__all__)


# --- faults -----------------------------------------------------------------------------------------------


AGAIN = [Status.ACKED]
CRASHED = [Status.CRASHED, Status.ACKED]
LOST = [Status.LOST, Status.ACKED]


@pytest.mark.parametrize(
    ("fault", "point", "statuses", "parents"),
    [
        (Crash(), "before_start", CRASHED, 1),
        (Crash(), "in_handler", CRASHED, 1),
        (Crash(), "before_settle", CRASHED, 2),
        (Crash(), "after_settle", AGAIN, 1),
        (LoseLease(), "before_start", LOST, 2),
        (LoseLease(), "in_handler", LOST, 2),
        (LoseLease(), "before_settle", LOST, 2),
        (BrokerDown(calls=5), "before_settle", AGAIN, 1),
        (BrokerDown(calls=5), "after_settle", AGAIN, 1),
        (BrokerDown(calls=1000), "before_settle", LOST, 2),
    ],
    ids=str,
)
def test_a_fault_anywhere_leaves_one_follow_up_and_its_job_is_done(
    pool: VirtualPool, log: Log, fault: Fault, point: Point, statuses: list[Status], parents: int
) -> None:
    ident = pool.enqueue(a_job("parent"))
    pool.inject(fault, point, handler="parent")
    runs = pool.run_all()
    assert [(run.id, run.status) for run in runs if run.handler == "parent"] == [(ident, told) for told in statuses]
    assert (log.count("parent"), log.count("report")) == (parents, 1)
    assert pool.counters("reports").get("jobs_lease_lost", 0) == isinstance(fault, LoseLease)
    if fault == BrokerDown(calls=1000):
        assert runs[1].at - runs[0].at >= 30.0, "its lease has to end"


@pytest.mark.parametrize("point", POINTS[:3])
def test_a_crash_is_counted_once_with_its_cause_and_costs_no_attempt(pool: VirtualPool, point: Point) -> None:
    ident = pool.enqueue(a_job())
    pool.inject(Crash("SIGSEGV"), point)
    run = pool.run_one("reports")
    assert run is not None
    assert (run.status, run.attempts, run.error, run.output) == (Status.CRASHED, 0, "SIGSEGV", "")
    message = found(pool.backend, ident)
    assert (message.state, message.crashes, message.attempts, message.cause) == (State.WAITING, 1, 0, "SIGSEGV")
    assert pool.counters("reports")["jobs_crashed"] == 1


def test_hooks_of_the_app_run_around_an_attempt_with_a_fault_but_not_after_a_crash(
    pool: VirtualPool, registry: HandlerRegistry, log: Log
) -> None:
    registry.hooks.add("before_attempt", lambda _: log.append("hook"))
    registry.hooks.add("after_attempt", lambda _, result: log.append(f"hook {result.kind}"))
    pool.inject(Crash(), "in_handler")
    pool.inject(Timeout(), "in_handler")
    pool.enqueue(a_job(max_retries=1))
    pool.run_all()
    told = [line for line in log if line.startswith("hook")]
    assert told == ["hook", "hook", "hook failed", "hook", "hook succeeded"]


def test_crashes_past_the_limit_make_a_dead_letter(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry, reap=ReapPolicy(max_crashes=2))
    pool.enqueue(a_job())
    pool.inject(Crash(), "in_handler", times=3)
    assert [run.status for run in pool.run_all()] == [Status.CRASHED] * 3
    [dead] = pool.dead()
    assert (dead.reason, dead.crashes) == ("crash-limit", 3)


def test_a_fault_strikes_at_the_progress_that_was_said(pool: VirtualPool, log: Log) -> None:
    pool.enqueue(a_job("steps"))
    pool.inject(Crash(), "in_handler", progress=0.5)
    assert [run.status for run in pool.run_all()] == [Status.CRASHED, Status.ACKED]
    assert log == ["0.25", "0.5", "0.25", "0.5", "0.75"]


def test_a_handler_has_begun_when_it_is_struck(pool: VirtualPool, log: Log) -> None:
    pool.enqueue(a_job("hooked"))
    pool.inject(Crash(), "in_handler")
    pool.run_one("reports")
    assert log == ["before"]
    pool.inject(Timeout(), "in_handler")
    pool.run_one("reports")
    assert log == ["before", "before", "after False"]


def test_a_handler_that_swallows_it_is_over_all_the_same() -> None:
    registry = HandlerRegistry()

    @registry.handler
    def stubborn(ctx: JobContext) -> str:
        for _ in range(3):
            with suppress(BaseException):
                ctx.progress(0.5)
        return "never heard of it"

    pool = VirtualPool(registry)
    pool.enqueue(a_job("stubborn"))
    pool.inject(Crash(), "in_handler", progress=0.1, times=2)
    runs = pool.run_all()
    assert [(run.status, run.output) for run in runs] == [
        (Status.CRASHED, ""),
        (Status.CRASHED, ""),
        (Status.ACKED, "never heard of it"),
    ]


def test_a_timeout_is_a_failed_attempt_with_the_usual_text(pool: VirtualPool) -> None:
    ident = pool.enqueue(a_job("parent", max_retries=1, timeout=2.5, name="nightly"))
    pool.inject(Timeout(), "in_handler", times=2)
    runs = pool.run_all()
    assert [(run.status, run.attempts) for run in runs] == [(Status.REQUEUED, 1), (Status.DEAD_LETTERED, 2)]
    assert runs[0].error == "Job 'nightly' exceeded maximum execution time of 2.5 seconds."
    assert pool.counters("reports")["jobs_timed_out"] == 2
    [dead] = pool.dead()
    assert (dead.id, dead.reason, pool.waiting("mails")) == (ident, "timeout", [])


def test_a_handler_that_turns_the_clock_beyond_its_lease_has_lost_it(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry, ttl=10.0)
    start = pool.clock.wall()
    registry.handler("slow")(lambda _: pool.advance(10.0) if pool.clock.wall() < start + 15 else None)
    pool.enqueue(a_job("slow"))
    assert [run.status for run in pool.run_all()] == [Status.LOST, Status.LOST, Status.ACKED]


def test_a_fetch_that_is_not_answered_touches_no_message(pool: VirtualPool) -> None:
    ident = pool.enqueue(a_job())
    pool.inject(BrokerDown(calls=2), "before_start")
    with pytest.raises(BackendUnavailable):
        pool.run_one("reports")
    message = found(pool.backend, ident)
    assert (message.state, message.deliveries) == (State.WAITING, 0)
    before = pool.clock.wall()
    [run] = pool.run_all()
    assert (run.status, run.at - before) == (Status.ACKED, 1.0)


def test_a_fault_meets_whom_it_is_meant_for(pool: VirtualPool) -> None:
    first, second, third = pool.enqueue_many([a_job(), a_job(), a_job("steps")])
    pool.inject(Crash(), "before_start", job=second)
    pool.inject(Crash(), "before_start", handler="steps")
    runs = pool.run_all()
    assert [run.id for run in runs if run.status is Status.CRASHED] == [second, third]
    assert [run.id for run in runs if run.status is Status.ACKED] == [first, second, third]


def test_a_fault_may_wait_for_an_attempt(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry)
    pool.enqueue(a_job("fail", max_retries=2))
    pool.inject(Crash(), "before_settle", attempt=2)
    statuses = [run.status for run in pool.run_all()]
    assert statuses == [Status.REQUEUED, Status.CRASHED, Status.REQUEUED, Status.DEAD_LETTERED]


def test_what_has_not_happened_is_told(registry: HandlerRegistry) -> None:
    pool = VirtualPool(registry)
    pool.inject(Crash(), "in_handler", handler="report", times=2)
    pool.inject(LoseLease(), "before_settle", job="nobody")
    pool.enqueue(a_job())
    pool.run_one("reports")
    assert pool.unused == [
        "Crash(cause='killed by a test') at in_handler, handler='report', 1 time",
        "LoseLease() at before_settle, job='nobody', 1 time",
    ]


@pytest.mark.parametrize(
    ("fault", "at", "options", "text"),
    [
        (Timeout(), "before_start", {}, "Timeout can happen at in_handler, not at 'before_start'"),
        (LoseLease(), "after_settle", {}, "LoseLease can happen at"),
        (BrokerDown(), "in_handler", {}, "BrokerDown can happen at"),
        (Crash(), "nowhere", {}, "Crash can happen at before_start, in_handler, before_settle, after_settle"),
        ("crash", "in_handler", {}, "is not a fault"),
        (Crash(), "in_handler", {"times": 0}, "times is a whole number"),
        (Crash(), "before_settle", {"progress": 0.5}, "progress says when in the handler"),
        (Crash(), "in_handler", {"progress": 50}, "progress is a number from 0 to 1, not 50"),
        (Crash(), "in_handler", {"handler": print}, "handler and job are texts, a name and an id, not <built-in"),
        (BrokerDown(), "before_start", {"handler": "report"}, "concerns no job"),
    ],
)
def test_what_cannot_happen_is_refused_when_it_is_planned(
    pool: VirtualPool, fault: Fault, at: Point, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        pool.inject(fault, at, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", [0, -1, 1.5, True])
def test_an_outage_of_no_calls_is_refused(calls: int) -> None:
    with pytest.raises(ConfigurationError, match="calls is a whole number from 1 on"):
        BrokerDown(calls)


# --- beside the pool --------------------------------------------------------------------------------------


def test_a_context_keeps_what_the_handler_said() -> None:
    ctx = context({"order": "17"}, handler="charge", queue="orders", attempt=3, max_retries=5, meta={"by": "me"})
    told = (ctx.handler, ctx.name, ctx.queue, ctx.attempt, ctx.max_retries, ctx.payload, ctx.meta, ctx.fence)
    assert told == ("charge", "charge", "orders", 3, 5, {"order": "17"}, {"by": "me"}, 1)
    ctx.progress(2, "done")
    assert ctx.reports == [(1.0, "done")]
    ident = ctx.enqueue("mail", {"order": "17"})
    assert [(job.identifier, job.handler, job.payload) for job in ctx.enqueued] == [(ident, "mail", {"order": "17"})]
    ctx.ack("connection")
    assert ctx.acks == ["connection"]


def test_a_context_tells_of_the_job_before_it_and_of_its_batch() -> None:
    ctx = context(previous=[1, 2], batch="batch-1", meta={"by": "me"})
    assert (ctx.previous, ctx.meta) == ([1, 2], {"by": "me"})
    assert ctx.batch is not None
    ident = ctx.batch.add(JobDefinition("mail"))
    assert [(job.identifier, job.batch) for job in ctx.enqueued] == [(ident, "batch-1")]
    assert (context().previous, context().batch) == (None, None)


def _blocks() -> dict[str, str]:
    """The files of the page's example, by name."""
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    found = re.findall(r"in `(\w+\.py)`:\n\n```python\n(.*?)```", page, re.DOTALL)
    return dict(found)


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    words = f"-m pytest -q -p no:cacheprovider -W error --rootdir {folder} {folder}".split()
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    files = _blocks()
    assert sorted(files) == ["conftest.py", "shop.py", "test_charge.py", "test_hourly.py", "test_shop.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=.mypy", *files]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout
    written = "".join(files.values()).count("def test_")
    assert f"{written + len(POINTS) - 1} passed" in ran.stdout


def test_the_fixture_fails_a_test_whose_fault_never_happened(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from jobpool.testing import Crash\n\n\n"
        "def test_it(virtual_pool):\n    virtual_pool.inject(Crash(), at='in_handler')\n"
    )
    ran = run_pytest(tmp_path)
    assert ran.returncode == 1
    assert "injected, and never met" in ran.stdout
