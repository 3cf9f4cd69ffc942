"""What probes and systemd are told of a pool, by what the scoreboard shows."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from face_boards import NOW, a_pool, header, publish

from jobpool.cli.service_manager import COUNTS_EVERY_S, Manager, Report, take_manager
from jobpool.ipc.board_layout import STOPS
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


STARTING: dict[str, Any] = {"ready": 0}
HANGING = {"loop_at": NOW - 60}
CHILDLESS = {"ready": 0}
BROKER_AWAY = {"broker_ok_at": NOW - 60}
DRAINED = {"draining": 1}
DRAINING = {"draining": STOPS, "ready": 0}
BOOT_LOOP = {"ready": 1, "boot_failures": 5}
RELOADING = {"reloading": 1}


def told(*looks: dict[str, Any]) -> list[list[str]]:
    """The messages of each look, without the lines of status and of time."""
    report = Report()
    messages = [report.next(header(**look), NOW) for look in looks]
    return [[line for line in lines if not line.startswith(("STATUS=", "MONOTONIC_"))] for lines in messages]


FED = "WATCHDOG=1"


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        pytest.param([STARTING], [FED], id="starting"),
        pytest.param([HANGING], [], id="hangs before it was ready"),
        pytest.param([STARTING, {}], ["READY=1", FED], id="first child"),
        pytest.param([{}, {}], [FED], id="well"),
        pytest.param([{}, HANGING], [], id="loop hangs"),
        pytest.param([{}, CHILDLESS], [], id="no child"),
        pytest.param([{}, BROKER_AWAY], [], id="broker away"),
        pytest.param([{}, BOOT_LOOP], [FED], id="some children run, and others do not boot"),
        pytest.param([{}, BOOT_LOOP | CHILDLESS], [], id="no child boots"),
        pytest.param([{}, BROKER_AWAY, {}], [FED], id="broker back"),
        pytest.param([{}, RELOADING], ["RELOADING=1", FED], id="reload"),
        pytest.param([{}, RELOADING, RELOADING], [FED], id="reload goes on"),
        pytest.param([{}, RELOADING, {}], ["READY=1", FED], id="reloaded"),
        pytest.param([{}, DRAINED], [FED], id="drained by a person, who may resume it"),
        pytest.param([{}, DRAINED, RELOADING], ["RELOADING=1", FED], id="reload after that"),
        pytest.param([{}, DRAINING], ["STOPPING=1", FED], id="stop"),
        pytest.param([{}, RELOADING, DRAINING, DRAINING], [FED], id="stops on"),
        pytest.param([{}, DRAINING, DRAINING | HANGING], [], id="hangs at its stop"),
        pytest.param([{}, DRAINED, DRAINING], ["STOPPING=1", FED], id="drained and stopped"),
    ],
)
def test_messages(looks: list[dict[str, Any]], last: list[str]) -> None:
    assert told(*looks)[-1] == last


def test_the_status_is_told_at_a_change_and_else_from_time_to_time() -> None:
    report = Report()
    [_, first, *_] = report.next(header(), NOW)
    assert first == "STATUS=ready: 2 of 2 children ready; 0 waiting, 0 ended"
    assert report.next(header(waiting=1200), NOW + 1) == [FED]
    later = NOW + COUNTS_EVERY_S
    alive = {"loop_at": later, "broker_ok_at": later}
    assert report.next(header(waiting=1200, **alive), later)[0].endswith("; 1,200 waiting, 0 ended")
    assert "STATUS=not ready: 0 of 2" in report.next(header(ready=0, **alive), later)[0]


def test_a_trouble_of_several_lines_is_no_message_of_its_own() -> None:
    lines = Report().next(header(ready=0, problem="the app fails\nSTOPPING=1"), NOW)
    assert any("the app fails" in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_the_variables_of_the_manager_are_taken_from_the_environment() -> None:
    for variables, found in [
        ({}, None),
        ({"NOTIFY_SOCKET": "/run/n"}, Manager("/run/n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "2500000"}, Manager("@n", 2.5)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, Manager("/n", 2.0)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, Manager("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, Manager("/n")),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, None),
    ]:
        environment = {"HOME": "/", **variables}
        assert take_manager(environment) == found, variables
        assert environment == {"HOME": "/"}, variables


def test_a_manager_that_has_gone_or_does_not_read_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Manager(str(tmp_path / "gone")).send(["READY=1"])
    with monkeypatch.context() as here:
        here.setattr(socket, "socket", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is left")))
        Manager(str(tmp_path / "gone")).send(["READY=1"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.bind(str(tmp_path / "full"))
        for _ in range(2000):
            Manager(str(tmp_path / "full")).send(["WATCHDOG=1"])
        assert full.recv(100) == b"WATCHDOG=1"
