"""`jobpool cron run` as a program: two of them fire what is due once, and end at once when they are told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from support.waiting import wait_until

from jobpool.broker.opening import open_backend

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
        return subprocess.Popen(
            [sys.executable, "-m", "jobpool.cli.main", *words], cwd=folder, env=kept, stdout=log, stderr=log
        )


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
