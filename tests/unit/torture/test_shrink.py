"""Shrinking keeps what fails: in order, never longer, within the runs that it was given."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from jobpool_torture.shrink import shrink


class Runs:
    """Fails when all of `needed` are there; remembers what it was asked."""

    def __init__(self, *needed: int) -> None:
        self._needed = set(needed)
        self.asked: list[list[int]] = []

    def __call__(self, faults: list[int]) -> bool:
        self.asked.append(faults)
        return self._needed <= set(faults)


@given(st.integers(1, 64), st.data())
@settings(max_examples=examples(200))
def test_exactly_what_is_needed_is_left(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    assert shrink(list(range(count)), Runs(*needed), most=100_000) == sorted(needed)


@given(st.lists(st.integers(), max_size=30), st.integers(0, 20), st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_with_runs_that_do_not_repeat_it_ends_in_time_with_something_that_failed(
    faults: list[int], most: int, rng: object
) -> None:
    asked: list[list[int]] = []
    failed = [faults]

    def fails(part: list[int]) -> bool:
        asked.append(part)
        if rng.random() < 0.5:  # type: ignore[attr-defined]
            failed.append(part)
            return True
        return False

    assert shrink(faults, fails, most=most) == failed[-1]
    assert len(asked) <= most


def test_it_needs_few_runs_to_find_one_of_many() -> None:
    runs = Runs(700)
    assert shrink(list(range(1000)), runs) == [700]
    assert len(runs.asked) < 40


def test_nothing_is_asked_twice_nor_for_the_whole() -> None:
    runs = Runs(1, 9, 14)
    shrink(list(range(16)), runs, most=1000)
    assert len(runs.asked) == len({tuple(part) for part in runs.asked})
    assert list(range(16)) not in runs.asked


def test_what_fails_without_any_fault_is_shrunk_to_none() -> None:
    assert shrink([1, 2, 3], Runs()) == []


def test_without_runs_it_stays_as_it_is() -> None:
    assert shrink([1, 2, 3], Runs(), most=0) == [1, 2, 3]
    assert shrink([], Runs()) == []


def test_equal_faults_are_two() -> None:
    assert shrink([5, 5, 5], lambda part: len(part) >= 2) == [5, 5]
