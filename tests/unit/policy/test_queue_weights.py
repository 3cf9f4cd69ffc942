"""Weighted queues, by simulation: shares under saturation, lending, nobody owed, nobody starved."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest

from jobpool.policy.queue_weights import QueueWeights

Sizes = Callable[[], int]

STARTS = 9000
"""Many rounds of the largest batches, so that a cut in the middle of one does not show."""


def run(weights_now: QueueWeights, backlog: dict[str, int], starts: int, batch: Sizes = lambda: 1) -> list[str]:
    """Fetch as the fetch thread does until so many have started; the queue of each, in order."""
    started: list[str] = []
    while len(started) < starts:
        count = batch()
        for queue in weights_now.order():
            got = min(backlog[queue], weights_now.share(queue, count))
            if got:
                backlog[queue] -= got
                weights_now.took(queue, got)
                started += [queue] * got
                break
            weights_now.found_nothing(queue)
        else:
            break
    return started[:starts]


def endless(*queues: str) -> dict[str, int]:
    return dict.fromkeys(queues, 10**9)


BATCHES = [
    pytest.param(lambda: 1, id="one by one"),
    pytest.param(lambda: 64, id="batches of 64"),
    pytest.param(lambda: 500, id="batches of 500"),
    pytest.param(lambda: random.choice([1, 1, 2, 7, 64, 200]), id="any size"),
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("weights", [(8.0, 1.0), (1.0, 1.0), (0.5, 4.0), (5.0, 3.0), (2.5, 1.0)])
def test_under_saturation_shares_are_as_the_weights_within_a_tenth(weights: tuple[float, float], batch: Sizes) -> None:
    weights_now = QueueWeights((("a", weights[0]), ("b", weights[1])))
    started = Counter(run(weights_now, endless("a", "b"), STARTS, batch))
    expected = STARTS * weights[0] / sum(weights)
    assert started["a"] == pytest.approx(expected, rel=0.1)
    assert started["b"] == pytest.approx(STARTS - expected, rel=0.1)


@pytest.mark.parametrize("batch", BATCHES)
def test_three_queues_too(batch: Sizes) -> None:
    weights_now = QueueWeights((("a", 6.0), ("b", 3.0), ("c", 1.0)))
    started = Counter(run(weights_now, endless("a", "b", "c"), 10_000, batch))
    assert [started[name] for name in "abc"] == pytest.approx([6000, 3000, 1000], rel=0.1)


@pytest.mark.parametrize("batch", BATCHES)
def test_what_a_queue_does_not_use_the_others_get(batch: Sizes) -> None:
    started = run(QueueWeights((("a", 8.0), ("b", 1.0))), {"a": 0, "b": 10_000}, 1000, batch)
    assert started == ["b"] * 1000


def test_a_light_queue_that_is_alone_gets_whole_batches() -> None:
    weights_now = QueueWeights((("a", 1000.0), ("b", 1.0)))
    run(weights_now, {"a": 0, "b": 10_000}, 10, lambda: 64)
    assert weights_now.share("b", 64) == 64


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("late", ["a", "b"])
def test_a_queue_that_was_empty_is_not_owed_the_past(late: str, batch: Sizes) -> None:
    weights_now = QueueWeights((("a", 8.0), ("b", 1.0)))
    backlog = endless("a", "b") | {late: 0}
    run(weights_now, backlog, 5000, batch)
    backlog[late] = 10**9
    started = Counter(run(weights_now, backlog, 9000, batch))
    slack = 500 if late == "a" else 0  # the one whole batch that b may have got while a was away
    assert started["b"] == pytest.approx(1000, rel=0.1, abs=100 + slack)


@pytest.mark.parametrize("batch", BATCHES)
def test_nobody_starves_at_a_thousand_to_one(batch: Sizes) -> None:
    started = run(QueueWeights((("a", 1000.0), ("b", 1.0))), endless("a", "b"), 50_000, batch)
    places = [place for place, queue in enumerate(started) if queue == "b"]
    gaps = [later - sooner for sooner, later in itertools.pairwise(places)]
    assert len(places) == pytest.approx(50, abs=5)
    assert max(gaps) <= 1000 + 500 + 1, "its turn comes each 1000, but for the batch that is under way"


def test_queues_that_come_and_go_keep_their_shares_while_both_have_work() -> None:
    weights_now, chance = QueueWeights((("a", 8.0), ("b", 1.0))), random.Random(7)
    both: Counter[str] = Counter()
    for _ in range(300):
        run(weights_now, {"a": 0, "b": 50} if chance.random() < 0.5 else {"a": 50, "b": 0}, 50, lambda: 8)
        both.update(run(weights_now, endless("a", "b"), 90, lambda: 8))
    assert both["a"] == pytest.approx(8 * 90 * 300 / 9, rel=0.1)


def test_every_queue_is_tried_while_the_first_ones_have_nothing() -> None:
    weights_now = QueueWeights((("a", 8.0), ("b", 4.0), ("c", 1.0)))
    assert run(weights_now, {"a": 0, "b": 0, "c": 3}, 3) == ["c", "c", "c"]
    assert sorted(weights_now.order()) == ["a", "b", "c"]
