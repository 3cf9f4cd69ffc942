"""Who takes turns with whom."""

from __future__ import annotations

from functools import partial

from bench.rounds import Samples, interleaved, rates


def test_each_round_begins_with_another_contestant_and_samples_keep_their_order() -> None:
    turns: list[str] = []

    def contest(name: str) -> dict[str, float]:
        turns.append(name)
        return {"rate": float(len(turns))}

    samples = interleaved({name: partial(contest, name) for name in "abc"}, 2)

    assert turns == ["a", "b", "c", "b", "c", "a"]
    assert rates(samples) == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}


def test_a_contestant_may_look_at_what_others_have_done() -> None:
    samples: Samples = {}
    seen: list[int] = []

    interleaved({"first": dict, "second": lambda: {"seen": seen.append(len(samples["first"]))}}, 1, samples)

    assert seen == [1]
