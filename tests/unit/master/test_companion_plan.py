"""The scheduler beside a pool: started, replaced, started again after a back-off, ended with the pool."""

from __future__ import annotations

import signal

import pytest
from stage import Stage, of

from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.companion import LONGEST, STEADY


def a_stage(**settings: object) -> Stage:
    return Stage(cron=True, **settings).boot()


def begun(**settings: object) -> Stage:
    """With a scheduler of pid 77."""
    stage = a_stage(**settings)
    stage.tell(ev.CompanionStarted(77))
    return stage


def starts(actions: list[act.Action]) -> int:
    return len(of(actions, act.StartCompanion))


def signals(actions: list[act.Action]) -> list[int]:
    return [action.number for action in of(actions, act.SignalCompanion)]


def died(stage: Stage, status: int = 1) -> list[act.Action]:
    return stage.tell(ev.CompanionEnded(status))


def test_without_the_setting_there_is_none() -> None:
    stage = Stage().boot()
    assert starts(stage.log) + starts(stage.after(100.0)) == 0


def test_it_starts_when_the_first_child_is_ready_and_not_before() -> None:
    stage = Stage(cron=True)
    assert starts(stage.tell()) + starts(stage.load()) == 0
    assert starts(stage.make_ready()) == 1
    stage.tell(ev.CompanionStarted(77))
    assert starts(stage.after(100.0)) == 0


def test_one_that_dies_is_started_again_with_a_back_off() -> None:
    stage = begun()
    pauses = []
    for _ in range(7):
        assert starts(died(stage)) == 0
        began = stage.now
        while not starts(stage.after(0.5)):
            assert stage.now < began + 2 * LONGEST
        pauses.append(stage.now - began)
        stage.tell(ev.CompanionStarted(78))
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert stage.pool.companion.problem == "the scheduler does not stay up"


def test_one_that_cannot_be_started_is_tried_again_later() -> None:
    stage = a_stage()
    stage.tell(ev.CompanionRefused("no process"))
    assert starts(stage.after(0.5)) == 0
    assert starts(stage.after(0.6)) == 1


def test_one_that_was_up_for_long_counts_as_the_first_to_die() -> None:
    stage = begun()
    for _ in range(4):
        died(stage)
        stage.after(LONGEST)
        stage.tell(ev.CompanionStarted(78))
    stage.after(STEADY)
    died(stage)
    assert stage.pool.companion.failures == 1
    assert starts(stage.after(1.0)) == 1


def test_a_reload_replaces_it_once_the_new_app_has_loaded() -> None:
    stage = begun()
    stage.tell(ev.SignalCame(signal.SIGHUP))
    assert signals(stage.log) == []
    assert signals(stage.load(2)) == [signal.SIGTERM]
    assert signals(stage.after(1.0)) == []
    actions = died(stage, 0)
    assert starts(actions) == 1, "at once, and not after a back-off"
    stage.tell(ev.CompanionStarted(78))
    assert signals(stage.after(100.0)) == []


def test_a_reload_to_a_broken_app_leaves_it_alone() -> None:
    stage = begun()
    stage.tell(ev.SignalCame(signal.SIGHUP))
    stage.tell(ev.AppFailed(2, "half a deploy", ""))
    assert signals(stage.after(100.0)) == []


def test_one_that_does_not_end_when_it_is_replaced_is_killed_after_the_grace() -> None:
    stage = begun(stop_grace=5.0)
    stage.tell(ev.SignalCame(signal.SIGHUP))
    stage.load(2)
    assert signals(stage.after(4.9)) == []
    assert signals(stage.after(0.2)) == [signal.SIGKILL]
    assert signals(stage.after(100.0)) == []
    assert starts(died(stage, -9)) == 1


@pytest.mark.parametrize("second", [False, True])
def test_a_stop_ends_it_and_waits_for_its_end(second: bool) -> None:
    stage = begun(stop_grace=5.0)
    assert signals(stage.tell(ev.SignalCame(signal.SIGTERM))) == [signal.SIGTERM]
    for slot in list(stage.pool.slots.live):
        stage.die(slot, signal=None, code=0)
    assert not stage.pool.finished
    killed = stage.tell(ev.SignalCame(signal.SIGTERM)) if second else stage.after(5.0)
    assert signals(killed) == [signal.SIGKILL]
    assert starts(died(stage, -9)) == 0
    assert stage.pool.finished


def test_nothing_is_started_while_the_pool_stops() -> None:
    stage = begun()
    died(stage)
    stage.tell(ev.SignalCame(signal.SIGTERM))
    assert starts(stage.after(2.0)) == 0
