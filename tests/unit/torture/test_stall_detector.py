"""Standstill is found: of a pool that keeps a stopped fork server or waits for its log's reader, and of a drain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from jobpool.broker.values import QueueStats
from jobpool.telemetry.metrics.pages import LOOP_LIMIT
from jobpool_torture import processes, stall_detector
from jobpool_torture.fleet import Pool
from jobpool_torture.judge import Window
from jobpool_torture.processes import Stops
from jobpool_torture.stall_detector import FROZEN_LIMIT_S, DrainStall, PoolStalls


class Scene:
    """One pool with a fork server, 70, and a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.alive = True
        self.held = False
        self.loop_at = 1000.0
        self.gone_on: list[int] = []
        header = SimpleNamespace
        acted = SimpleNamespace(name="pool1", number=0, pid=7, header=lambda: header(loop_at=self.loop_at))
        self.acted, self.pool = acted, cast(Pool, acted)
        monkeypatch.setattr(stall_detector, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(processes, "is_alive", lambda _: self.alive)
        self.windows: list[Window] = []
        stops = cast(Stops, SimpleNamespace(go=self.gone_on.append))
        self.stalls = PoolStalls(stops, lambda _: self.held, self.windows)

    def look(self, *, give_up: bool = False) -> list[str]:
        return self.stalls.look([self.pool], give_up=give_up)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(monkeypatch)
    made.stalls.freeze(3, made.pool, 70)
    return made


def test_one_that_is_not_replaced_is_found_once_and_let_go(scene: Scene) -> None:
    scene.now += FROZEN_LIMIT_S - 1
    assert scene.look() == []
    assert scene.stalls.are_frozen
    scene.now += 1
    assert scene.look() == ["pool1: the fork server 70 that stood still was not ended by its pool, and let go"]
    assert scene.stalls.found == [f"pool1: its fork server 70 stood still for {FROZEN_LIMIT_S:.0f} s"]
    assert scene.gone_on == [3]
    assert not scene.stalls.are_frozen
    assert scene.look() == []


def test_one_that_is_replaced_is_none(scene: Scene) -> None:
    scene.now += 12.0
    scene.alive = False
    assert scene.look() == ["pool1: the fork server 70 that stood still was ended after 12.0 s"]
    assert scene.stalls.found == []
    assert scene.windows == [Window("pool1", "forkserver.freeze", 1000.0, 1012.0)]


def test_time_in_which_the_pool_was_held_up_itself_does_not_count(scene: Scene) -> None:
    scene.now += FROZEN_LIMIT_S
    scene.held = True
    assert scene.look() == []
    scene.now += FROZEN_LIMIT_S - 1
    scene.held = False
    assert scene.look() == []
    scene.now += 1
    assert len(scene.look()) == 1
    assert len(scene.stalls.found) == 1


@pytest.mark.parametrize("give_up", [True, False], ids=["at the end", "its master was killed"])
def test_nobody_is_blamed_who_had_no_time(scene: Scene, give_up: bool) -> None:
    if not give_up:
        scene.acted.pid = 8
    assert len(scene.look(give_up=give_up)) == 1
    assert scene.stalls.found == []
    assert scene.gone_on == [3]


@pytest.mark.parametrize(
    ("silent", "held", "found"),
    [
        (LOOP_LIMIT + 1, False, ["pool1: its master has stood still for 6.0 s, of 9 s without a reader"]),
        (LOOP_LIMIT - 1, False, []),
        (LOOP_LIMIT + 1, True, []),
    ],
    ids=["stood still", "went on", "was stopped"],
)
def test_a_master_that_waits_for_the_reader_of_its_log(
    scene: Scene, silent: float, held: bool, found: list[str]
) -> None:
    scene.held = held
    scene.now = scene.loop_at + silent
    scene.stalls.judge_log(scene.pool, 9.0)
    assert scene.stalls.found == found
    scene.held, scene.stalls.found = False, []
    scene.look()
    if held:
        scene.stalls.judge_log(scene.pool, 9.0)
        assert scene.stalls.found == [f"pool1: its master has stood still for {silent:.1f} s, of 9 s without a reader"]


# --- a drain: however long it takes, and whatever goes round in it ----------------------------------------------------

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
