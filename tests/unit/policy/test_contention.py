"""How long contended messages wait."""

from __future__ import annotations

import pytest

from jobpool.policy.limits import Contentions, contention_delay
from jobpool.policy.retry import REMEMBERED_MESSAGES

DRAWN = 400


@pytest.mark.parametrize(("times", "edge"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 16.0), (6, 30.0), (5000, 30.0)])
def test_full_jitter_up_to_an_edge_that_doubles_to_30_seconds(times: int, edge: float) -> None:
    delays = [contention_delay(times) for _ in range(DRAWN)]
    assert 0.0 <= min(delays) < edge / 5
    assert edge * 4 / 5 < max(delays) <= edge


def test_the_edge_may_be_lower() -> None:
    assert max(contention_delay(9, 5.0) for _ in range(DRAWN)) <= 5.0


def test_messages_are_counted_each_by_itself_until_they_get_what_they_asked_for() -> None:
    contentions = Contentions()
    assert [contentions.met("a"), contentions.met("a"), contentions.met("b")] == [1, 2, 1]
    contentions.forget("a")
    contentions.forget("unknown")
    assert [contentions.met("a"), contentions.met("b")] == [1, 2]


def test_what_is_remembered_is_bounded_and_who_was_met_lately_stays() -> None:
    contentions = Contentions()
    contentions.met("first")
    contentions.met("second")
    contentions.met("first")
    for place in range(REMEMBERED_MESSAGES - 1):
        contentions.met(f"other {place}")
    assert contentions.met("first") == 3
    assert contentions.met("second") == 1
