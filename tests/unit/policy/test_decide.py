"""Every row of the table of verdicts, and the two views of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, get_args

import pytest
from msgspec import structs

from jobpool.message.death import Death
from jobpool.message.definition import LONGEST, JobDefinition
from jobpool.message.envelope import MAX_BODY_BYTES, encode
from jobpool.message.lease import JobLease
from jobpool.message.outcome import (
    AlreadyDone,
    Cancelled,
    Contended,
    Crashed,
    Expired,
    Failed,
    HandlerNotAllowed,
    LostLease,
    MemoryExceeded,
    NeverStarted,
    NewerWire,
    NotRun,
    Outcome,
    Rejected,
    RetryAsked,
    Snoozed,
    Status,
    Stopped,
    Succeeded,
    TimedOut,
    UnknownHandler,
)
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Move, Nack, Release, Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.decide import MAX_EXTRA_MOVES, Rules, decide
from jobpool.policy.outcomes import cancelled, counters_of, status_of
from jobpool.policy.retry import RetryPolicy

NOW = 1000.0
EXPIRES_AT = 1030.0
RETRY = RetryPolicy("exponential", base=5, max_delay=300, jitter=0, resolution=1)
FOLLOW_UP = JobDefinition("mail", {"to": 7})
EXPIRING = Rules(on_crash="expire")
NOT_BEGUN = Release(begun=False)
DEATH = Death("killed by SIGSEGV", "itself", peak_memory=2**20).to_text()
KILLED = Death("memory limit", "the pool: memory limit").to_text()
MOVING = Rules(on_crash_queue="careful", memory_limit_queue="big", max_crashes=2)


def a_lease(max_retries: int | None = 2, payload: object = None, **fields: Any) -> JobLease:
    job = JobDefinition("report", payload, max_retries=max_retries)
    body = encode(job, identifier="0123456789abcdef", queue="reports", signer=EnvelopeSigner(), now=0.0)
    lease = JobLease(
        id="0123456789abcdef",
        queue="reports",
        body=body,
        token=1,
        owner_token="ab" * 16,
        expires_at=EXPIRES_AT,
        backend="memory",
    )
    return structs.replace(lease, **fields)


FIRST = a_lease()
LAST = a_lease(attempts=2)
HUGE = a_lease(payload="x" * (MAX_BODY_BYTES - 240))
RUBBISH = a_lease(body=b"\xff no wire object")


def test_verdict() -> None:
    for case, outcome, lease, rules, verdict in [
        ("success", Succeeded(), FIRST, Rules(), Ack()),
        ("success with follow-ups", Succeeded((FOLLOW_UP,)), FIRST, Rules(), Ack((FOLLOW_UP,))),
        ("first failure", Failed("boom"), FIRST, Rules(), Nack(5.0, "boom")),
        ("second failure backs off", Failed("boom"), a_lease(attempts=1), Rules(), Nack(10.0, "boom")),
        ("last failure", Failed("boom"), LAST, Rules(), Abandon("failed", "boom")),
        ("past the last", Failed("boom"), a_lease(attempts=9), Rules(), Abandon("failed", "boom")),
        ("a job that wants no retries", Failed("boom"), a_lease(0), Rules(), Abandon("failed", "boom")),
        ("nobody asks for retries", Failed("boom"), a_lease(None), Rules(), Abandon("failed", "boom")),
        ("the handler asks for retries", Failed("boom"), a_lease(None), Rules(1), Nack(5.0, "boom")),
        ("the job goes before the handler", Failed("boom"), a_lease(0), Rules(3), Abandon("failed", "boom")),
        (
            "unrecoverable with budget left",
            Failed("no such file", permanent=True),
            FIRST,
            Rules(),
            Abandon("unrecoverable", "no such file"),
        ),
        ("Retry: its own delay", RetryAsked(90.0, "later"), FIRST, Rules(), Nack(90.0, "later")),
        ("Retry at once", RetryAsked(0.0, "now"), FIRST, Rules(), Nack(0.0, "now")),
        (
            "Retry burns an attempt",
            RetryAsked(90.0, "later"),
            LAST,
            Rules(),
            Abandon("failed", "later; no retry is left: attempt 3 of 3 (see max_retries)"),
        ),
        (
            "Retry of a handler without retries",
            RetryAsked(90.0, "later"),
            a_lease(max_retries=0),
            Rules(),
            Abandon("failed", "later; no retry is left: attempt 1 of 1 (see max_retries)"),
        ),
        ("Retry in an endless time", RetryAsked(1e300, "later"), FIRST, Rules(), Nack(LONGEST, "later")),
        ("Snooze burns none", Snoozed(60.0), LAST, Rules(), Release(60.0)),
        ("Snooze for no time", Snoozed(0.0), FIRST, Rules(), Release(0.1)),
        ("Snooze for ever", Snoozed(float("inf")), FIRST, Rules(), Release(LONGEST)),
        ("timeout", TimedOut("stack"), FIRST, Rules(), Nack(5.0, "stack")),
        ("last timeout", TimedOut("stack"), LAST, Rules(), Abandon("timeout", "stack")),
        ("memory limit", MemoryExceeded("2 GiB"), FIRST, Rules(), Nack(5.0, "2 GiB")),
        ("last memory limit", MemoryExceeded("2 GiB"), LAST, Rules(), Abandon("memory-limit", "2 GiB")),
        ("crash", Crashed("SIGSEGV"), FIRST, Rules(), Forfeit("SIGSEGV")),
        ("a crash has no retry budget", Crashed("SIGSEGV"), LAST, Rules(), Forfeit("SIGSEGV")),
        ("crash, on_crash expire", Crashed("SIGSEGV"), FIRST, EXPIRING, Leave("left to expire: SIGSEGV")),
        ("killed by a stop", Stopped(), LAST, Rules(), Release()),
        ("killed with its fork server again", Stopped(4.0), LAST, Rules(), Release(4.0)),
        ("never started", NeverStarted(1, "SIGKILL"), FIRST, Rules(), NOT_BEGUN),
        ("never started twice", NeverStarted(2, "SIGKILL"), FIRST, Rules(), NOT_BEGUN),
        ("never started thrice", NeverStarted(3, "SIGKILL"), FIRST, Rules(), Forfeit("SIGKILL")),
        ("leased and not run", NotRun(), FIRST, Rules(), NOT_BEGUN),
        ("lease lost", LostLease(), FIRST, Rules(), Leave("lease lost")),
        ("rejected, undecodable", Rejected("no JSON"), RUBBISH, Rules(), Abandon("rejected", "no JSON")),
        (
            "rejected for its signature",
            Rejected("bad signature", signature=True),
            FIRST,
            Rules(),
            Abandon("rejected", "bad signature"),
        ),
        ("newer wire", NewerWire(2), FIRST, Rules(), Release(5.0, begun=False)),
        ("unknown handler", UnknownHandler("gone", 0.0), FIRST, Rules(), Release(5.0, begun=False)),
        (
            "unknown handler, grace nearly over",
            UnknownHandler("gone", 598.0),
            FIRST,
            Rules(),
            Release(2.0, begun=False),
        ),
        (
            "handler not allowed",
            HandlerNotAllowed("shell"),
            FIRST,
            Rules(),
            Abandon("handler-not-allowed", "handler 'shell' is not allowed on this queue"),
        ),
        ("idempotency key done", AlreadyDone(), FIRST, Rules(), Ack()),
        ("done, in a chain", AlreadyDone((JobDefinition("mail"),)), FIRST, Rules(), Ack((JobDefinition("mail"),))),
        ("held elsewhere", Contended(1.5), LAST, Rules(), Release(1.5, begun=False)),
        ("cancelled by a person", Cancelled("stack", KILLED), LAST, Rules(), Abandon("cancelled", "stack", KILLED)),
        ("expired", Expired(), FIRST, Rules(), Abandon("expired", "not started before it expired")),
        ("timeout with its record", TimedOut("stack", KILLED), FIRST, Rules(), Nack(5.0, "stack", KILLED)),
        ("last timeout, record", TimedOut("stack", KILLED), LAST, Rules(), Abandon("timeout", "stack", KILLED)),
        ("memory limit, record", MemoryExceeded("2 GiB", KILLED), FIRST, Rules(), Nack(5.0, "2 GiB", KILLED)),
        ("crash with its record", Crashed(DEATH), FIRST, Rules(), Forfeit(DEATH)),
        (
            "crash with its record, on_crash expire",
            Crashed(DEATH),
            FIRST,
            EXPIRING,
            Leave("left to expire: killed by SIGSEGV (itself); peak memory 1 MiB"),
        ),
        ("crash, on_crash_queue", Crashed(DEATH), FIRST, MOVING, Move("careful", crashes=1, cause=DEATH)),
        (
            "crash, on_crash_queue, one left",
            Crashed(DEATH),
            a_lease(crashes=1),
            MOVING,
            Move("careful", crashes=1, cause=DEATH),
        ),
        ("crash, on_crash_queue, past max_crashes", Crashed(DEATH), a_lease(crashes=2), MOVING, Forfeit(DEATH)),
        (
            "crash, on_crash_queue, no limit",
            Crashed(DEATH),
            a_lease(crashes=99),
            structs.replace(MOVING, max_crashes=0),
            Move("careful", crashes=1, cause=DEATH),
        ),
        ("crash in the on_crash_queue itself", Crashed(DEATH), a_lease(queue="careful"), MOVING, Forfeit(DEATH)),
        (
            "crash, on_crash_queue goes before on_crash",
            Crashed(DEATH),
            FIRST,
            structs.replace(MOVING, on_crash="expire"),
            Move("careful", crashes=1, cause=DEATH),
        ),
        ("thrice, on_crash_queue", NeverStarted(3, DEATH), FIRST, MOVING, Move("careful", crashes=1, cause=DEATH)),
        ("never started twice, on_crash_queue", NeverStarted(2, DEATH), FIRST, MOVING, NOT_BEGUN),
        ("crash, a body with no room for another queue", Crashed(DEATH), HUGE, MOVING, Forfeit(DEATH)),
        (
            "memory limit, a body with no room for another queue",
            MemoryExceeded("2 GiB", KILLED),
            HUGE,
            MOVING,
            Nack(5.0, "2 GiB", KILLED),
        ),
        (
            "memory limit, memory_limit_queue",
            MemoryExceeded("2 GiB", KILLED),
            FIRST,
            MOVING,
            Move("big", attempts=1, error="2 GiB", cause=KILLED),
        ),
        (
            "last memory limit, memory_limit_queue",
            MemoryExceeded("2 GiB", KILLED),
            LAST,
            MOVING,
            Move("big", attempts=1, error="2 GiB", cause=KILLED),
        ),
        (
            "memory limit in the memory_limit_queue itself",
            MemoryExceeded("2 GiB", KILLED),
            a_lease(attempts=3, queue="big"),
            MOVING,
            Abandon("memory-limit", "2 GiB", KILLED),
        ),
        (
            "memory limit in that queue with budget left",
            MemoryExceeded("2 GiB", KILLED),
            a_lease(attempts=0, queue="big"),
            MOVING,
            Nack(5.0, "2 GiB", KILLED),
        ),
        (
            "memory limit, two queues that name each other",
            MemoryExceeded("2 GiB", KILLED),
            a_lease(attempts=3 + MAX_EXTRA_MOVES),
            MOVING,
            Abandon("memory-limit", "2 GiB", KILLED),
        ),
        ("a timeout moves nothing", TimedOut("stack"), LAST, MOVING, Abandon("timeout", "stack")),
    ]:
        assert decide(cast(Outcome, outcome), lease, rules, RETRY, NOW) == verdict, case


ONE_OF_EACH: list[Outcome] = [
    Succeeded(),
    Failed("boom"),
    RetryAsked(1.0, "later"),
    Snoozed(1.0),
    TimedOut("stack"),
    MemoryExceeded("2 GiB"),
    Crashed("SIGSEGV"),
    Stopped(),
    NeverStarted(3, "SIGKILL"),
    NotRun(),
    LostLease(),
    Rejected("no JSON"),
    NewerWire(2),
    UnknownHandler("gone", 700.0),
    HandlerNotAllowed("shell"),
    AlreadyDone(),
    Contended(1.0),
    Expired(),
    Cancelled(),
]


def test_the_list_below_has_one_of_each() -> None:
    assert {type(outcome) for outcome in ONE_OF_EACH} == set(get_args(Outcome))


@pytest.mark.parametrize("outcome", ONE_OF_EACH, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("now", [EXPIRES_AT, EXPIRES_AT + 5], ids=["at the deadline", "after it"])
def test_too_late_whatever_happened(outcome: Outcome, now: float) -> None:
    settlement = decide(outcome, FIRST, Rules(), RETRY, now)
    assert settlement == Leave("lease lost")
    assert status_of(settlement, outcome) is Status.LOST
    assert counters_of(settlement, outcome) == ("lease_lost",)


def test_of_a_cancelled_delivery_only_what_came_first_stays() -> None:
    for outcome in ONE_OF_EACH:
        first = isinstance(outcome, Succeeded | AlreadyDone | Rejected | LostLease)
        assert (cancelled(outcome) == outcome) is (first or isinstance(outcome, Cancelled))
        assert first or isinstance(cancelled(outcome), Cancelled)
    assert cancelled(Crashed("SIGSEGV")) == Cancelled("cancelled by a person", "SIGSEGV")
    assert cancelled(Failed("ValueError", cause="said")) == Cancelled("ValueError", "said")


def test_just_in_time() -> None:
    assert decide(Succeeded(), FIRST, Rules(), RETRY, EXPIRES_AT - 1e-6) == Ack()


@pytest.mark.parametrize("seen_for", [600.0, 3600.0], ids=["at the grace", "after it"])
def test_an_unknown_handler_is_given_up_after_the_grace(seen_for: float) -> None:
    settlement = decide(UnknownHandler("gone", seen_for), FIRST, Rules(), RETRY, NOW)
    assert isinstance(settlement, Abandon)
    assert settlement.reason == "unknown-handler"
    assert "'gone'" in str(settlement.error)
    assert "--app" in str(settlement.error)
    assert "keep a former name as an alias: jobpool.handler('gone')(function)" in str(settlement.error)


@pytest.mark.parametrize(
    ("asked", "capped", "runs"),
    [(20, 10, 10), (5, 0, 5), (None, 3, 3), (None, 0, 1), (1, 10, 1)],
    ids=["both", "the job alone", "the policy alone", "neither", "a job that asks for less"],
)
@pytest.mark.parametrize(
    "outcome",
    [Failed("boom"), RetryAsked(1.0, "later"), TimedOut("stack"), MemoryExceeded("2 GiB")],
    ids=lambda outcome: type(outcome).__name__,
)
def test_the_budget_is_the_smaller_of_the_jobs_and_the_policys(
    outcome: Outcome, asked: int | None, capped: int, runs: int
) -> None:
    """SEMANTICS §3, as runs: (job max_attempts, policy max_attempts), for all that burns an attempt."""
    policy = replace(RETRY, max_attempts=capped)
    max_retries = None if asked is None else asked - 1
    kinds = [
        type(decide(outcome, a_lease(max_retries, attempts=failed), Rules(), policy, NOW)) for failed in range(runs)
    ]
    assert kinds == [Nack] * (runs - 1) + [Abandon]


def test_a_no_op_job_costs_no_new_object() -> None:
    one, other = (decide(Succeeded(), FIRST, Rules(), RETRY, NOW) for _ in range(2))
    assert one is other


@pytest.mark.parametrize(
    ("outcome", "lease", "status", "counters"),
    [
        (Succeeded(), FIRST, Status.ACKED, ["succeeded"]),
        (Failed("boom"), FIRST, Status.REQUEUED, ["failed", "requeued"]),
        (Failed("boom"), LAST, Status.DEAD_LETTERED, ["failed", "failed_permanently"]),
        (Failed("boom", permanent=True), FIRST, Status.DEAD_LETTERED, ["failed", "failed_permanently"]),
        (RetryAsked(1.0, "later"), FIRST, Status.REQUEUED, ["failed", "requeued"]),
        (TimedOut("stack"), FIRST, Status.REQUEUED, ["failed", "requeued", "timed_out"]),
        (TimedOut("stack"), LAST, Status.DEAD_LETTERED, ["failed", "failed_permanently", "timed_out"]),
        (MemoryExceeded("2 GiB"), LAST, Status.DEAD_LETTERED, ["failed", "failed_permanently"]),
        (Snoozed(1.0), FIRST, Status.RELEASED, ["released"]),
        (Crashed("SIGSEGV"), FIRST, Status.CRASHED, ["crashed"]),
        (Stopped(), FIRST, Status.RELEASED, ["released"]),
        (NeverStarted(3, "SIGKILL"), FIRST, Status.CRASHED, ["crashed"]),
        (LostLease(), FIRST, Status.LOST, ["lease_lost"]),
        (Rejected("no JSON"), RUBBISH, Status.REJECTED, ["rejected_payload"]),
        (Rejected("forged", signature=True), FIRST, Status.REJECTED, ["rejected_signature"]),
        (UnknownHandler("gone", 700.0), FIRST, Status.DEAD_LETTERED, ["failed_permanently"]),
        (HandlerNotAllowed("shell"), FIRST, Status.DEAD_LETTERED, ["failed_permanently"]),
        (AlreadyDone(), FIRST, Status.SKIPPED_IDEMPOTENT, ["skipped_idempotent"]),
        (Contended(1.0), FIRST, Status.RELEASED, ["released"]),
        (Expired(), FIRST, Status.DEAD_LETTERED, ["failed_permanently"]),
        (Cancelled(), FIRST, Status.CANCELLED, ["cancelled"]),
    ],
    ids=lambda value: repr(value) if isinstance(value, get_args(Outcome)) else "",
)
def test_status_and_counters(outcome: Outcome, lease: JobLease, status: Status, counters: list[str]) -> None:
    settlement = decide(outcome, lease, Rules(), RETRY, NOW)
    assert status_of(settlement, outcome) is status
    assert sorted(counters_of(settlement, outcome)) == counters


@pytest.mark.parametrize("outcome", [Crashed("SIGSEGV"), NeverStarted(3, "SIGKILL")], ids=["crashed", "never started"])
def test_a_crash_that_is_left_to_expire_counts_as_a_crash(outcome: Outcome) -> None:
    settlement = decide(outcome, FIRST, EXPIRING, RETRY, NOW)
    assert status_of(settlement, outcome) is Status.CRASHED
    assert counters_of(settlement, outcome) == ("crashed",)


def test_what_moves_is_counted_as_what_it_was_and_as_moved() -> None:
    rows: list[tuple[str, Outcome, tuple[str, ...]]] = [
        ("crashed", Crashed("SIGSEGV"), ("crashed", "moved")),
        ("never started", NeverStarted(3, "SIGKILL"), ("crashed", "moved")),
        ("memory limit", MemoryExceeded("2 GiB"), ("failed", "moved")),
    ]
    for case, outcome, counters in rows:
        settlement = decide(outcome, FIRST, MOVING, RETRY, NOW)
        assert status_of(settlement, outcome) is Status.MOVED, case
        assert counters_of(settlement, outcome) == counters, case
        assert status_of(settlement, outcome, Settled.NOT_OWNER) is Status.LOST, case


@pytest.mark.parametrize("answer", [Settled.NOT_IN_FLIGHT, Settled.EXPIRED, Settled.NOT_OWNER])
def test_what_the_backend_refused_is_lost(answer: Settled) -> None:
    assert status_of(Ack(), Succeeded(), answer) is Status.LOST
    assert counters_of(Ack(), Succeeded(), answer) == ("lease_lost",)
