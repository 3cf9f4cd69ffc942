"""The I/O of schedulers: their records are logged anew, what the app prints is a line as it is; and their kill."""

from __future__ import annotations

import logging
import os
from typing import Any, cast

import pytest

from jobpool.ipc.linux import kill
from jobpool.ipc.scheduler_process import SchedulerProcess
from jobpool.master.scheduler import SchedulerStarter, _log_record


def test_a_record_is_logged_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    line = '{"time": "now", "level": "warning", "logger": "jobpool.cron", "event": "100 % late", "schedule": "s"}'
    assert _log_record(line)
    [record] = caplog.records
    assert (record.levelno, record.name, record.getMessage()) == (logging.WARNING, "jobpool.cron", "100 % late")
    assert record.__dict__["fields"] == {"schedule": "s"}


@pytest.mark.parametrize(
    "line", ["[1, 2, 3]", "[]", "7", "null", '"level"', "{}", '{"level": "info"}', "text", "[" * 900]
)
def test_other_json_is_no_record(line: str) -> None:
    assert not _log_record(line)


@pytest.mark.parametrize("level", ['"basic_format"', '"handler"', '"loud"', "null", "[1]"])
def test_a_level_that_is_none_is_that_of_other_lines(level: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert _log_record(f'{{"level": {level}, "logger": "x", "event": "e"}}')
    assert caplog.records[0].levelno == logging.INFO


class Sweeper:
    """Sweeps, as `ChildProcesses` does, a subprocess that is spared no more."""

    def spare_no_more(self, pid: int) -> None:
        kill(pid)
        os.waitpid(pid, 0)


def test_schedulers_that_are_killed_are_collected_and_let_go_of() -> None:
    before = os.listdir("/proc/self/fd")
    process = SchedulerProcess(cast(Any, None), os.environ)  # waits to be told
    starter = SchedulerStarter(cast(Any, None), cast(Any, Sweeper()))
    starter._processes[process.pid] = process
    starter.kill()
    assert process.poll() is not None
    assert os.listdir("/proc/self/fd") == before
