"""What a beanstalkd can lose or refuses: each thing one sentence; and a server that is too old."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import BeanstalkServer, fresh_name
from support.tables import row

from jobpool.broker.finding import Level, cautions_of
from jobpool.clock import SystemClock
from jobpool.errors import ConfigurationError
from jobpool_backends.beanstalk.address import read_address
from jobpool_backends.beanstalk.checks import ROOMY_JOB_BYTES, diagnose, judge, require_version
from jobpool_backends.beanstalk.connection import Stats
from jobpool_backends.beanstalk.connections import Connections

GOOD: Stats = {
    "version": "1.12",
    "uptime": 200_000,
    "current-connections": 3,
    "binlog-current-index": 1,
    "draining": "false",
    "max-job-size": ROOMY_JOB_BYTES,
}


def test_what_a_server_says_of_itself() -> None:
    cases: list[tuple[str, Stats, str, Level, str]] = [
        ("well", {}, "server", Level.OK, "beanstalkd 1.12, up for 2 days; connections: 3"),
        ("just started", {"uptime": 59}, "server", Level.OK, "up for 59 s"),
        ("for hours", {"uptime": 7300}, "server", Level.OK, "up for 2 hours"),
        ("a binlog", {}, "persistence", Level.NOTE, "50 ms of it, or as -f says"),
        (
            "no binlog",
            {"binlog-current-index": 0},
            "persistence",
            Level.PROBLEM,
            "no binlog: a crash or restart of the server loses every message; start it with -b",
        ),
        ("open", {}, "drain-mode", Level.OK, "takes new messages"),
        (
            "draining",
            {"draining": "true"},
            "drain-mode",
            Level.PROBLEM,
            "in drain mode: it takes no new messages, and so no retries.*; restart it",
        ),
        ("large enough", {}, "job-size", Level.OK, "up to 1,114,112 bytes"),
        (
            "as it is built",
            {"max-job-size": 65_535},
            "job-size",
            Level.NOTE,
            "up to 65,535 bytes .*: larger ones are refused when they are enqueued.* -z 1114112",
        ),
    ]
    for case, told, check, level, said in cases:
        [finding] = [finding for finding in judge({**GOOD, **told}) if finding.check == f"beanstalk.{check}"]
        assert finding.level is level, case
        assert re.search(said, str(finding)), str(finding)


def test_a_server_that_says_nothing_is_told_too() -> None:
    assert [finding.level for finding in judge({})] == [Level.OK, Level.PROBLEM, Level.OK, Level.NOTE]


def test_a_server_that_is_too_old_is_refused() -> None:
    for version in ("1.12", "1.13", "1.12+7+gabc", "2.0", "unknown"):
        require_version("beanstalkd at here", {"version": version})
    for version in ("1.11", "1.4.6", "1.10+3"):
        text = f"beanstalkd at here is version {version}, and jobpool needs beanstalkd 1.12 or later: upgrade it"
        with row(version), pytest.raises(ConfigurationError, match=re.escape(text)):
            require_version("beanstalkd at here", {"version": version})


# --- on real servers ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeanstalkServer]:
    with BeanstalkServer(tmp_path_factory.mktemp("beanstalkd"), binlog=True) as server:
        yield server


def lines_to(server: BeanstalkServer) -> Connections:
    return Connections(read_address(server.url, {"tube_prefix": fresh_name()}), SystemClock())


def test_a_server_with_a_binlog_gives_no_caution(server: BeanstalkServer) -> None:
    connections = lines_to(server)
    found = diagnose(connections)
    connections.close()
    assert cautions_of(found) == []
    assert all(finding.found.startswith(f"beanstalkd at 127.0.0.1:{server.port}: ") for finding in found)
    assert "up for" in found[0].found


def test_a_server_that_forgets_and_takes_nothing_is_told(tmp_path: Path) -> None:
    with BeanstalkServer(tmp_path, max_job_size=1000) as server:
        server.drain()
        connections = lines_to(server)
        forgets, drains = cautions_of(diagnose(connections))
        connections.close()
    assert "no binlog" in forgets
    assert "drain mode" in drains


def test_a_tube_that_is_paused_is_told_and_those_of_others_are_not(server: BeanstalkServer) -> None:
    connections = lines_to(server)
    with server.client(connections.address.tube("mails")) as client, server.client("others") as other:
        client.pause_tube(connections.address.tube("mails"), 7_300)
        other.pause_tube("others", 60)
        [caution] = cautions_of(diagnose(connections))
        assert f": paused: {connections.address.tube('mails')} for 2 hours: nothing is fetched" in caution
        client.pause_tube(connections.address.tube("mails"), 0)
        assert cautions_of(diagnose(connections)) == []
    connections.close()
