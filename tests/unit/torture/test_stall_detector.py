"""A drain is given up when nothing has become less for long, however long it takes and whatever goes round in it."""

from __future__ import annotations

from jobpool.broker.values import QueueStats
from jobpool_torture.stall_detector import DrainStall

SECONDS = 60.0
STEP = 50.0

FULL = QueueStats(waiting=1000, cap=1000)
"""A thousand at least."""


def left(count: int) -> QueueStats:
    return QueueStats(waiting=count)


def test_it_is_over_when_no_look_found_less() -> None:
    rows: list[tuple[str, list[tuple[QueueStats | None, int]], int | None]] = [
        ("a long one", [(left(count), 0) for count in range(100, 0, -1)], None),
        ("nothing happens", [(left(5), 0), (left(5), 0), (left(5), 0)], 3),
        ("round and round", [(left(5), lines) for lines in range(0, 300, 100)], 3),
        ("more, and less of that", [(left(5), 0), (left(7), 1), (left(6), 2)], 3),
        ("less than ever again", [(left(5), 0), (left(7), 1), (left(4), 2), (left(4), 3)], None),
        ("the broker is silent", [(left(5), 0), (None, 1), (None, 2)], 3),
        ("silent for a while", [(left(5), 0), (None, 1), (left(4), 2), (None, 3)], None),
        ("silent from the start", [(None, 0), (None, 1)], 2),
        ("too many to count", [(FULL, 10), (FULL, 20), (FULL, 30), (FULL, 40), (left(999), 40), (left(998), 40)], None),
        ("too many, and nothing happens", [(FULL, 10), (FULL, 10), (FULL, 10)], 3),
        ("too many again, and nothing happens", [(FULL, 10), (left(999), 20), (FULL, 20), (FULL, 20)], 4),
    ]
    for case, looks, over_after in rows:
        patience = DrainStall(SECONDS, 0.0)
        over = [patience.is_over(number * STEP, *look) for number, look in enumerate(looks, start=1)]
        assert over == [number == over_after for number in range(1, len(looks) + 1)], case
