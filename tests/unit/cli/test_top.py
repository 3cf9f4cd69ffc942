"""`top`: what is made of the boards of pools, what keys do, and what is written to the terminal."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
import pyte
import pytest
from face_boards import NOW, a_pool, publish

from jobpool.cli.top_lines import cells, headline
from jobpool.cli.top_screen import MAX_FRAME_BYTES, Keyboard, Picture, View
from jobpool.ipc.board_layout import QueueDepth
from jobpool.ops.runtime_dir import PoolFile, discover, note_path, register, unregister
from jobpool.ops.top import PoolSample, SlotRow, Watcher


def sampled(directory: Path, now: float = NOW) -> list[PoolSample]:
    with Watcher(partial(discover, directory), lambda: now) as watcher:
        return watcher.sample()


def drawn(samples: list[PoolSample], width: int = 160, height: int = 40) -> str:
    return click.unstyle("\n".join(View(lambda *_: "", "nobody here").lines(samples, width, height)))


def test_a_busy_slot_shows_its_job_and_an_idle_one_its_totals(tmp_path: Path) -> None:
    _, board = publish(tmp_path)
    with board:
        [pool] = sampled(tmp_path)
        [later] = sampled(tmp_path, NOW + 58)
    busy, idle = pool.rows  # the third slot was never filled
    assert (busy.state, busy.handler, busy.queue, busy.attempt) == ("busy", "render", "reports", 2)
    assert (busy.age, busy.left, busy.progress, busy.restarts) == (3.0, 57.0, 0.4, 1)
    assert cells(busy) == [
        *("0", str(os.getpid()), "busy", "render", "nightly", "0123456789abcdef", "reports", "2", "3.0s", "57s"),
        *("50M", "98"),
        *("0", "0", "1", "40% rendering"),
    ]
    assert (idle.state, idle.job, idle.attempt, idle.left, idle.done, idle.failed) == ("idle", "", None, None, 1, 1)
    assert idle.age == 7.0
    assert (later.rows[0].left, "-1.0s" in cells(later.rows[0])) == (-1.0, True), "overdue"


def test_a_slot_is_what_the_master_says_and_a_childs_job_is_shown_for_that_child_alone(tmp_path: Path) -> None:
    _, board = publish(tmp_path)
    with board:
        for state, pid in (("busy", 1), ("dying", 1), ("empty", 0)):
            board.slot(0).master.write(state=state, pid=pid)
            board.slot(1).master.write(state="dying")
            busy, idle = sampled(tmp_path)[0].rows
            assert (busy.state, busy.pid, busy.job, idle.state) == (state, pid, "", "dying")


def test_the_last_death_of_a_slot_is_shown_until_something_runs_in_it(tmp_path: Path) -> None:
    death = "killed by SIGSEGV (itself); peak memory 31 MiB"
    _, board = publish(tmp_path)
    with board:
        for index in (0, 1):
            board.slot(index).master.write(last_death=death)
        [pool] = sampled(tmp_path)
        board.slot(0).child.progress(0.0, "")
        [silent] = sampled(tmp_path)
    assert [row.last_death for row in pool.rows] == [death, death]
    assert [cells(row)[-1] for row in pool.rows] == ["40% rendering", f"last death: {death}"]
    assert cells(silent.rows[0])[-1] == "", "it runs, and tells nothing"


def test_jobs_a_second_are_counted_between_samples(tmp_path: Path) -> None:
    _, board = publish(tmp_path)
    now = NOW
    with board, Watcher(partial(discover, tmp_path), lambda: now) as watcher:
        assert watcher.sample()[0].rate is None
        for _ in range(10):
            board.slot(1).child.finished(True, now)
        now += 2.0
        assert watcher.sample()[0].rate == 5.0
        for _ in range(120):
            board.slot(1).child.finished(True, now)
        now += 60.0
        assert watcher.sample()[0].rate == 2.0, "samples further apart than the span, as of a log's lines"


def test_a_master_that_hangs_is_said_so(tmp_path: Path) -> None:
    _, board = publish(tmp_path, succeeded=1200, dead=3, problem="the broker does not answer")
    with board:
        [pool] = sampled(tmp_path, NOW + 20)
    text = headline(pool)
    assert "the master has not turned its loop for 20s" in text
    assert "the broker does not answer" in text
    assert "1,200 acked" in text
    assert "3 dead" in text


def test_pools_come_and_go_between_samples(tmp_path: Path) -> None:
    _, board = publish(tmp_path, "first")
    with board, Watcher(partial(discover, tmp_path), lambda: NOW) as watcher:
        assert len(watcher.sample()) == 1
        _, other = publish(tmp_path, "second")
        with other:
            text = drawn(watcher.sample())
            assert text.index("first  pid") < text.index("second  pid")
            assert text.count("render") >= 2
            unregister(note_path(tmp_path, "first", os.getpid()))
            assert [found.pool.name for found in watcher.sample()] == ["second"]


def test_a_pool_without_a_readable_board_says_so(tmp_path: Path) -> None:
    register(tmp_path, a_pool(tmp_path))
    [pool] = sampled(tmp_path)
    assert "its scoreboard cannot be read" in headline(pool)
    assert "its scoreboard cannot be read" in drawn([pool])


@pytest.mark.parametrize(("width", "height"), [(40, 6), (80, 24), (200, 50)])
def test_it_fits_every_window(tmp_path: Path, width: int, height: int) -> None:
    _, board = publish(tmp_path, slots=30)
    with board:
        for index in range(2, 30):
            board.slot(index).master.write(state="idle", pid=1)
        text = drawn(sampled(tmp_path), width, height)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert ("more slots" in text) is (height < 30)
    assert all(title in text for title in ("SLOT", "STATE", "HANDLER", "AGE"))


@pytest.mark.parametrize("ident", ["0123456789abcdef", "0198f1c2-6a0b-7c3d-8e4f-1234567890ab"])
def test_eighty_columns_show_name_and_progress_and_an_id_whole_or_not_at_all(tmp_path: Path, ident: str) -> None:
    _, board = publish(tmp_path)
    with board:
        board.slot(0).child.took(8, NOW - 3)
        board.slot(0).child.started(NOW + 57, ident, "reports", "render", 2, "nightly")
        board.slot(0).child.progress(0.4, "rendering")
        pools = sampled(tmp_path)
    for width in range(40, 200):
        row = next(line for line in drawn(pools, width).splitlines() if line.startswith("   0 "))
        assert ident in row or ident[:4] not in row, width
        assert len(row.rstrip()) <= width
        if width >= 80:
            assert "render" in row, width
            assert "nightly" in row, width
            assert "40% rendering" in row, width
    assert ident in row


def test_no_pool_is_said_so() -> None:
    assert "nobody here" in drawn([])


@pytest.fixture
def samples(tmp_path: Path) -> list[PoolSample]:
    """A pool with a busy slot 0 and an idle slot 1, and one more of the same."""
    boards = [publish(tmp_path, name)[1] for name in ("main", "other")]
    boards[0].slot(1).master.write(cpu=0.5, rss=90 << 20)
    with Watcher(partial(discover, tmp_path), lambda: NOW) as watcher:
        found = watcher.sample()
    for board in boards:
        board.close()
    return found


class Orders(list[tuple[str, str, int]]):
    """What was ordered: pool, verb and slot."""

    answer = "done"

    def __call__(self, pool: PoolFile, verb: str, row: SlotRow) -> str:
        self.append((pool.name, verb, row.slot))
        return self.answer


@pytest.fixture
def orders() -> Orders:
    return Orders()


@pytest.fixture
def view(orders: Orders) -> View:
    return View(orders, "nobody")


def press(view: View, samples: list[PoolSample], *keys: str) -> None:
    for key in keys:
        view.press(key, samples)


def text(view: View, samples: list[PoolSample], width: int = 120, height: int = 40) -> list[str]:
    return [click.unstyle(line) for line in view.lines(samples, width, height)]


def slots(view: View, samples: list[PoolSample]) -> list[tuple[str, int]]:
    return [(sample.pool.name, row.slot) for sample in view.shown(samples) for row in sample.rows]


def test_nothing_is_ordered_before_a_yes(view: View, samples: list[PoolSample], orders: Orders) -> None:
    press(view, samples, "down", "c")
    assert text(view, samples)[-1].startswith("cancel job 0123456789abcdef (render) of main, slot 0, child ")
    press(view, samples, "n")
    assert (orders, view.said) == ([], "nothing was done")
    press(view, samples, "c", "y")
    assert orders == [("main", "cancel", 0)]
    assert text(view, samples)[-1] == "done"


def test_what_was_asked_is_ordered_whatever_has_moved_there_meanwhile(
    view: View, samples: list[PoolSample], orders: Orders
) -> None:
    press(view, samples, "down", "down", "x", "escape", "up", "x")
    press(view, samples[1:], "y")
    assert orders == [("main", "restart", 0)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param(["c"], "choose a slot first", id="none chosen"),
        pytest.param(["down", "down", "c"], "slot 1 runs no job", id="idle"),
    ],
)
def test_an_order_that_has_no_object_is_not_asked_about(
    view: View, samples: list[PoolSample], keys: list[str], said: str
) -> None:
    press(view, samples, *keys)
    assert view.asked is None
    assert view.said.startswith(said)


def test_a_stack_takes_the_screen_and_scrolls(view: View, samples: list[PoolSample], orders: Orders) -> None:
    orders.answer = "\n".join(f"line {number}\x07" for number in range(30))
    press(view, samples, "down", "s", "y")
    shown = text(view, samples, height=10)
    assert shown[0].startswith("stack of child")
    assert shown[1:] == [f"line {number}\\u0007" for number in range(9)]
    assert text(view, samples, width=4, height=10)[1:5] == ["line", " 0\\u", "0007", "line"]
    press(view, samples, *["down"] * 50)
    assert text(view, samples, height=10)[-1] == "line 29\\u0007"
    press(view, samples, "q")
    assert "SLOT" in "".join(text(view, samples))
    assert not view.left


def test_slots_are_sorted_and_filtered_within_their_pools(view: View, samples: list[PoolSample]) -> None:
    assert slots(view, samples) == [("main", 0), ("main", 1), ("other", 0), ("other", 1)]
    press(view, samples, *"ooo")
    assert view.sort == "memory"
    assert slots(view, samples)[:2] == [("main", 1), ("main", 0)]
    press(view, samples, "/", *"MAIN render", "back", "enter")
    assert slots(view, samples) == [("main", 0)]
    assert "/ filter: MAIN rende" in text(view, samples)[-1]
    press(view, samples, "/", "escape", "/", *"idle", "enter")
    assert slots(view, samples) == [("main", 1), ("other", 1)]
    assert "  1/2 busy  " in text(view, samples)[1], "the headline is of the pool, not of what passes"
    press(view, samples, "/", *"zzz", "enter")
    assert text(view, samples)[0] == "no slot passes the filter"
    press(view, samples, "escape")
    assert len(slots(view, samples)) == 4


def test_what_is_typed_into_the_filter_is_no_key(view: View, samples: list[PoolSample]) -> None:
    press(view, samples, "/", "q", "x")
    assert (view.left, view.terms) == (False, "qx")
    press(view, samples, "escape", "q")
    assert (view.left, view.terms) == (True, "")


def test_the_chosen_slot_is_in_sight_where_there_is_little_room(tmp_path: Path, view: View) -> None:
    _, board = publish(tmp_path, slots=40)
    with board, Watcher(partial(discover, tmp_path), lambda: NOW) as watcher:
        for index in range(2, 40):
            board.slot(index).master.write(state="idle", pid=1)
        samples = watcher.sample()
    for _ in range(30):
        press(view, samples, "down")
        lines = text(view, samples, 80, 12)
        assert len(lines) == 12
        assert sum(line.startswith(">") for line in lines) == 1


def test_many_pools_in_a_small_window_leave_the_chosen_one_its_slots(tmp_path: Path, view: View) -> None:
    boards = [publish(tmp_path, f"pool{number:02}")[1] for number in range(20)]
    with Watcher(partial(discover, tmp_path), lambda: NOW) as watcher:
        samples = watcher.sample()
    press(view, samples, *["down"] * 13)
    lines = text(view, samples, 80, 12)
    assert len(lines) == 12
    assert lines[0].startswith("pool06  pid")
    assert any(line.startswith(">  0") for line in lines)
    for board in boards:
        board.close()


def test_queues_are_shown_with_depth_age_and_rate(tmp_path: Path, view: View) -> None:
    now, depth = NOW, QueueDepth("reports", 1200, 3, 0, NOW - 61, 5)
    _, board = publish(tmp_path, depths=depth.line() + QueueDepth("mail", 0, 0, 2, None, 0).line())
    with board, Watcher(partial(discover, tmp_path), lambda: now) as watcher:
        watcher.sample()
        now += 2.0
        board.header.write(depths=QueueDepth("reports", 1200, 3, 0, NOW - 61, 25).line() + "a torn line")
        samples = watcher.sample()
    assert [(row.queue, row.waiting, row.oldest, row.rate) for row in samples[0].queues] == [
        ("reports", 1200, 63.0, 10.0)
    ]
    assert text(view, samples)[2] == "reports: 1,200 waiting, oldest 1m03s, 3 delayed, 10.0/s"


def written(picture: Picture, shown: pyte.Screen, lines: list[str], size: tuple[int, int]) -> int:
    """Bring the lines to the terminal; the bytes that it took."""
    terminal, total = pyte.Stream(shown), 0
    while data := picture.change(lines, size):
        assert len(data.encode()) <= MAX_FRAME_BYTES
        terminal.feed(data)
        total += len(data.encode())
    assert [line.rstrip() for line in shown.display] == [click.unstyle(line).rstrip() for line in lines]
    return total


def test_only_what_has_changed_is_written_in_parts_that_are_small(tmp_path: Path, view: View) -> None:
    size, now = (160, 60), NOW + 0.2
    _, board = publish(tmp_path, slots=60)
    picture, shown = Picture(), pyte.Screen(*size)
    with board, Watcher(partial(discover, tmp_path), lambda: now) as watcher:
        for index in range(50):
            board.slot(index).child.booting(index + 1, NOW - 500)
            board.slot(index).child.took(7, NOW - 100)
            board.slot(index).child.started(NOW + 570, f"{index:016x}", "reports", "render", 2, "nightly")
            board.slot(index).master.write(state="busy", pid=index + 1, since=NOW - 3)
        watcher.sample()
        now += 0.1
        first = written(picture, shown, view.lines(watcher.sample(), *size), size)
        assert first > MAX_FRAME_BYTES
        now += 0.1
        assert written(picture, shown, view.lines(watcher.sample(), *size), size) == 0
        now += 1.0
        second = written(picture, shown, view.lines(watcher.sample(), *size), size)
        assert 0 < second < first / 6
        view.terms = "000a"
        written(picture, shown, view.lines(watcher.sample(), *size), size)
    small = (60, 10)
    written(picture, pyte.Screen(*small), view.lines([], *small), small)


def test_a_very_wide_terminal_is_written_too() -> None:
    lines, size = [f"line {number}" for number in range(50)], (1000, 50)
    written(Picture(), pyte.Screen(*size), lines, size)


def test_lines_with_wide_characters_are_written_whole() -> None:
    picture = Picture()
    picture.change(["age 1 日本"], (20, 1))
    assert picture.change(["age 2 日本"], (20, 1)) == "\x1b[1;1Hage 2 日本\x1b[K"


def test_keys_that_come_in_halves_are_put_together() -> None:
    reading, writing = os.pipe()
    keyboard = Keyboard(reading)
    for data, keys in [(b"j\x1b", ["j"]), (b"[", []), (b"Bk\x1b[5~", ["down", "k", "\x1b[5~"]), (b"\x1b", [])]:
        os.write(writing, data)
        assert keyboard.read(1.0) == keys
    assert keyboard.read(0.0) == ["escape"]
    os.close(writing)
    assert keyboard.read(1.0) == ["end"]
    os.close(reading)
