from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
import pytest
from face_boards import NOW, a_pool, publish

from jobpool.cli.top_lines import cells, headline
from jobpool.cli.top_screen import View
from jobpool.ops.runtime_dir import discover, note_path, register, unregister
from jobpool.ops.top import PoolSample, Watcher


def sample(directory: Path, now: float = NOW) -> list[PoolSample]:
    with Watcher(partial(discover, directory), lambda: now) as watcher:
        return watcher.sample()


def shown(samples: list[PoolSample], width: int = 160, height: int = 40) -> str:
    return click.unstyle("\n".join(View(lambda *_: "", "nobody here").lines(samples, width, height)))


def test_a_busy_slot_shows_its_job_and_an_idle_one_its_totals(tmp_path: Path) -> None:
    _, board = publish(tmp_path)
    with board:
        [pool] = sample(tmp_path)
        [later] = sample(tmp_path, NOW + 58)
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
            busy, idle = sample(tmp_path)[0].rows
            assert (busy.state, busy.pid, busy.job, idle.state) == (state, pid, "", "dying")


def test_the_last_death_of_a_slot_is_shown_until_something_runs_in_it(tmp_path: Path) -> None:
    death = "killed by SIGSEGV (itself); peak memory 31 MiB"
    _, board = publish(tmp_path)
    with board:
        for index in (0, 1):
            board.slot(index).master.write(last_death=death)
        [pool] = sample(tmp_path)
        board.slot(0).child.progress(0.0, "")
        [silent] = sample(tmp_path)
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
        [pool] = sample(tmp_path, NOW + 20)
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
            text = shown(watcher.sample())
            assert text.index("first  pid") < text.index("second  pid")
            assert text.count("render") >= 2
            unregister(note_path(tmp_path, "first", os.getpid()))
            assert [found.pool.name for found in watcher.sample()] == ["second"]


def test_a_pool_without_a_readable_board_says_so(tmp_path: Path) -> None:
    register(tmp_path, a_pool(tmp_path))
    [pool] = sample(tmp_path)
    assert "its scoreboard cannot be read" in headline(pool)
    assert "its scoreboard cannot be read" in shown([pool])


@pytest.mark.parametrize(("width", "height"), [(40, 6), (80, 24), (200, 50)])
def test_it_fits_every_window(tmp_path: Path, width: int, height: int) -> None:
    _, board = publish(tmp_path, slots=30)
    with board:
        for index in range(2, 30):
            board.slot(index).master.write(state="idle", pid=1)
        text = shown(sample(tmp_path), width, height)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert ("more slots" in text) is (height < 30)
    assert all(title in text for title in ("SLOT", "STATE", "HANDLER", "AGE"))


@pytest.mark.parametrize("ident", ["0123456789abcdef", "0198f1c2-6a0b-7c3d-8e4f-1234567890ab"])
def test_eighty_columns_show_name_and_progress_and_an_id_whole_or_not_at_all(tmp_path: Path, ident: str) -> None:
    _, board = publish(tmp_path)
    with board:
        board.slot(0).child.started(8, NOW - 3, NOW + 57, ident, "reports", "render", 2, "nightly")
        board.slot(0).child.progress(0.4, "rendering")
        pools = sample(tmp_path)
    for width in range(40, 200):
        row = next(line for line in shown(pools, width).splitlines() if line.startswith("   0 "))
        assert ident in row or ident[:4] not in row, width
        assert len(row.rstrip()) <= width
        if width >= 80:
            assert "render" in row, width
            assert "nightly" in row, width
            assert "40% rendering" in row, width
    assert ident in row


def test_no_pool_is_said_so() -> None:
    assert "nobody here" in shown([])
