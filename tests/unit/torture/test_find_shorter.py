"""The search for a shorter schedule: what has failed is written down at once, whatever becomes of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobpool_torture.entry_point import read_schedule
from jobpool_torture.options import Options
from jobpool_torture.result import Result
from jobpool_torture.schedule import Fault
from jobpool_torture.shrink import SHORTEST, find_shorter

FAULTS = [Fault(number, float(number), "child.kill", 0) for number in range(4)]
OPTIONS = Options("sqlite:///q.db", pools=1)

Judge = Callable[[Sequence[Fault]], Result]


def broken(**more: Any) -> Result:
    result = Result(**more)
    result.add("LOST", ["a"])
    return result


def searched(folder: Path, judge: Judge) -> Path | None:
    return find_shorter(OPTIONS, folder, FAULTS, lambda _options, _folder, part: judge(part), lambda _: None)


def found(path: Path | None) -> list[int]:
    assert path is not None
    return [fault.number for fault in read_schedule(path)[0]]


def test_the_shortest_part_that_fails(tmp_path: Path) -> None:
    path = searched(tmp_path, lambda part: broken() if FAULTS[2] in part else Result())
    assert path == tmp_path / SHORTEST
    assert found(path) == [2]


def test_none_is_written_where_no_part_fails(tmp_path: Path) -> None:
    """A part whose faults all missed has shown nothing, and is not a failure."""
    assert searched(tmp_path, lambda part: Result(planned=len(part), missed=len(part))) is None
    assert not (tmp_path / SHORTEST).exists()


@pytest.mark.parametrize("second", [Result(interrupted=True), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_what_ends_the_search_leaves_what_was_found(tmp_path: Path, second: Result | BaseException) -> None:
    answers = iter([broken()])

    def judge(_: Sequence[Fault]) -> Result:
        if (answer := next(answers, None)) is not None:
            return answer
        if isinstance(second, BaseException):
            raise second
        return second

    if isinstance(second, MemoryError):
        with pytest.raises(MemoryError):
            searched(tmp_path, judge)
    else:
        assert searched(tmp_path, judge) == tmp_path / SHORTEST
    assert len(found(tmp_path / SHORTEST)) == 2
