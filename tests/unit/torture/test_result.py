"""Whether a run was clean: all counts are 0, and it has done what it was to do."""

from __future__ import annotations

from collections import Counter

import pytest

from jobpool_torture.result import Result


@pytest.mark.parametrize(
    ("result", "doubt"),
    [
        (Result(planned=2, struck=Counter({"child.kill": 1}), missed=1), ""),
        (Result(planned=0), ""),
        (Result(planned=2, missed=2), "none of the 2 faults of the schedule found anything to strike"),
        (Result(planned=2, interrupted=True), ""),
        (
            Result(planned=2, struck=Counter({"child.kill": 2}), problems=["'x' has ended with status 127"]),
            "'x' has ended",
        ),
    ],
    ids=["one missed", "none planned", "all missed", "interrupted before the first", "a problem"],
)
def test_a_run_that_has_shown_nothing_is_not_clean(result: Result, doubt: str) -> None:
    assert result.doubt.startswith(doubt)
    assert bool(result.doubt) is bool(doubt)
    assert result.is_clean is not bool(doubt)
    assert result.violations == 0
    assert result.to_dict()["doubt"] == result.doubt


def test_a_violation_is_never_clean() -> None:
    result = Result()
    result.add("LOST", ["a"])
    assert not result.is_clean
