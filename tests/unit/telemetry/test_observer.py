"""What the observer makes of a pool's events: the numbers of SEMANTICS §5, and what it hands to history."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from stage import Stage

from jobpool import __version__
from jobpool.broker.values import QueueStats, Reaped
from jobpool.ipc.frames import Exited, Result
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.observer import Observer, Recorded, attempt_of
from jobpool.master.slots import Slot
from jobpool.message.lease import JobLease
from jobpool.message.outcome import EndReason, Rejected, ResultKind
from jobpool.message.settlement import Settled
from jobpool.policy.inspection import Inspected
from jobpool.telemetry.history.writer import Feed
from jobpool.telemetry.metrics import catalogue as names
from jobpool.telemetry.metrics.catalogue import Labels, Metric
from jobpool.telemetry.metrics.memory import OTHER, Histogram, MemoryMetrics, RelayedMetrics

STALE = 0.2
"""Seconds after which what was leased and not begun is given back."""


class Watched(Stage):
    """A stage with an observer on it, as the loop has one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.feed: Feed[Recorded] = Feed(keep=100)
        self.observer = Observer(self.feed)
        self.observer.attend(self.pool)
        self.says = Settled.OK

    def tell(self, *events: ev.Event) -> list[act.Action]:
        for event in events:
            apply(self.pool, event, self.now)
        return super().tell()

    def _perform(self, action: act.Action) -> None:
        if isinstance(action, act.Settle):
            answered = ev.Answered([(*each, self.says) for each in action.work], 0.02)
            apply(self.pool, answered, self.now)
        else:
            super()._perform(action)

    # --- looking ------------------------------------------------------------------------------------

    def values(self, metric: Metric) -> dict[Labels, float]:
        found = [one for one in self.observer.snapshot(self.pool).samples if one.metric is metric]
        return found[0].values if found else {}

    def histogram(self, metric: Metric, labels: Labels = ()) -> Histogram:
        [found] = [one for one in self.observer.snapshot(self.pool).samples if one.metric is metric]
        return found.histograms[labels]

    def outcomes(self) -> dict[str, float]:
        """Of handler `report` on queue `reports`."""
        return {
            outcome: count
            for (queue, handler, outcome), count in self.values(names.JOBS).items()
            if (queue, handler) == ("reports", "report")
        }


@pytest.fixture
def stage() -> Watched:
    stage = Watched()
    stage.boot()
    return stage


def run_one(stage: Watched, kind: ResultKind = ResultKind.SUCCEEDED, **fields: Any) -> None:
    stage.answer(stage.run(), kind, **fields)


# --- outcomes ---------------------------------------------------------------------------------------------------------


def killed(stage: Watched, ending: EndReason) -> None:
    slot = stage.run()
    slot.end(ending, stage.now)
    stage.die(slot, 9)


def lost(stage: Watched) -> None:
    slot = stage.run()
    stage.tell(ev.Renewed([(slot.deliveries[0], None)]))
    stage.answer(slot)  # its result does not count


CASES: dict[str, tuple[Callable[[Watched], object], set[str]]] = {
    "success": (run_one, {"succeeded"}),
    "failure": (lambda s: run_one(s, ResultKind.FAILED, error="no"), {"failed", "failed_permanently"}),
    "failure with a retry left": (
        lambda s: (s.lease("report", max_retries=3), s.answer(s.busy[0], ResultKind.FAILED, error="no")),
        {"failed", "requeued"},
    ),
    "unrecoverable": (lambda s: run_one(s, ResultKind.UNRECOVERABLE), {"failed", "failed_permanently"}),
    "timeout in the child": (lambda s: run_one(s, ResultKind.TIMEOUT), {"failed", "failed_permanently", "timed_out"}),
    "killed for time": (lambda s: killed(s, EndReason.TIMEOUT), {"failed", "failed_permanently", "timed_out"}),
    "killed for memory": (lambda s: killed(s, EndReason.MEMORY), {"failed", "failed_permanently"}),
    "killed by a stop": (lambda s: killed(s, EndReason.STOP), {"released"}),
    "snoozed": (lambda s: run_one(s, ResultKind.SNOOZE, after=1.0), {"released"}),
    "crashed": (lambda s: (s.lease("report"), s.die(s.busy[0])), {"crashed"}),
    "lease lost": (lost, {"lease_lost"}),
    "never answered": (
        lambda s: (s.lease("report"), s.tell(ev.GivenUp([s.busy[0].deliveries[0]]))),
        {"lease_lost"},
    ),
}


