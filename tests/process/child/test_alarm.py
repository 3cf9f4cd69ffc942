"""The alarm against the clock: completions that race it, and strangers that send it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from support import tiers

from jobpool.errors import Cancelled, HardTimeout
from jobpool.ipc.alarm import Alarm, borrowed

RACES = tiers.examples(5000)
TIMEOUT = 0.0005
"""Seconds: as short as lets a completion come 200 µs before it, so that a thousand of races take some seconds."""


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    with borrowed():
        yield Alarm(kill_grace=0.02)


def spin(seconds: float) -> str:
    """Bytecode all the way to the end, so that the alarm can land anywhere."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "returned"


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "returned"


@pytest.mark.parametrize("work", [spin, nap])
def test_a_completion_that_races_the_alarm_is_one_or_the_other(alarm: Alarm, work: object) -> None:
    """Row 12 of tests/faults/rows.md: timeout ± 200 µs; each is success or timeout, and nothing leaks into the next."""
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(RACES):
        alarm.arm(TIMEOUT)
        value, error = alarm.call(work, TIMEOUT + dice.uniform(-2e-4, 2e-4))  # type: ignore[arg-type]
        late = alarm.expired(time.monotonic())
        alarm.disarm()
        assert (value == "returned") != isinstance(error, HardTimeout)
        assert late or error is None
        seen["timeout" if late else "success"] += 1

        alarm.arm(10.0)
        assert alarm.call(nap, 0.0) == ("returned", None)
        assert not alarm.expired(time.monotonic())
        alarm.disarm()
    assert seen["timeout"] > 0
    assert seen["success"] > 0


def test_a_cancel_is_raised_at_once_and_again_after_half_the_grace(alarm: Alarm) -> None:
    met = []

    def resist(_: float) -> str:
        for _ in range(2):
            try:
                nap(30.0)
            except BaseException as error:  # noqa: BLE001 - as a handler may
                met.append(type(error))
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # as the master: again and again
        return "returned"

    marks = [False]
    alarm.is_cancelled = lambda: marks[0]
    alarm.arm(0.0)
    os.kill(os.getpid(), signal.SIGALRM)
    assert alarm.call(nap, 0.0) == ("returned", None), "one that nobody asked for changes nothing"
    marks[0] = True
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    assert alarm.call(resist, 0.0) == ("returned", None)
    assert met == [Cancelled, Cancelled]
    assert (alarm.cancelled, alarm.fired) == (True, True)
    alarm.disarm()
    marks[0] = False
    alarm.arm(10.0)
    assert alarm.call(nap, 0.0) == ("returned", None)
    assert (alarm.cancelled, alarm.fired) == (False, False)
    alarm.disarm()


def test_nothing_escapes_though_the_alarm_comes_again_and_again(alarm: Alarm) -> None:
    """A handler that raises right when the alarm is due leaves through `call`'s own handlers."""

    def fail(seconds: float) -> None:
        spin(seconds)
        raise ValueError

    for step in range(200):
        alarm.arm(0.001)
        value, error = alarm.call(fail, 0.001 + (step - 100) * 1e-6)
        alarm.disarm()
        assert value is None
        assert isinstance(error, ValueError | HardTimeout)


def test_a_stranger_that_sends_the_signal_early_changes_nothing(alarm: Alarm) -> None:
    def disturbed(_: object) -> str:
        os.kill(os.getpid(), signal.SIGALRM)
        return nap(0.01)

    alarm.arm(5.0)
    assert alarm.call(disturbed, None) == ("returned", None)
    assert not alarm.fired
    alarm.disarm()


def test_an_alarm_outside_of_a_call_is_inert(alarm: Alarm) -> None:
    alarm.arm(0.001)
    spin(0.15)
    os.kill(os.getpid(), signal.SIGALRM)
    alarm.disarm()
    assert not alarm.fired
    assert alarm.expired(time.monotonic())


def test_an_alarm_that_user_code_leaves_behind_raises_in_no_code_after_it(alarm: Alarm) -> None:
    def of_a_library(*_: object) -> None:
        raise RuntimeError("its own timeout")

    def leaves_its_timer(fails: bool) -> str:
        signal.signal(signal.SIGALRM, of_a_library)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        if fails:
            raise ValueError
        return "returned"

    for fails in (False, True):
        alarm.arm(0.0)
        value, error = alarm.call(leaves_its_timer, fails)
        assert (value is None, isinstance(error, ValueError)) == (fails, fails)
        spin(0.03)


def test_the_stack_is_that_of_the_first_alarm(alarm: Alarm) -> None:
    def swallow(_: object) -> None:
        for _ in range(2):
            try:
                nap(5.0)
            except HardTimeout:
                continue

    alarm.arm(0.01)
    alarm.call(swallow, None)
    alarm.disarm()
    assert alarm.fired
    assert alarm.stack is not None
    assert [frame.name for frame in alarm.stack] == ["swallow", "nap"]


@pytest.mark.usefixtures("alarm")
def test_it_is_quiet_for_half_of_the_grace() -> None:
    patient = Alarm(kill_grace=0.6)
    times: list[float] = []

    def swallow(_: object) -> None:
        while len(times) < 3:
            try:
                nap(5.0)
            except HardTimeout:
                times.append(time.monotonic() - begin)

    begin = time.monotonic()
    patient.arm(0.1)
    patient.call(swallow, None)
    patient.disarm()
    first, second, third = times  # at ticks of one timer: one that is late brings the next no later
    assert first >= 0.1
    assert second >= 0.4
    assert third >= 0.5


def test_what_tells_the_loop_is_called_before_it_raises(alarm: Alarm) -> None:
    told: list[str] = []
    alarm.on_fire = lambda: told.append("now")
    alarm.arm(0.01)
    alarm.call(nap, 5.0)
    alarm.disarm()
    assert told == ["now"]


def test_no_timeout_sets_no_timer(alarm: Alarm) -> None:
    alarm.arm(0.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not alarm.expired(float("1e300"))
    alarm.disarm()
