"""The results that callers and tests see."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

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