@pytest.mark.parametrize(("play", "expected"), CASES.values(), ids=CASES)
def test_each_end_is_counted_once_under_all_that_it_was(
    stage: Watched, play: Callable[[Watched], object], expected: set[str]
) -> None:
    play(stage)
    assert stage.outcomes() == dict.fromkeys(expected, 1)


@pytest.mark.parametrize(("says", "counted"), [(Settled.NOT_OWNER, "lease_lost"), (Settled.ALREADY, "succeeded")])
def test_what_is_counted_is_what_the_broker_answered(stage: Watched, says: Settled, counted: str) -> None:
    stage.says = says
    run_one(stage)
    assert stage.outcomes() == {counted: 1}


REAPED = [Reaped("a", "reports", 1, None, False), Reaped("b", "reports", 6, "x", True)]
FORGED = Rejected("bad signature", signature=True)


@pytest.mark.parametrize(
    ("play", "counted"),
    [
        pytest.param(
            lambda s: s.tell(ev.ReapDone(REAPED)), {("", "reaped"): 2, ("", "failed_permanently"): 1}, id="reaped"
        ),
        pytest.param(
            lambda s: [s.lease(name) for name in ("x1", "x2", "x3")], {(OTHER, "released"): 3}, id="unknown handlers"
        ),
        pytest.param(lambda s: s.lease("report", outcome=FORGED), {("", "rejected_signature"): 1}, id="rejected"),
    ],
)
def test_what_has_no_handler_of_the_app_has_no_label_of_its_own(
    stage: Watched, play: Callable[[Watched], object], counted: dict[tuple[str, str], int]
) -> None:
    play(stage)
    assert stage.values(names.JOBS) == {("reports", *labels): count for labels, count in counted.items()}


def test_fetches_are_counted_by_queue(stage: Watched) -> None:
    stage.lease("report", "slow")
    assert stage.values(names.FETCHED) == {("reports",): 2}


# --- times ------------------------------------------------------------------------------------------------------------


def a_lease(stage: Watched, **fields: object) -> JobLease:
    stage.now = time.monotonic()  # what the observer reckons with
    schedule = fields.pop("scheduled_at", None)
    options = {} if schedule is None else {"scheduled_at": schedule}
    return replace(stage.a_lease("report", **options), _envelope=None, **fields)  # type: ignore[arg-type]


def run_lease(stage: Watched, lease: JobLease) -> None:
    """It begins now."""
    stage.tell(ev.Leased([Inspected(lease, None)]))
    stage.answer(stage.busy[0])


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -1.0, 1e300])
def test_times_that_cannot_be_do_not_spoil_the_sums(stage: Watched, rubbish: float) -> None:
    slot = stage.run()
    stage.tell(ev.ChildResults(slot.child, [Result(slot.deliveries[0].nonce, ResultKind.SUCCEEDED, rubbish, rubbish)]))
    for metric in (names.RUN, names.WAIT):
        assert stage.histogram(metric, ("reports", "report")).total == 0.0


@pytest.mark.parametrize(
    ("ahead", "enqueued", "due", "waited"),
    [
        *(pytest.param(ahead, -40.0, None, 40.0, id=f"from the enqueue, {ahead} s off") for ahead in (0, 3600, -3600)),
        pytest.param(0, -4000.0, -20.0, 20.0, id="from when it was due"),
        pytest.param(0, 500.0, None, 0.0, id="clocks that disagree"),
    ],
)
def test_waiting_counts_by_the_brokers_clock(
    stage: Watched, ahead: float, enqueued: float, due: float | None, waited: float
) -> None:
    stage.pool.wall = lambda: time.time() + ahead
    options = {} if due is None else {"scheduled_at": datetime.now(UTC) + timedelta(seconds=due)}
    run_lease(stage, a_lease(stage, enqueued_at=time.time() + ahead + enqueued, **options))
    assert stage.histogram(names.WAIT, ("reports", "report")).total == pytest.approx(waited, abs=5.0 if waited else 0)


