"""The scheduler beside a pool: started, replaced, started again after a back-off, ended with the pool."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from stage import Stage, of, step

from jobpool.ipc.frames import LoadFailed
from jobpool.ipc.scheduler_process import REFUSED
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.scheduler import (
    SCHEDULER_STOP_S,
    SILENT_AFTER_S,
    SchedulerEnded,
    SchedulerReady,
    SchedulerRefused,
    SchedulerStarted,
    SchedulerTurned,
    SignalScheduler,
    StartScheduler,
)
from jobpool.master.state import MAX_SCHEDULER_PAUSE_S, STEADY_AFTER_S


def a_stage(**settings: Any) -> Stage:
    return Stage(cron=True, **settings).boot()


def begun(**settings: object) -> Stage:
    """With a scheduler of pid 77, which is ready."""
    stage = a_stage(**settings)
    stage.tell(SchedulerStarted(77), SchedulerReady(77))
    return stage


def reloaded(**settings: object) -> Stage:
    """With one of pid 77, and one of pid 78 that has the app of a reload, and is not ready yet."""
    stage = begun(**settings)
    assert of(stage.reload(), StartScheduler) == [StartScheduler(may_be_empty=True)]
    stage.tell(SchedulerStarted(78))
    return stage


def starts(actions: list[act.Action]) -> int:
    return len(of(actions, StartScheduler))


def signals(actions: list[act.Action]) -> list[tuple[int, int]]:
    """(pid, signal) of each."""
    return [(action.pid, action.number) for action in of(actions, SignalScheduler)]


def died(stage: Stage, status: int = 1, pid: int = 77, error: str = "") -> list[act.Action]:
    return stage.tell(SchedulerEnded(pid, status, error))


def refused(stage: Stage, pid: int = 77) -> list[act.Action]:
    return died(stage, REFUSED, pid, "two jobs of one name")


def notes(stage: Stage) -> list[str]:
    return [note.event for note in stage.pool.notes]


def passes(stage: Stage, seconds: float) -> list[tuple[int, int]]:
    """Let the loop turn once a second meanwhile; the signals sent."""
    return signals(step(stage, seconds))


def test_without_the_setting_there_is_none() -> None:
    stage = Stage().boot()
    assert starts(stage.log) + starts(stage.after(100.0)) == 0


def test_it_starts_when_the_first_child_is_ready_and_not_before() -> None:
    stage = Stage(cron=True)
    assert starts(stage.tell()) + starts(stage.load()) == 0
    assert starts(stage.make_ready()) == 1
    stage.tell(SchedulerStarted(77))
    assert starts(stage.after(100.0)) == 0


def test_one_that_dies_is_started_again_with_a_back_off() -> None:
    stage = begun()
    pauses = []
    for _ in range(7):
        assert starts(died(stage)) == 0
        began = stage.now
        while not starts(stage.after(0.5)):
            assert stage.now < began + 2 * MAX_SCHEDULER_PAUSE_S
        pauses.append(stage.now - began)
        stage.tell(SchedulerStarted(77), SchedulerReady(77))
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert stage.pool.schedulers.problem == "the scheduler does not stay up"


def test_one_that_cannot_be_started_is_tried_again_later() -> None:
    stage = a_stage()
    stage.tell(SchedulerRefused("no process"))
    assert starts(stage.after(0.5)) == 0
    assert starts(stage.after(0.6)) == 1


def test_one_that_was_up_for_long_counts_as_the_first_to_die() -> None:
    stage = begun()
    for _ in range(4):
        died(stage)
        stage.after(MAX_SCHEDULER_PAUSE_S)
        stage.tell(SchedulerStarted(77), SchedulerReady(77))
    assert stage.pool.schedulers.problem
    passes(stage, STEADY_AFTER_S - 1.0)
    stage.tell(SchedulerTurned(77, ""))
    passes(stage, 1.0)
    assert not stage.pool.schedulers.problem
    died(stage)
    assert stage.pool.schedulers.failures == 1
    assert starts(stage.after(1.0)) == 1


def test_a_reload_starts_a_second_one_and_ends_the_first_when_that_is_ready() -> None:
    stage = reloaded()
    assert signals(stage.after(1.0)) == []
    assert signals(stage.tell(SchedulerReady(78))) == [(77, signal.SIGTERM)]
    assert starts(died(stage, 0)) == 0
    assert signals(stage.after(100.0)) == []
    assert list(stage.pool.schedulers.running) == [78]


def test_a_stop_while_it_starts_is_told_as_a_clean_end() -> None:
    for status, told in ((0, 0), (-signal.SIGTERM, 0), (-signal.SIGKILL, -9)):
        stage = a_stage()
        stage.tell(SchedulerStarted(77))
        stage.tell(ev.SignalCame(signal.SIGTERM))
        died(stage, status)
        [note] = [note for note in stage.pool.notes if note.event == "the scheduler has ended"]
        assert note.fields["status"] == told


def test_a_reload_to_refused_schedules_leaves_the_old_one_until_the_next_reload() -> None:
    stage = reloaded()
    assert starts(refused(stage, 78)) + starts(stage.after(1000.0)) == 0
    assert signals(stage.log) == []
    assert "the schedules are refused; the scheduler that runs goes on" in notes(stage)
    assert stage.pool.schedulers.problem == ("the new schedules are refused, the old ones go on: two jobs of one name")
    assert starts(stage.reload(3)) == 1
    stage.tell(SchedulerStarted(79))
    assert signals(stage.tell(SchedulerReady(79))) == [(77, signal.SIGTERM)]
    assert stage.pool.schedulers.problem == ""


def test_refused_schedules_are_tried_again_when_there_is_no_scheduler_left() -> None:
    stage = reloaded()
    refused(stage, 78)
    died(stage, -9)
    assert starts(stage.after(1.9)) == 0
    assert starts(stage.after(0.2)) == 1
    stage.tell(SchedulerStarted(79))
    refused(stage, 79)
    assert stage.pool.schedulers.problem == "there is no scheduler: two jobs of one name"
    assert starts(stage.after(MAX_SCHEDULER_PAUSE_S)) == 1


def test_a_second_one_that_dies_for_another_reason_is_tried_again() -> None:
    stage = reloaded()
    assert starts(died(stage, 1, 78, "the broker does not answer")) == 0
    assert starts(stage.after(1.1)) == 1
    assert signals(stage.log) == []


def test_a_second_one_that_does_not_get_ready_is_killed_and_tried_again() -> None:
    stage = reloaded(boot_timeout=20.0)
    assert signals(stage.after(3600.0)) == [], "the master stood still, and perhaps that one too"
    assert passes(stage, 19.9) == []
    assert signals(stage.after(0.2)) == [(78, signal.SIGKILL)]
    assert signals(stage.after(1.0)) == []
    assert starts(died(stage, -9, 78)) == 0
    assert starts(stage.after(1.1)) == 1


def test_two_reloads_at_once_make_one_after_the_other() -> None:
    stage = reloaded()
    assert starts(stage.reload(3)) == 0, "the second one comes first"
    actions = stage.tell(SchedulerReady(78))
    assert (starts(actions), signals(actions)) == (1, [(77, signal.SIGTERM)])
    stage.tell(SchedulerStarted(79))
    assert signals(stage.tell(SchedulerReady(79))) == [(78, signal.SIGTERM)]


def test_a_reload_does_not_wait_for_a_back_off() -> None:
    stage = begun()
    for _ in range(6):
        died(stage)
        stage.after(MAX_SCHEDULER_PAUSE_S)
        stage.tell(SchedulerStarted(77))
    died(stage)
    assert starts(stage.reload()) == 1


def test_schedules_that_are_refused_at_the_first_start_end_the_pool() -> None:
    stage = a_stage()
    stage.tell(SchedulerStarted(77))
    assert starts(refused(stage)) == 0
    assert stage.pool.is_stopping
    assert stage.pool.fatal == "the scheduler cannot start: two jobs of one name"
    assert [note.level for note in stage.pool.notes if note.event == "the schedules are refused"] == ["error"]


def test_a_reload_that_comes_before_the_first_refusal_is_given_its_try() -> None:
    stage = a_stage()
    stage.tell(SchedulerStarted(77), ev.SignalCame(signal.SIGHUP))
    stage.load(2)
    assert starts(refused(stage)) == 1
    assert not stage.pool.is_stopping


def test_a_broker_that_is_silent_at_the_first_start_does_not_end_the_pool() -> None:
    stage = a_stage()
    stage.tell(SchedulerStarted(77))
    died(stage, 1, error="the broker does not answer")
    assert not stage.pool.is_stopping
    assert starts(stage.after(1.1)) == 1


def test_a_reload_to_a_broken_app_leaves_it_alone() -> None:
    stage = begun()
    stage.tell(ev.SignalCame(signal.SIGHUP))
    stage.tell(ev.FrameCame(2, LoadFailed("half a deploy")))
    assert signals(stage.after(100.0)) == []


@pytest.mark.parametrize("runs", ["", "clean-up"])
def test_one_that_does_not_end_when_it_is_replaced_is_killed_unless_it_runs_a_job(runs: str) -> None:
    stage = reloaded()
    stage.tell(SchedulerTurned(77, runs), SchedulerReady(78))
    assert passes(stage, SCHEDULER_STOP_S - 0.1) == []
    assert signals(stage.after(0.2)) == ([] if runs else [(77, signal.SIGKILL)])
    assert passes(stage, SILENT_AFTER_S / 2) == []
    if runs:  # it has come to its end, and the process has not
        stage.tell(SchedulerTurned(77, ""))
        assert passes(stage, SCHEDULER_STOP_S + 0.1) == [(77, signal.SIGKILL)]
    assert starts(died(stage, -9)) == 0
    assert stage.pool.schedulers.failures == 0


@pytest.mark.parametrize("second", [False, True])
def test_a_stop_ends_it_and_waits_for_its_end(second: bool) -> None:
    stage = begun(stop_grace=5.0)
    assert signals(stage.tell(ev.SignalCame(signal.SIGTERM))) == [(77, signal.SIGTERM)]
    stage.end(*stage.pool.slots.live)
    assert not stage.pool.finished
    killed = stage.after(1.0 if second else 5.0)
    if second:
        killed = stage.tell(ev.SignalCame(signal.SIGTERM))
    assert signals(killed) == [(77, signal.SIGKILL)]
    assert starts(died(stage, -9)) == 0
    assert stage.pool.finished


def test_a_stop_in_the_middle_of_a_reload_ends_both() -> None:
    stage = reloaded()
    assert signals(stage.tell(ev.SignalCame(signal.SIGTERM))) == [(77, signal.SIGTERM), (78, signal.SIGTERM)]
    stage.end(*stage.pool.slots.live)
    died(stage, 0)
    assert not stage.pool.finished
    died(stage, 0, 78)
    assert stage.pool.finished


def test_nothing_is_started_while_the_pool_stops() -> None:
    stage = begun()
    died(stage)
    stage.tell(ev.SignalCame(signal.SIGTERM))
    assert starts(stage.after(2.0)) == 0


def test_one_that_turns_no_more_is_killed_and_replaced() -> None:
    stage = begun()
    assert passes(stage, SILENT_AFTER_S - 1) == []
    stage.tell(SchedulerTurned(77, ""))
    assert passes(stage, SILENT_AFTER_S - 1) == []
    assert passes(stage, 30) == [(77, signal.SIGKILL)]
    assert stage.pool.schedulers.problem == "the scheduler has not turned for 1m00s"
    died(stage, -9)
    assert stage.pool.notes[-1].fields["error"] == "it has not turned for 1m00s"
    assert starts(stage.after(1.1)) == 1
    assert stage.pool.schedulers.problem == ""


def test_one_that_runs_a_job_itself_is_told_of_once_and_left_alone() -> None:
    stage = begun()
    stage.tell(SchedulerTurned(77, "clean-up"))
    assert passes(stage, 3 * SILENT_AFTER_S) == []
    problem = "the scheduler has not turned for 3m00s: it runs the job of 'clean-up' itself"
    assert stage.pool.schedulers.problem == problem
    assert notes(stage).count("a job keeps the scheduler from firing") == 1
    stage.tell(SchedulerTurned(77, ""))
    assert stage.pool.schedulers.problem == ""


def test_the_death_of_one_that_ran_a_job_itself_names_the_schedule() -> None:
    stage = begun()
    stage.tell(SchedulerTurned(77, "clean-up"))
    died(stage, -11)
    note = stage.pool.notes[-1]
    assert (note.event, note.fields["schedule"]) == ("the scheduler died; another is started", "clean-up")
    assert "give the schedule a queue" in str(note.fields["mend"])
    stage = begun()
    stage.tell(SchedulerTurned(77, "clean-up"), SchedulerTurned(77, ""))
    died(stage)
    assert "schedule" not in stage.pool.notes[-1].fields


def test_a_master_that_stood_still_gives_it_time_to_be_heard() -> None:
    stage = begun()
    assert signals(stage.after(10 * SILENT_AFTER_S)) == []
    assert passes(stage, SILENT_AFTER_S - 1) == []


@pytest.mark.parametrize("runs", ["", "clean-up"])
def test_one_that_hangs_holds_up_a_stop_only_if_it_runs_a_job(runs: str) -> None:
    stage = begun(stop_grace=60.0)
    stage.tell(SchedulerTurned(77, runs))
    stage.tell(ev.SignalCame(signal.SIGTERM))
    assert passes(stage, SCHEDULER_STOP_S - 1) == []
    assert passes(stage, 1) == ([] if runs else [(77, signal.SIGKILL)])
    if runs:  # once its job has ended, it has as long to say so
        stage.tell(SchedulerTurned(77, ""))
        assert passes(stage, SCHEDULER_STOP_S) == [(77, signal.SIGKILL)]
