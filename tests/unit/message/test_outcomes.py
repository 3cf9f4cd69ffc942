"""The results that callers and tests see, and what a handler may ask for by raising."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from jobpool.errors import LONGEST_WAIT_S, InvalidJob, Retry, Snooze
from jobpool.message.outcome import ExecutionResult, Status


def test_the_words_of_the_pipeline() -> None:
    assert [status.value for status in Status] == [
        "empty",
        "acked",
        "requeued",
        "dead-lettered",
        "rejected",
        "skipped-idempotent",
        "released",
        "lost",
        "crashed",
        "cancelled",
        "moved",
    ]
    assert f"{Status.DEAD_LETTERED}" == "dead-lettered"


@pytest.mark.parametrize(("start", "end", "seconds"), [(10.0, 12.5, 2.5), (10.0, 10.0, 0.0), (10.0, 9.0, 0.0)])
def test_how_long_an_attempt_ran(start: float, end: float, seconds: float) -> None:
    result = ExecutionResult(True, "done", None, start, end, "report")

    assert result.duration_seconds() == seconds
    with pytest.raises(FrozenInstanceError):
        result.success = False  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("after", [0, 0.5, 90, LONGEST_WAIT_S, timedelta(seconds=90)])
def test_a_delay_of_a_hundred_years_at_most(kind: type[Retry | Snooze], after: float | timedelta) -> None:
    asked, seconds = kind(after), after.total_seconds() if isinstance(after, timedelta) else after
    assert (asked.after, type(asked.after)) == (seconds, float)
    assert f" {seconds:.12g} s" in str(asked)


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_the_reason_is_the_text(kind: type[Retry | Snooze]) -> None:
    assert str(kind(5, "the printer is away")) == "the printer is away"


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("after", [-1, -0.001, -math.inf, math.nan, math.inf, 1e30, "5", None, True])
def test_what_is_no_delay_is_refused(kind: type[Retry | Snooze], after: Any) -> None:
    with pytest.raises(InvalidJob, match="after must be 0 to 3162240000 seconds, or a timedelta, not"):
        kind(after)