@pytest.mark.parametrize("again", [{"attempts": 1}, {"crashes": 1}])
def test_only_the_first_attempt_has_waited(stage: Watched, again: dict[str, int]) -> None:
    run_lease(stage, a_lease(stage, enqueued_at=time.time() - 40.0, **again))
    assert names.WAIT not in [one.metric for one in stage.observer.snapshot(stage.pool).samples if one.histograms]


def test_run_time_is_what_the_child_measured_and_a_call_that_settles_is_measured_too(stage: Watched) -> None:
    run_one(stage)
    histogram = stage.histogram(names.RUN, ("reports", "report"))
    assert (histogram.count, histogram.total, stage.histogram(names.SETTLE).total) == (1, 0.01, 0.02)


def test_the_margin_of_renewals_is_measured(stage: Watched) -> None:
    delivery = stage.run().deliveries[0]
    delivery.lease = replace(delivery.lease, expires_at=stage.now + 12.0)
    stage.tell(ev.Renewed([(delivery, delivery.lease)]))
    assert stage.histogram(names.MARGIN).total == 12.0


def test_an_attempt_that_was_killed_has_run_too(stage: Watched) -> None:
    stage.now = time.monotonic() - 7.0
    slot = stage.run()
    stage.now = time.monotonic()
    slot.end(EndReason.TIMEOUT, stage.now)
    stage.die(slot, 9)
    assert stage.histogram(names.RUN, ("reports", "report")).total == pytest.approx(7.0, abs=3.0)


# --- children ---------------------------------------------------------------------------------------------------------


def test_a_kill_for_time_tells_how_late_the_death_was(stage: Watched) -> None:
    stage.now = time.monotonic() - 11.5
    slot = stage.run("slow")
    stage.now = time.monotonic()
    slot.end(EndReason.TIMEOUT, stage.now)
    stage.die(slot, 9)
    assert stage.histogram(names.OVERRUN).total == pytest.approx(1.5, abs=1.0)
    assert stage.values(names.EXITS) == {("timeout",): 1}


def dies(stage: Watched, slot: Slot, killer: str = "", **how: object) -> None:
    exited = Exited(slot.child, slot.pid, **how)  # type: ignore[arg-type]
    stage.tell(ev.ChildDied(exited, 0, frozenset(), "", "", killer))


@pytest.mark.parametrize(
    ("ending", "retiring", "how", "cause"),
    [
        (EndReason.NONE, False, {"code": None, "signal": 11}, "SIGSEGV"),
        (EndReason.NONE, False, {"code": None, "signal": 9}, "SIGKILL"),
        (EndReason.NONE, False, {"code": None, "signal": 9, "killer": "the kernel: out of memory"}, "oom-kill"),
        (EndReason.NONE, False, {"code": 3, "signal": None}, "exit"),
        (EndReason.NONE, False, {"code": 0, "signal": None}, "exit"),
        (EndReason.NONE, True, {"code": 0, "signal": None}, "retire"),
        (EndReason.RECYCLE, False, {"code": 0, "signal": None}, "recycle"),
        (EndReason.LOST, False, {"code": None, "signal": 9}, "lease-lost"),
        (EndReason.MEMORY, False, {"code": None, "signal": 9}, "memory-limit"),
    ],
)
def test_exits_have_few_causes(
    stage: Watched, ending: EndReason, retiring: bool, how: dict[str, object], cause: str
) -> None:
    slot = stage.idle[0]
    slot.retiring = retiring
    if ending is not EndReason.NONE:
        slot.end(ending, stage.now)
    dies(stage, slot, **how)  # type: ignore[arg-type]
    assert stage.values(names.EXITS) == {(cause,): 1}


def test_the_peak_of_memory_is_that_of_the_living_and_of_the_lately_dead(stage: Watched) -> None:
    alive, dead = stage.idle
    stage.tell(ev.Sampled([(alive.child, 50 << 20, 0.1, False)], stage.now))
    assert stage.values(names.PEAK_RSS) == {(): 50 << 20}
    dies(stage, dead, code=None, signal=9, peak_rss=900 << 20)
    assert stage.values(names.PEAK_RSS) == {(): 900 << 20}


