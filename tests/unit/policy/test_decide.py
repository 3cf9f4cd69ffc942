"""Every row of the table of verdicts, and the two views of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from msgspec import structs

from jobpool.errors import LONGEST_WAIT_S
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
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
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Move, Nack, Release, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.classify import cancelled, counters_of, status_of
from jobpool.policy.decide import MAX_EXTRA_MOVES, Rules, decide
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
BOTH = structs.replace(MOVING, on_crash="expire")
ENDLESS = structs.replace(MOVING, max_crashes=0)
TO_CAREFUL = Move("careful", crashes=1, cause=DEATH)
TO_BIG = Move("big", attempts=1, error="2 GiB", cause=KILLED)
TOO_LARGE = MemoryExceeded("2 GiB", KILLED)
GIVEN_UP = Abandon("memory-limit", "2 GiB", KILLED)
NONE_LEFT = "later; no retry is left: attempt {0} of {0} (see max_retries)"


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


def judged(outcome: Outcome, lease: JobLease = FIRST, rules: Rules = Rules()) -> Settlement | Leave:  # noqa: B008 - a value
    return decide(outcome, lease, rules, RETRY, NOW)


def test_verdict() -> None:
    for case, settlement, verdict in [
        ("success", judged(Succeeded()), Ack()),
        ("success with follow-ups", judged(Succeeded((FOLLOW_UP,))), Ack((FOLLOW_UP,))),
        ("first failure", judged(Failed("boom")), Nack(5.0, "boom")),
        ("second failure backs off", judged(Failed("boom"), a_lease(attempts=1)), Nack(10.0, "boom")),
        ("last failure", judged(Failed("boom"), LAST), Abandon("failed", "boom")),
        ("past the last", judged(Failed("boom"), a_lease(attempts=9)), Abandon("failed", "boom")),
        ("a job that wants no retries", judged(Failed("boom"), a_lease(0)), Abandon("failed", "boom")),
        ("nobody asks for retries", judged(Failed("boom"), a_lease(None)), Abandon("failed", "boom")),
        ("the handler asks for retries", judged(Failed("boom"), a_lease(None), Rules(1)), Nack(5.0, "boom")),
        ("the job goes before the handler", judged(Failed("boom"), a_lease(0), Rules(3)), Abandon("failed", "boom")),
        ("unrecoverable, budget left", judged(Failed("no file", permanent=True)), Abandon("unrecoverable", "no file")),
        ("Retry: its own delay", judged(RetryAsked(90.0, "later")), Nack(90.0, "later")),
        ("Retry at once", judged(RetryAsked(0.0, "now")), Nack(0.0, "now")),
        ("Retry burns an attempt", judged(RetryAsked(90.0, "later"), LAST), Abandon("failed", NONE_LEFT.format(3))),
        ("Retry and no retries", judged(RetryAsked(90.0, "later"), a_lease(0)), Abandon("failed", NONE_LEFT.format(1))),
        ("Retry in an endless time", judged(RetryAsked(1e300, "later")), Nack(LONGEST_WAIT_S, "later")),
        ("Snooze burns none", judged(Snoozed(60.0), LAST), Release(60.0)),
        ("Snooze for no time", judged(Snoozed(0.0)), Release(0.1)),
        ("Snooze for ever", judged(Snoozed(float("inf"))), Release(LONGEST_WAIT_S)),
        ("timeout", judged(TimedOut("stack")), Nack(5.0, "stack")),
        ("last timeout", judged(TimedOut("stack"), LAST), Abandon("timeout", "stack")),
        ("memory limit", judged(MemoryExceeded("2 GiB")), Nack(5.0, "2 GiB")),
        ("last memory limit", judged(MemoryExceeded("2 GiB"), LAST), Abandon("memory-limit", "2 GiB")),
        ("crash", judged(Crashed("SIGSEGV")), Forfeit("SIGSEGV")),
        ("a crash has no retry budget", judged(Crashed("SIGSEGV"), LAST), Forfeit("SIGSEGV")),
        ("crash, on_crash expire", judged(Crashed("SIGSEGV"), rules=EXPIRING), Leave("left to expire: SIGSEGV")),
        ("killed by a stop", judged(Stopped(), LAST), Release()),
        ("killed with its fork server again", judged(Stopped(4.0), LAST), Release(4.0)),
        ("never started", judged(NeverStarted(1, "SIGKILL")), NOT_BEGUN),
        ("never started twice", judged(NeverStarted(2, "SIGKILL")), NOT_BEGUN),
        ("never started thrice", judged(NeverStarted(3, "SIGKILL")), Forfeit("SIGKILL")),
        ("leased and not run", judged(NotRun()), NOT_BEGUN),
        ("lease lost", judged(LostLease()), Leave("lease lost")),
        ("rejected, undecodable", judged(Rejected("no JSON"), RUBBISH), Abandon("rejected", "no JSON")),
        ("rejected for its signature", judged(Rejected("forged", signature=True)), Abandon("rejected", "forged")),
        ("newer wire", judged(NewerWire(2)), Release(5.0, begun=False)),
        ("unknown handler", judged(UnknownHandler("gone", 0.0)), Release(5.0, begun=False)),
        ("unknown handler, grace nearly over", judged(UnknownHandler("gone", 598.0)), Release(2.0, begun=False)),
        (
            "handler not allowed",
            judged(HandlerNotAllowed("shell")),
            Abandon("handler-not-allowed", "handler 'shell' is not allowed on this queue"),
        ),
        ("idempotency key done", judged(AlreadyDone()), Ack()),
        ("done, in a chain", judged(AlreadyDone((JobDefinition("mail"),))), Ack((JobDefinition("mail"),))),
        ("held elsewhere", judged(Contended(1.5), LAST), Release(1.5, begun=False)),
        ("cancelled by a person", judged(Cancelled("stack", KILLED), LAST), Abandon("cancelled", "stack", KILLED)),
        ("expired", judged(Expired()), Abandon("expired", "not started before it expired")),
        ("timeout with its record", judged(TimedOut("stack", KILLED)), Nack(5.0, "stack", KILLED)),
        ("last timeout, record", judged(TimedOut("stack", KILLED), LAST), Abandon("timeout", "stack", KILLED)),
        ("memory limit, record", judged(TOO_LARGE), Nack(5.0, "2 GiB", KILLED)),
        ("crash with its record", judged(Crashed(DEATH)), Forfeit(DEATH)),
        (
            "crash with its record, on_crash expire",
            judged(Crashed(DEATH), rules=EXPIRING),
            Leave("left to expire: killed by SIGSEGV (itself); peak memory 1 MiB"),
        ),
        ("crash, on_crash_queue", judged(Crashed(DEATH), rules=MOVING), TO_CAREFUL),
        ("crash, on_crash_queue, one left", judged(Crashed(DEATH), a_lease(crashes=1), MOVING), TO_CAREFUL),
        ("crash, on_crash_queue, past max_crashes", judged(Crashed(DEATH), a_lease(crashes=2), MOVING), Forfeit(DEATH)),
        ("crash, on_crash_queue, no limit", judged(Crashed(DEATH), a_lease(crashes=99), ENDLESS), TO_CAREFUL),
        ("crash in that queue itself", judged(Crashed(DEATH), a_lease(queue="careful"), MOVING), Forfeit(DEATH)),
        ("crash, on_crash_queue goes before on_crash", judged(Crashed(DEATH), rules=BOTH), TO_CAREFUL),
        ("thrice, on_crash_queue", judged(NeverStarted(3, DEATH), rules=MOVING), TO_CAREFUL),
        ("never started twice, on_crash_queue", judged(NeverStarted(2, DEATH), rules=MOVING), NOT_BEGUN),
        ("crash, no room in the body for another queue", judged(Crashed(DEATH), HUGE, MOVING), Forfeit(DEATH)),
        ("memory limit, no room in the body", judged(TOO_LARGE, HUGE, MOVING), Nack(5.0, "2 GiB", KILLED)),
        ("memory limit, memory_limit_queue", judged(TOO_LARGE, rules=MOVING), TO_BIG),
        ("last memory limit, memory_limit_queue", judged(TOO_LARGE, LAST, MOVING), TO_BIG),
        ("memory limit in that queue itself", judged(TOO_LARGE, a_lease(attempts=3, queue="big"), MOVING), GIVEN_UP),
        ("memory limit there, one left", judged(TOO_LARGE, a_lease(queue="big"), MOVING), Nack(5.0, "2 GiB", KILLED)),
        ("memory limit, a circle of two", judged(TOO_LARGE, a_lease(attempts=3 + MAX_EXTRA_MOVES), MOVING), GIVEN_UP),
        ("a timeout moves nothing", judged(TimedOut("stack"), LAST, MOVING), Abandon("timeout", "stack")),
    ]:
        assert settlement == verdict, case


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
    assert decide(outcome, FIRST, Rules(), RETRY, EXPIRES_AT - 1e-6) != settlement or isinstance(outcome, LostLease)


def test_of_a_cancelled_delivery_only_what_came_first_stays() -> None:
    for outcome in ONE_OF_EACH:
        first = isinstance(outcome, Succeeded | AlreadyDone | Rejected | LostLease)
        assert (cancelled(outcome) == outcome) is (first or isinstance(outcome, Cancelled))
        assert first or isinstance(cancelled(outcome), Cancelled)
    assert cancelled(Crashed("SIGSEGV")) == Cancelled("cancelled by a person", "SIGSEGV")
    assert cancelled(Failed("ValueError", cause="said")) == Cancelled("ValueError", "said")


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


@pytest.mark.parametrize(
    ("rules", "outcome", "status", "counters"),
    [
        (EXPIRING, Crashed("SIGSEGV"), Status.CRASHED, ("crashed",)),
        (EXPIRING, NeverStarted(3, "SIGKILL"), Status.CRASHED, ("crashed",)),
        (MOVING, Crashed("SIGSEGV"), Status.MOVED, ("crashed", "moved")),
        (MOVING, NeverStarted(3, "SIGKILL"), Status.MOVED, ("crashed", "moved")),
        (MOVING, MemoryExceeded("2 GiB"), Status.MOVED, ("failed", "moved")),
    ],
    ids=lambda value: {EXPIRING: "left to expire", MOVING: "moved"}.get(value) if isinstance(value, Rules) else None,
)
def test_what_is_left_to_expire_or_moves_is_counted_as_what_it_was(
    rules: Rules, outcome: Outcome, status: Status, counters: tuple[str, ...]
) -> None:
    settlement = decide(outcome, FIRST, rules, RETRY, NOW)
    assert (status_of(settlement, outcome), counters_of(settlement, outcome)) == (status, counters)


@pytest.mark.parametrize("answer", [Settled.NOT_IN_FLIGHT, Settled.EXPIRED, Settled.NOT_OWNER])
def test_what_the_backend_refused_is_lost(answer: Settled) -> None:
    for settlement, outcome in ((Ack(), Succeeded()), (TO_CAREFUL, Crashed(DEATH)), (TO_BIG, TOO_LARGE)):
        assert status_of(settlement, outcome, answer) is Status.LOST
        assert counters_of(settlement, outcome, answer) == ("lease_lost",)
