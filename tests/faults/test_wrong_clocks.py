"""Three `jobpool cron run`; one machine is an hour ahead and one an hour behind: the broker's clock decides.

The schedule's record says that the last minutes were missed, so that there is something to fire at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.poolrig import Rig
from support.waiting import wait_until, whole_lines

from jobpool.cron.records import SPACE, Record
from jobpool_torture.clocks import PoolClock, clear

HOUR = 3600.0
MINUTE, MISSED = timedelta(minutes=1), timedelta(minutes=5)
LIMIT = 90.0

APP = """
import jobpool

scheduler = jobpool.Scheduler()
scheduler.define("work").named("each-minute").queue("default").every_minute().misfire("all(1000)")
"""


class Program:
    """One of them, on a machine whose clock is so many seconds ahead."""

    def __init__(self, rig: Rig, number: int, ahead: float) -> None:
        self.folder = rig.directory / f"machine{number}"
        self.folder.mkdir()
        (self.folder / "the_app.py").write_text(APP)
        self.clock = PoolClock(self.folder / "clock")
        self.clock.shift(ahead)
        words = ["cron", "run", "-b", rig.url, "--app", "the_app.py", "--log-format", "json", "--name", f"cron{number}"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobpool", *words],
                cwd=self.folder,
                env=self.clock.environment(kept),
                stdout=log,
                stderr=log,
            )

    def said(self, event: str) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in whole_lines(self.folder / "log") if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]

    def hours_ahead(self) -> int:
        """By the times that it writes into its log."""
        last = datetime.fromisoformat(self.said("cron is ready")[-1]["time"])
        return round((last - datetime.now(UTC)).total_seconds() / HOUR)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(LIMIT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        clear(self.process.pid)


@contextmanager
def three_programs(rig: Rig) -> Iterator[list[Program]]:
    """A right one, and two whose clocks are wrong; all of them are ready."""
    with ExitStack() as stack:
        programs = []
        for number, ahead in enumerate((0.0, HOUR, -HOUR)):
            programs.append(Program(rig, number, ahead))
            stack.callback(programs[-1].end)
        for program in programs:
            wait_until(lambda program=program: program.said("cron is ready"), LIMIT, "it is ready")  # type: ignore[misc]
        yield programs


def fired_by(programs: list[Program]) -> list[str]:
    return [str(entry["at"]) for program in programs for entry in program.said("schedule fired")]


@pytest.mark.more
@pytest.mark.row(29)
@pytest.mark.on("redis", "postgres")
def test_programs_on_wrong_clocks_fire_by_the_brokers(rig: Rig) -> None:
    """Each minute of the broker's once, and none of theirs. POOLTEST_FULL=1: over two minutes, and clocks that jump."""
    begun = datetime.now(UTC)
    seen = begun - MISSED
    rig.backend.keys.put_records(SPACE, {"each-minute": msgspec.json.encode(Record(seen))}, HOUR)
    with three_programs(rig) as programs:
        assert [program.hours_ahead() for program in programs] == [0, 1, -1]
        wait_until(lambda: len(fired_by(programs)) >= MISSED / MINUTE, LIMIT, "what was missed has fired")
        if os.environ.get("POOLTEST_FULL"):
            programs[1].clock.shift(-HOUR)
            programs[2].clock.shift(HOUR)
            later = len(fired_by(programs)) + 2
            wait_until(lambda: len(fired_by(programs)) >= later, 2 * LIMIT, "two minutes more")
        assert [program.stop() for program in programs] == [0, 0, 0]
        fired = fired_by(programs)
    ended = datetime.now(UTC)
    assert set(Counter(fired).values()) == {1}, "each minute by one of them"
    minutes = sorted(datetime.fromisoformat(instant) for instant in fired)
    assert seen < minutes[0] <= seen + MINUTE
    assert minutes == [minutes[0] + number * MINUTE for number in range(len(minutes))], "none is left out"
    assert begun - MINUTE < minutes[-1] <= ended
    assert rig.stats().waiting == len(fired)