def test_the_state_of_the_pool_is_told(stage: Watched) -> None:
    stage.tell(ev.Counted({"reports": QueueStats(5, 4, 3, 2, 77.0)}), ev.BreakerTurned("reports", True))
    stage.lease("report")
    assert stage.values(names.MESSAGES) == {
        ("reports", "waiting"): 5,
        ("reports", "delayed"): 4,
        ("reports", "leased"): 3,
        ("reports", "dead"): 2,
    }
    assert stage.values(names.OLDEST) == {("reports",): 77.0}
    assert stage.values(names.BREAKER) == {("reports",): 1}
    assert stage.values(names.SLOTS) == {("starting",): 0, ("idle",): 1, ("busy",): 1, ("dying",): 0}
    assert stage.values(names.BUILD) == {(__version__,): 1}
    stage.tell(ev.BreakerTurned("reports", False), ev.Counted({"reports": QueueStats()}))
    assert stage.values(names.BREAKER) == {("reports",): 0}
    assert stage.values(names.OLDEST) == {("reports",): 0}


def test_a_collector_of_ones_own_is_told_the_same(stage: Watched) -> None:
    mine = MemoryMetrics()
    stage.pool.metrics = RelayedMetrics(mine)
    run_one(stage)
    assert mine.snapshot().ended["reports", "report"].outcomes == {"succeeded": 1}
    assert stage.observer.snapshot(stage.pool).ended["reports", "report"].outcomes == {"succeeded": 1}


# --- history ----------------------------------------------------------------------------------------------------------


def recorded(stage: Watched) -> list[dict[str, object]]:
    attempts = [attempt_of(one) for one in stage.feed.take()]
    return [
        {"name": one.name, "status": one.status, "output": one.output, "error": one.error, "attempt": one.attempt}
        for one in attempts
    ]


def test_what_the_child_said_is_recorded(stage: Watched) -> None:
    stage.answer(stage.run("report", name="monthly"), ResultKind.FAILED, error="ValueError: no", output="printed")
    assert recorded(stage) == [
        {"name": "monthly", "status": "dead-lettered", "output": "printed", "error": "ValueError: no", "attempt": 1}
    ]


def test_a_crash_is_recorded_with_its_cause_and_what_it_printed(stage: Watched) -> None:
    slot = stage.run()
    nonce = slot.deliveries[0].nonce
    exited = Exited(slot.child, slot.pid, None, 11)
    stage.tell(ev.ChildDied(exited, nonce, frozenset(), "", "last words"))
    [attempt] = [attempt_of(one) for one in stage.feed.take()]
    assert (attempt.status, attempt.output) == ("crashed", "last words")
    assert attempt.cause is not None
    assert "SIGSEGV" in attempt.cause
    assert attempt.start is not None


def test_what_was_only_given_back_is_not_recorded_but_a_snooze_is(stage: Watched) -> None:
    stage.lease("report", "report", "report")
    stage.after(STALE)
    stage.answer(stage.busy[0], ResultKind.SNOOZE, after=1.0)
    assert [one["status"] for one in recorded(stage)] == ["released"]


def test_what_the_broker_refused_is_not_recorded(stage: Watched) -> None:
    stage.says = Settled.EXPIRED
    run_one(stage)
    assert recorded(stage) == []


def test_forged_messages_cannot_push_out_the_rows_of_a_real_name(stage: Watched) -> None:
    stage.lease("report", name="monthly", outcome=FORGED)
    assert [(one["name"], one["status"], one["error"]) for one in recorded(stage)] == [
        ("-", "rejected", "bad signature")
    ]


class Broken(MemoryMetrics):
    """A collector of somebody's that raises whenever a job ends."""

    def ended(self, *_: object) -> None:
        raise ZeroDivisionError


def test_a_users_collector_that_raises_harms_no_job(caplog: pytest.LogCaptureFixture) -> None:
    stage = Watched()
    stage.pool.metrics = RelayedMetrics(Broken())
    stage.boot()
    run_one(stage)
    assert stage.pool.counters.succeeded == 1
    stage.lease("report")
    stage.pool.lose(next(iter(stage.pool.held.values())))
    assert [record.message for record in caplog.records] == ["an event of the pool could not be counted"] * 2
