"""The benchmark of faults, as small as it gets: every figure of what it strikes is there, and makes sense."""

from __future__ import annotations

import pytest
from bench import faults
from bench.plan import Plan


@pytest.mark.more
def test_times_to_notice_and_to_recover() -> None:
    section = faults.run(Plan(tiny=True))

    assert {figure.name for figure in section.figures} == {
        f"{name}, p{percent}"
        for percent in (50, 99)
        for name in (
            *("child killed: its end is noted", "child killed: its message runs again"),
            "connections cut, redis: the next ack is accepted",
            "reply of a settlement lost, redis: that settlement is known",
            "black hole, redis: after it, the first ack is accepted",
        )
    }
    assert all(0 < figure.value < 60_000 for figure in section.figures)


class Calm:
    """A stage that counts how often it was put in order."""

    mended = 0

    def mend(self) -> None:
        self.mended += 1


@pytest.mark.parametrize("missed", [TimeoutError, ProcessLookupError])
def test_a_fault_that_came_too_late_strikes_again(missed: type[Exception]) -> None:
    stage = Calm()

    def strike(_: object) -> dict[str, float]:
        if stage.mended < 2:
            raise missed
        return {"noticed": 0.1}

    assert faults.sample(stage, faults.Fault("late", strike, 1, 1, {})) == {"noticed": 0.1}  # type: ignore[arg-type]
    assert stage.mended == 2


def test_a_fault_that_never_strikes_is_an_error() -> None:
    def strike(_: object) -> dict[str, float]:
        raise TimeoutError

    stage = Calm()
    with pytest.raises(TimeoutError):
        faults.sample(stage, faults.Fault("never", strike, 1, 1, {}))  # type: ignore[arg-type]
    assert stage.mended == faults.TRIES - 1


def test_each_fault_strikes_often_enough_for_a_percentile_or_says_so() -> None:
    struck = [fault for _, _, on in faults.STAGES for fault in on]

    assert all(fault.full >= fault.quick >= 1 for fault in struck)
    assert any(fault.full < faults.ENOUGH for fault in struck) == any("fewer than" in note for note in faults.NOTES)
