from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from face_boards import NOW, a_pool, header, publish

from jobpool.ops.health import examine, look
from jobpool.telemetry.metrics.pages import BROKER_REFUSES, BROKER_SILENT


def failing(tmp_path: Path, **changes: Any) -> list[tuple[str, str]]:
    checks = examine(header(**changes), a_pool(tmp_path), NOW)
    assert [check.name for check in checks] == ["loop", "children", "broker", "reaper", "boot"]
    return [(check.name, check.text) for check in checks if not check.ok]


def test_a_well_pool_passes_every_check(tmp_path: Path) -> None:
    assert failing(tmp_path) == []


def test_each_check_fails_alone_and_says_why(tmp_path: Path) -> None:
    for changes, name, text in [
        ({"loop_at": NOW - 12}, "loop", "has not turned its loop for 12s"),
        ({"ready": 0}, "children", "0 of 2 children ready"),
        ({"ready": 0, "problem": "no module named x"}, "children", "0 of 2 children ready: no module named x"),
        ({"broker_ok_at": NOW - 6.1}, "broker", "sqlite:///x.db last answered well 6.1s ago; it is asked every 2.0s"),
        ({"problem": f"{BROKER_REFUSES}the disk is full"}, "broker", "the broker refuses: the disk is full"),
        ({"reaped_at": NOW - 31}, "reaper", "the reaper last ran 31s ago; it is due every 10s"),
        ({"boot_failures": 5, "problem": "import error"}, "boot", "5 children in a row could not boot: import error"),
    ]:
        [(failed, why)] = failing(tmp_path, **cast(dict[str, Any], changes))
        assert (failed, text in why) == (name, True), (changes, why)


def test_just_inside_its_limit_a_check_passes(tmp_path: Path) -> None:
    inside = {"loop_at": NOW - 5, "ready": 1, "broker_ok_at": NOW - 6, "reaped_at": NOW - 30, "boot_failures": 4}
    for name, value in inside.items():
        assert failing(tmp_path, **{name: value}) == [], name


def test_a_worry_is_said_though_children_are_ready(tmp_path: Path) -> None:
    checks = examine(header(problem="the new schedules are refused"), a_pool(tmp_path), NOW)
    assert all(check.ok for check in checks)
    assert "children ready; the new schedules are refused" in checks[1].text


def test_an_outage_is_told_beside_the_last_answer(tmp_path: Path) -> None:
    checks = examine(header(problem=BROKER_SILENT), a_pool(tmp_path), NOW)
    assert checks[1].text == "2 of 2 children ready"
    assert checks[2].text.endswith("ago; it does not answer now")


def test_a_young_pool_is_not_ill_for_what_has_not_come_yet_and_an_old_one_is(tmp_path: Path) -> None:
    assert failing(tmp_path, started=NOW - 3, loop_at=0.0, broker_ok_at=0.0, reaped_at=0.0) == []
    assert [name for name, _ in failing(tmp_path, broker_ok_at=0.0)] == ["broker"]


def test_look_reads_the_board(tmp_path: Path) -> None:
    pool, board = publish(tmp_path)
    with board:
        assert look(pool, NOW).ok
        assert not look(pool, NOW + 60).ok


def test_a_board_that_cannot_be_read_is_a_failed_check(tmp_path: Path) -> None:
    pool = a_pool(tmp_path)
    for told in ("is not there: the pool starts just now", "cannot be read"):
        health = look(pool, NOW)
        assert [(check.name, told in check.text) for check in health.checks] == [("scoreboard", True)]
        Path(pool.board).touch()  # empty
        assert not health.ok
