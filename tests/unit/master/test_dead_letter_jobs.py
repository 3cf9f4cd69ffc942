"""Where copies of failed payloads come from in a pool: an abandon carries its own, the settle thread sends a reap's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from stage import Stage
from support.modest import Modest

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Message, MessageFilter, Reaped, ReapPolicy
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.master.dead_letter_jobs import DEAD_LETTER_LOOK_S, DeadLetterJobs
from jobpool.message.dead_letters import ON_DEATH
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import Expired, HandlerNotAllowed, Outcome, Rejected, ResultKind
from jobpool.message.settlement import Abandon, Nack
from jobpool.message.signing import EnvelopeSigner

AT_ONCE = ReapPolicy(max_crashes=1, back_off=0.0)


@pytest.mark.parametrize("to", [None, "reports"])
def test_without_the_setting_and_in_the_queue_of_copies_itself_it_carries_nothing(to: str | None) -> None:
    stage = Stage(workers=1, dead_letter_queue=to).boot()
    stage.answer(stage.run(), ResultKind.FAILED, error="boom")
    assert stage.verdict(Abandon).follow_ups == ()


def test_a_failure_with_budget_left_carries_nothing() -> None:
    stage = Stage(workers=1, dead_letter_queue="failures").boot()
    stage.answer(stage.run("stubborn"), ResultKind.FAILED, error="boom")
    assert isinstance(stage.verdicts()[0], Nack)


@pytest.mark.parametrize(
    ("outcome", "copies"),
    [(Rejected("forged", signature=True), 0), (Rejected("no JSON"), 0), (Expired(), 1)],
    ids=["forged", "no wire object", "expired"],
)
def test_what_is_forwarded_of_what_never_ran(outcome: Outcome, copies: int) -> None:
    stage = Stage(workers=1, dead_letter_queue="failures").boot()
    stage.lease("report", outcome=outcome)
    follow_ups = stage.verdict(Abandon).follow_ups
    assert len(follow_ups) == copies
    assert [copy.payload["_dlq_metadata"]["attempts"] for copy in follow_ups] == [0] * copies


def test_the_line_of_a_death_without_a_run_names_the_handler_if_that_can_be_believed() -> None:
    for outcome, named in [(Expired(), "report"), (HandlerNotAllowed("report"), "report"), (Rejected("forged"), None)]:
        stage = Stage(workers=1).boot()
        stage.lease("report", outcome=cast(Outcome, outcome))
        assert [note.fields.get("handler") for note in stage.pool.notes if note.level == "critical"] == [named], outcome


def test_a_copy_that_the_backend_would_refuse_is_left_out_and_said() -> None:
    def check(definition: JobDefinition) -> None:
        raise InvalidJob(f"too large for {definition.queue}")

    stage = Stage(workers=1, dead_letter_queue="failures").boot()
    stage.planner.check = check
    stage.answer(stage.run(), ResultKind.FAILED, error="boom")
    assert stage.verdict(Abandon).follow_ups == ()
    [note] = [note for note in stage.pool.notes if note.event == "a dead letter is not forwarded"]
    assert note.fields["error"] == "too large for failures"


# --- behind a reap ----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> QueueBackend:
    return open_backend("memory://", signer=EnvelopeSigner("a key of sixteen"), clock=clock)


def crash_to_death(broker: QueueBackend, queue: str = "reports", job: JobDefinition | None = None) -> list[Reaped]:
    broker.enqueue(job or JobDefinition("report", {"customer": 7}, queue=queue))
    reaped: list[Reaped] = []
    while not any(one.dead for one in reaped):
        [lease] = broker.fetch_many(queue, limit=1)
        broker.forfeit(lease, "SIGSEGV")
        reaped = broker.reap(queue, AT_ONCE)
    return reaped


def forward(broker: QueueBackend, reaped: list[Reaped], to: str | None = "failures") -> None:
    copies = DeadLetterJobs(broker, to)
    copies.died(reaped)
    copies.forward()


def payloads(broker: QueueBackend) -> list[Any]:
    return [json.loads(copy.body)["payload"] for copy in broker.list_messages(MessageFilter(queue="failures"))]


def test_a_death_in_the_reapers_hands_is_forwarded_once(broker: QueueBackend) -> None:
    reaped = crash_to_death(broker)
    for _ in range(2):  # a second reaper that has seen the same, or a repetition after a lost reply
        forward(broker, reaped)
    [payload] = payloads(broker)
    said = payload["_dlq_metadata"]
    assert (payload["customer"], said["reason"], said["original_queue"]) == (7, "crash-limit", "reports")


def test_what_is_given_back_alive_is_not(broker: QueueBackend) -> None:
    forward(broker, [Reaped("x", "reports", 1, None, dead=False)])
    assert payloads(broker) == []


@pytest.mark.parametrize("to", [None, "reports"])
def test_without_a_queue_and_in_that_queue_itself_nothing_is(broker: QueueBackend, to: str | None) -> None:
    forward(broker, crash_to_death(broker), to)
    assert payloads(broker) == []
    assert broker.stats("reports").waiting == 0


def test_a_body_that_nobody_signed_is_not_forwarded(broker: QueueBackend, caplog: pytest.LogCaptureFixture) -> None:
    """A reaper recovers what it has not verified: a lease of somebody who looks at no signature."""
    reaped = crash_to_death(broker)
    broker.signer = EnvelopeSigner("another key of ours")
    forward(broker, reaped)
    assert payloads(broker) == []
    assert "a dead letter is not forwarded" in caplog.text


class Stammering:
    """A broker that does not answer each third call, or `every` other."""

    def __init__(self, real: QueueBackend, every: int = 3) -> None:
        self.real, self.calls, self.every = real, 0, every
        self.signer, self.capabilities, self.clock = real.signer, real.capabilities, real.clock

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if self.calls % self.every == 1:
            raise BackendUnavailable("say that again")
        return getattr(self.real, name)


def outages_until(is_done: Callable[[], bool], call: Callable[[], None]) -> int:
    """Call until all is done; how often the broker was silent."""
    failures = 0
    while not is_done():
        assert failures < 50, "each outage is followed by some progress"
        try:
            call()
        except BackendUnavailable:
            failures += 1
    return failures


def test_an_outage_leaves_it_for_the_next_call(broker: QueueBackend) -> None:
    reaped = crash_to_death(broker) + crash_to_death(broker)
    copies = DeadLetterJobs(Stammering(broker), "failures")  # type: ignore[arg-type]
    copies.died(reaped)
    assert outages_until(lambda: len(payloads(broker)) == 2, copies.forward)


class Charging(Modest):
    """Frees its leases itself, and shows dead letters alone: those of a queue that it is asked for."""

    made = frozenset({"reports", "failures"})  # type: ignore[assignment]

    def inspect(self, ident: str) -> Message | None:
        raise AssertionError(f"{ident} is looked for in all queues")


def test_where_a_broker_looks_through_its_letters_it_is_told_the_queue(clock: ManualClock) -> None:
    broker = Charging(clock=clock)
    broker.enqueue(JobDefinition("report", {"customer": 7}, queue="reports"))
    for _ in range(2):
        [_lease] = broker.fetch_many("reports", limit=1, ttl=30.0)
        clock.advance(30.0)
    assert broker.fetch("reports") is None, "it was met, charged and buried"
    reaped = broker.reap("reports")
    assert [(one.crashes, one.dead) for one in reaped] == [(1, False), (2, True)]
    forward(broker, reaped)
    [copy] = broker.fetch_many("failures", limit=1)
    assert copy.envelope.payload["_dlq_metadata"]["reason"] == "crash-limit"


# --- jobs for on_death hooks ------------------------------------------------------------------------------------------


def hooked(**settings: object) -> Stage:
    stage = Stage(workers=1, **settings).boot()
    stage.pool.closed_to_hooks = frozenset()
    return stage


def test_the_last_failure_carries_the_hooks_job_and_the_copy() -> None:
    stage = hooked(dead_letter_queue="failures")
    stage.answer(stage.run(), ResultKind.FAILED, error="boom")
    copy, told = stage.verdict(Abandon).follow_ups
    assert (copy.queue, told.queue, told.handler, told.priority) == ("failures", "reports", ON_DEATH, 0)
    assert (told.payload["reason"], told.payload["error"], told.payload["attempts"]) == ("failed", "boom", 1)


@pytest.mark.parametrize(
    ("handler", "outcome", "jobs"),
    [("report", Rejected("forged", signature=True), 0), ("report", Expired(), 1), (ON_DEATH, Expired(), 0)],
    ids=["forged", "expired", "a hook's own"],
)
def test_of_which_deaths_that_never_ran_hooks_are_told(handler: str, outcome: Outcome, jobs: int) -> None:
    stage = hooked()
    stage.lease(handler, outcome=outcome)
    assert len(stage.verdict(Abandon).follow_ups) == jobs


def test_a_record_that_would_be_too_large_goes_without_the_payload() -> None:
    def check(definition: JobDefinition) -> None:
        if definition.payload["payload"] is not None:
            raise InvalidJob("too large")

    stage = hooked()
    stage.planner.check = check
    stage.answer(stage.run(), ResultKind.FAILED, error="boom")
    [told] = stage.verdict(Abandon).follow_ups
    assert (told.payload["payload"], told.payload["payload_left_out"]) == (None, True)


@pytest.mark.parametrize("bound", [60_000, 2_000, 0])
def test_a_record_with_a_large_meta_and_error_goes_with_the_bare_facts(bound: int) -> None:
    def check(definition: JobDefinition) -> None:
        if len(json.dumps(definition.to_dict())) > bound:
            raise InvalidJob("too large")

    stage = hooked()
    stage.planner.check = check
    stage.answer(stage.run(meta={"note": "x" * 100_000}), ResultKind.FAILED, error="b" * 70_000)
    told = stage.verdict(Abandon).follow_ups
    assert [(job.payload["meta"], len(job.payload["error"]) < 1100) for job in told] == ([({}, True)] if bound else [])


def test_an_outage_while_hooks_are_told_leaves_the_rest_for_the_next_call(broker: QueueBackend) -> None:
    for _ in range(3):
        crash_to_death(broker)
    letters = DeadLetterJobs(Stammering(broker, 7), None)  # type: ignore[arg-type]
    letters.closed_to_hooks = frozenset()
    assert outages_until(lambda: not letters.is_due(["reports"]), lambda: letters.forward(["reports"]))
    told = [broker.fetch("reports") for _ in range(4)]
    assert [lease.envelope.job for lease in told if lease is not None] == [ON_DEATH] * 3


def test_letters_of_other_reapers_are_looked_for_every_five_minutes(broker: QueueBackend, clock: ManualClock) -> None:
    letters = DeadLetterJobs(broker, None)
    assert not letters.is_due(["reports"]), "without hooks nobody looks"
    letters.closed_to_hooks = frozenset({"closed"})
    letters.forward(["reports", "closed"])
    crash_to_death(broker)
    crash_to_death(broker, "closed")
    assert not letters.is_due(["reports", "closed"])
    clock.advance(DEAD_LETTER_LOOK_S)
    assert letters.is_due(["reports", "closed"])
    letters.forward(["reports", "closed"])
    assert (broker.stats("reports").waiting, broker.stats("closed").waiting) == (1, 0)
