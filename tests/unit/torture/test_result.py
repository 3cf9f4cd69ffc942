"""Whether a run was clean: all counts are 0, and it has done what it was to do."""

from __future__ import annotations

from collections import Counter

from jobpool_torture.result import Result


def test_a_run_that_has_shown_nothing_is_not_clean() -> None:
    for case, result, doubt in [
        ("one missed", Result(planned=2, struck=Counter({"child.kill": 1}), missed=1), ""),
        ("none planned", Result(planned=0), ""),
        ("all missed", Result(planned=2, missed=2), "none of the 2 faults of the schedule found anything to strike"),
        ("interrupted before the first", Result(planned=2, interrupted=True), ""),
        (
            "a problem",
            Result(planned=2, struck=Counter({"child.kill": 2}), problems=["'x' has ended with status 127"]),
            "'x' has ended",
        ),
    ]:
        assert result.doubt.startswith(doubt), case
        assert bool(result.doubt) is bool(doubt), case
        assert result.is_clean is not bool(doubt), case
        assert result.violations == 0, case
        assert result.to_dict()["doubt"] == result.doubt, case
