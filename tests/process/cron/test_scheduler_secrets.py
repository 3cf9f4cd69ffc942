"""A scheduler beside a pool is told its secrets only when no job can read them from `/proc` any more."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.descriptors import no_more_descriptors

from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scheduler_process import CronStart, SchedulerProcess

APP = """
import jobpool

jobpool.Scheduler().define("count").queue("q").daily()

@jobpool.handler("count")
def count(): ...
"""
SECRETS = "the-key-of-all", "the-password"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[SchedulerProcess]:
    (tmp_path / "app.py").write_text(APP)
    options = ChildOptions(apps=["app"], sys_path=[str(tmp_path)])
    start = CronStart(f"sqlite:///{tmp_path}/jobs.db", options, (SECRETS[0],))
    process = SchedulerProcess(start, {**os.environ, "PGPASSWORD": SECRETS[1]})
    yield process
    process.signal(signal.SIGKILL)
    process._process.wait()
    process.close()


def has_spoken(process: SchedulerProcess, seconds: float) -> bool:
    return bool(select.select([process.line], [], [], seconds)[0])


def readable(process: SchedulerProcess) -> str:
    """What a process of the same user reads of it, before it is hidden."""
    found = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
    for fd in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += fd.read_text() if "memfd" in os.readlink(fd) else ""
    return found


def test_it_has_no_secret_until_its_memory_is_hidden(process: SchedulerProcess) -> None:
    give_up = time.monotonic() + 30.0
    while not has_spoken(process, 0.002) and time.monotonic() < give_up:
        found = readable(process)
        assert [secret for secret in SECRETS if secret in found] == []
    while not process.is_ready and time.monotonic() < give_up and process.hear():
        has_spoken(process, 1.0)
    assert process.is_ready, "then it is told"


def test_one_that_cannot_be_told_is_ended_and_says_why(process: SchedulerProcess) -> None:
    assert has_spoken(process, 30.0)
    with no_more_descriptors():
        assert process.hear()
    assert process._process.wait(30.0) == -signal.SIGKILL
    assert "Too many open files" in process.error


def test_its_death_before_it_has_read_its_options_is_its_end(process: SchedulerProcess) -> None:
    assert has_spoken(process, 30.0)
    process.signal(signal.SIGSTOP)
    assert process.hear(), "it is told"
    process.signal(signal.SIGKILL)
    process._process.wait()
    assert not process.hear()
