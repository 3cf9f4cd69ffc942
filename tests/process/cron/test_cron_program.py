"""`jobpool cron run` as a program, and a scheduler beside a pool: what they fire, and when they are told secrets."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.descriptors import no_more_descriptors
from support.waiting import wait_until

from jobpool.broker.opening import open_backend
from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scheduler_process import CronStart, SchedulerProcess

APP = """
import jobpool

scheduler = jobpool.Scheduler()

@jobpool.handler
def note(ctx):
    with open("inline", "a") as file:
        file.write(ctx.meta["scheduled_for"] + "\\n")

scheduler.define("note").every_minute()
scheduler.define("report").queue("reports").every_minute()
scheduler.define("noet").queue("default").every_minute()
"""


def start(folder: Path, number: int) -> subprocess.Popen[bytes]:
    words = ["cron", "run", "--app", "the_app.py", "--log-format", "json", "--name", f"cron{number}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
    with (folder / f"log{number}").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "jobpool", *words], cwd=folder, env=kept, stdout=log, stderr=log)


def said(folder: Path, number: int) -> list[dict[str, object]]:
    lines = (folder / f"log{number}").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_two_programs_fire_each_minute_once_and_end_with_0(tmp_path: Path) -> None:
    (tmp_path / "the_app.py").write_text(APP)
    programs = [start(tmp_path, which) for which in range(2)]
    try:
        for which in range(2):
            wait_until(
                lambda which=which: "cron is ready" in [line["event"] for line in said(tmp_path, which)],  # type: ignore[misc]
                30.0,
                "both are ready",
            )
        [warning] = [line for line in said(tmp_path, 0) if line["event"] == "jobs of a schedule cannot run"]
        assert (warning["schedule"], warning["why"]) == ("noet", "the app has no handler 'noet'; did you mean 'note'?")
        for program in programs:
            program.send_signal(signal.SIGTERM)
        assert [program.wait(10.0) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    fired = [line for which in range(2) for line in said(tmp_path, which) if line["event"] == "schedule fired"]
    instants = {str(line["at"]) for line in fired}
    assert len(fired) == 3 * len(instants), "each of the three schedules, each minute, by one of them"
    assert all(isinstance(line["lateness"], float) for line in fired)
    assert set((tmp_path / "inline").read_text().split()) == instants
    with closing(open_backend(f"sqlite:///{tmp_path}/jobpool.db")) as backend:
        assert backend.stats("reports").waiting == len(instants)


DAILY = """
import jobpool

jobpool.Scheduler().define("count").queue("q").daily()

@jobpool.handler("count")
def count(): ...
"""
SECRETS = "the-key-of-all", "the-password"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[SchedulerProcess]:
    (tmp_path / "app.py").write_text(DAILY)
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
