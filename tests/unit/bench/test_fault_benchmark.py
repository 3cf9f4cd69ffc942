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
