"""What is looked at before a pool starts, and the line that shows how far it is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from face_boards import NOW, header, publish
from face_boards import a_pool as a_note
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool.cli import progress
from jobpool.cli.progress import bar, done, expected, live_summary, logged_summary, progress_bar, summary
from jobpool.cli.session import check_apps, search_path
from jobpool.errors import AccessRefused, ConfigurationError
from jobpool.ipc.board_layout import QueueDepth
from jobpool.ops.top import Watcher
from jobpool.settings import Settings
from jobpool.telemetry.logs import LineHandler, fields_of


def a_pool(tmp_path: Path, *apps: str) -> Settings:
    url = f"sqlite:///{tmp_path}/jobpool.db"
    return Settings(queues=(("default", 1.0),), backend=url, apps=apps, sys_path=(str(tmp_path),))


def test_modules_and_files_of_apps_are_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "jobs.py").write_text("raise SystemExit('never imported here')")
    pool = check_apps(a_pool(tmp_path, "jobs", "shop.jobs", "jobs.py", "json"))
    assert pool.apps == ("jobs", "shop.jobs", f"{tmp_path}/jobs.py", "json")


def test_a_path_written_like_a_module_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(ConfigurationError, match=r"cannot be found: .*; for a file write --app mine\.py"):
        check_apps(a_pool(tmp_path, "mine"))


def test_apps_are_looked_for_here_and_beside_the_configuration(tmp_path: Path) -> None:
    assert search_path(tmp_path) == (str(tmp_path),)
    assert search_path(tmp_path / "etc") == (str(tmp_path), str(tmp_path / "etc"))


def test_the_bar_counts_what_is_to_do_in_the_queues_of_the_pool(tmp_path: Path) -> None:
    from jobpool.message.definition import JobDefinition

    backend = open_backend(f"sqlite:///{tmp_path}/jobpool.db")
    backend.enqueue_many([JobDefinition("a"), JobDefinition("b"), JobDefinition("c", queue="other")])
    backend.close()
    pool = a_pool(tmp_path)
    assert expected(pool, ["default"], 5) == 7
    assert expected(pool, [], 0) is None, "the app names the queues, and is being imported"
    assert expected(replace(pool, max_total=6, until_empty=True), ["default", "other"], 5) == 6
    assert expected(replace(pool, max_total=6), [], 5) == 6
    assert expected(replace(pool, backend="redis://127.0.0.1:1"), ["default"], 5) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobpool.cli.progress.open_backend", Mock(side_effect=AccessRefused("password")))
        assert expected(pool, ["default"], 5) is None


def test_the_bar_tells_how_far_how_fast_and_what_went_wrong() -> None:
    for fields, total, seconds, line in [
        ({}, 10, 0.0, "░" * 30 + " 0/10  0 jobs/s"),
        ({"succeeded": 5}, 10, 2.0, "█" * 15 + "░" * 15 + " 5/10  2 jobs/s  2.0s left"),
        (
            {"succeeded": 8, "dead": 2, "requeued": 3, "timed_out": 1, "crashed": 4},
            10,
            5.0,
            "█" * 30 + " 10/10  2 jobs/s  3 retried  1 timed out  4 crashed  2 dead",
        ),
        ({"succeeded": 12}, 10, 1.0, "█" * 30 + " 12/12  12 jobs/s"),
        ({}, 0, 1.0, "█" * 30 + " 0/0  0 jobs/s"),
    ]:
        assert bar(header(**fields), total, seconds) == line, (fields, total)


def test_the_bar_ends_with_the_last_word_and_the_summary_is_wiped(tmp_path: Path) -> None:
    stream = io.StringIO()
    note, board = publish(tmp_path, waiting=7, requeued=3)
    with board:
        with progress_bar(note, lambda _: 4, LineHandler(stream)):
            board.header.write(succeeded=4)
        assert " 4/4 " in stream.getvalue()
        assert stream.getvalue().endswith("\n")
        lines = LineHandler(stream)
        with live_summary(note, lines):
            wait_until(lambda: "1/2 busy  7 waiting  4 ended  3 retried" in stream.getvalue())
    assert stream.getvalue().endswith("\r\x1b[K")


def test_the_summary_leaves_out_what_is_not_known_yet(tmp_path: Path) -> None:
    now = NOW
    note, board = publish(tmp_path, workers=0, ready=0, loop_at=0.0)

    def shown(of: Watcher | None = None) -> str:
        [sample] = (of or watcher).sample()
        assert sample.header is not None
        return summary(sample, sample.header)

    with board, Watcher(lambda: [note], now=lambda: now) as watcher:
        assert shown() == ""
        board.header.write(workers=2, loop_at=NOW)
        now += 1.0
        assert shown() == "1/2 busy  0 ended"
        board.header.write(depths=QueueDepth("reports", 0, 0, 0, None, 0).line())
        assert shown() == "1/2 busy  0 waiting  0 ended"
        with Watcher(lambda: [note]) as anew:
            assert shown(anew) == "1/2 busy  0 waiting  0 ended"
        board.header.write(depths=QueueDepth("reports", 0, 3, 0, None, 0).line())
        assert shown() == "1/2 busy  0 waiting  3 delayed  0 ended"


def test_elsewhere_a_line_of_the_log_tells_while_jobs_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note, board = publish(tmp_path, waiting=7, succeeded=2)
    with board, caplog.at_level("INFO", "jobpool.pool"), logged_summary(note, 0.01):
        wait_until(lambda: len(caplog.records) > 2)  # one slot is busy
        board.slot(0).child.finished(True, 0.0)
        board.header.write(succeeded=3)
        wait_until(lambda: [fields_of(record)["done"] for record in caplog.records][-1] == 3)
        told = len(caplog.records)
        board.header.write(succeeded=4)
        wait_until(lambda: len(caplog.records) > told)
    fields = [fields_of(record) for record in caplog.records]
    assert (fields[0]["busy"], fields[0]["waiting"], fields[0]["done"]) == (1, 7, 2)
    assert [one["done"] for one in fields if not one["busy"]] == [3, 4]
    assert [isinstance(rate := one["jobs_per_second"], float) and rate > 0.0 for one in fields if not one["busy"]] == [
        True,
        True,
    ]


@pytest.mark.parametrize("awaits_delayed", [True, False])
def test_a_pool_that_ends_by_itself_tells_that_it_waits_for_delayed_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, awaits_delayed: bool
) -> None:
    note, board = publish(tmp_path, depths=QueueDepth("reports", 0, 3, 0, None, 0).line())
    looks: list[int] = []
    monkeypatch.setattr(progress, "done", lambda header: looks.append(done(header)) or looks[-1])
    with board:
        board.slot(0).child.finished(True, 0.0)
        with caplog.at_level("INFO", "jobpool.pool"), logged_summary(note, 0.01, awaits_delayed=awaits_delayed):
            wait_until(lambda: len(looks) >= 3)
            board.header.write(succeeded=1)
            wait_until(lambda: any(fields_of(record)["done"] for record in caplog.records))
    fields = [fields_of(record) for record in caplog.records]
    assert {(one["busy"], one["delayed"]) for one in fields} == {(0, 3)}
    assert bool([one for one in fields if not one["done"]]) == awaits_delayed


def test_progress_without_a_board_says_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    with progress_bar(a_note(tmp_path), lambda _: 4, LineHandler(stream)):
        pass
    assert stream.getvalue() == ""
