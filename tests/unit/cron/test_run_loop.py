"""`CronLoop`: it sleeps until something is due, waits broker outages out, says what it does, and ends at once."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from support.cronrig import START, CronRig, text, told
from support.waiting import wait_until

from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.service import MAX_RETRY_PAUSE_S, CronLoop, Stop, report
from jobpool.errors import AccessRefused, BackendUnavailable, JobpoolError
from jobpool.ipc.process_options import ChildOptions
from jobpool.message.guards import Rate
from jobpool.telemetry.logs import JsonFormatter, LineHandler


class Turning(Stop):
    """Turns the rig's clock in place of sleeping; ends at `until` seconds. `at`: what happens then, once each."""

    def __init__(self, rig: CronRig, until: float, **at: object) -> None:
        self.rig = rig
        self.until = until
        self.happen = {float(key.removeprefix("s")): what for key, what in at.items()}
        self.slept: list[float] = []

    def _now(self) -> float:
        return self.rig.clock.wall() - START.timestamp()

    def stopped(self) -> bool:
        return self._now() >= self.until

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.rig.clock.advance(seconds)
        for moment in [moment for moment in self.happen if moment <= self._now()]:
            what = self.happen.pop(moment)
            assert callable(what)
            what()


@pytest.fixture
def rig() -> CronRig:
    rig = CronRig()
    rig.scheduler.define("a").queue("reports").every_minute()
    return rig


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """With all that the scheduler logs."""
    caplog.set_level(logging.DEBUG, "jobpool.cron")
    return caplog


def test_each_minute_fires_when_it_begins(rig: CronRig) -> None:
    rig.clock.advance(20.0)
    brought: list[Firing] = []
    sleeper = Turning(rig, 200.0)
    CronLoop(rig.runner(), sleeper, brought.extend).run()
    assert told(brought) == [("a", number, "fired") for number in range(4)]
    assert [firing.lateness for firing in brought] == [20.0, 0.0, 0.0, 0.0]
    assert max(sleeper.slept) <= 1.0, "nobody tells when this machine's clock is set"


@pytest.mark.parametrize(
    "error", [BackendUnavailable("nobody there"), AccessRefused("the password was changed")], ids=type
)
def test_a_silent_broker_is_asked_with_a_growing_pause_and_then_it_goes_on(
    rig: CronRig, lines: pytest.LogCaptureFixture, error: JobpoolError
) -> None:
    rig.backend.error = error

    def silence(silent: bool) -> None:
        rig.backend.silent = silent

    sleeper = Turning(rig, 400.0, s30=lambda: silence(True), s200=lambda: silence(False))
    CronLoop(rig.runner(), sleeper, partial(report, options=ChildOptions())).run()
    assert rig.queued()[0] == ("a", text(0))
    assert {("a", text(number)) for number in (4, 5, 6)} <= set(rig.queued())
    assert len(rig.queued()) == len(set(rig.queued()))
    assert MAX_RETRY_PAUSE_S * 0.75 <= max(sleeper.slept) <= MAX_RETRY_PAUSE_S
    said = [record.getMessage() for record in lines.records if record.levelno > logging.DEBUG]
    assert said[0] == "schedule fired"
    assert said[1] == "cron is ready"
    assert said.count("firings wait for the broker") == said.count("the broker answers again") == 1
    assert "firings were missed" in said


def test_a_broker_that_refuses_at_the_start_ends_the_loop(rig: CronRig) -> None:
    rig.backend.error, rig.backend.silent = AccessRefused("a wrong password"), True
    with pytest.raises(AccessRefused):
        CronLoop(rig.runner(), Turning(rig, 30.0), len).run()


def test_what_has_to_wait_makes_nothing_else_late(rig: CronRig) -> None:
    """Another scheduler has taken the right to run b, and died: what depends on b waits for as long as the grace."""
    rig.scheduler.define("b").hourly()
    rig.scheduler.define("c").queue("other").depends_on("b").hourly()
    rig.backend.keys.take("cron", Rate(f"cron:b at {text(0)}", 1, 86400.0), "of one that is dead")
    brought: list[Firing] = []
    CronLoop(rig.runner(), Turning(rig, 900.0), brought.extend).run()
    assert [at for name, at, status in told(brought) if (name, status) == ("a", "fired")] == list(range(15))
    assert max(firing.lateness for firing in brought if firing.name == "a") < 0.01
    waited = [row for row in told(brought) if row[0] == "c"]
    assert set(waited) == {("c", 0, "later")}
    assert 25 < len(waited) < 60, "tried again, with a growing pause, and whenever something else is due"
    assert rig.ran == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_sleep_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop() as stop:
        os.kill(os.getpid(), number)
        began = time.monotonic()
        stop.sleep(30.0)
        assert stop.stopped()
        stop.sleep(30.0)
        assert time.monotonic() - began < 15.0
    assert signal.getsignal(number) is before


def test_another_thread_ends_it_too() -> None:
    with Stop() as stop:
        ended: list[bool] = []

        def wait() -> None:
            stop.sleep(30.0)
            ended.append(stop.stopped())

        thread = threading.Thread(target=wait)
        thread.start()
        stop.stop()
        wait_until(lambda: ended == [True], 10.0)
        thread.join()


def test_each_of_many_that_fail_at_once_is_named() -> None:
    stream = io.StringIO()
    handler = LineHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("jobpool.cron")
    log.addHandler(handler)
    try:
        for status in (FiringStatus.FAILED, FiringStatus.MISSED):
            report([Firing(f"nightly-{number}", START, status) for number in range(12)], ChildOptions())
    finally:
        log.removeHandler(handler)
    named = Counter(json.loads(line)["name"] for line in stream.getvalue().splitlines())
    assert named == {f"nightly-{number}": 2 for number in range(12)}


def test_a_run_that_fails_is_told_with_its_stack_and_what_it_printed(
    rig: CronRig, lines: pytest.LogCaptureFixture
) -> None:
    @rig.registry.handler
    def talk() -> None:
        print("password=hunter2 and the first line")
        print("the second")
        raise RuntimeError("no paper, token=hunter2")

    rig.scheduler.define("talk").every_minute()
    firings = [firing for firing in rig.runner().run() if firing.name == "talk"]
    with lines.at_level("INFO", "jobpool.job"):
        report(firings, ChildOptions(lines_level=logging.INFO))
        report(firings, ChildOptions())
    said = [record for record in lines.records if record.name == "jobpool.job"]
    assert [record.getMessage() for record in said] == ["password=*** and the first line", "the second"]
    assert {record.fields["schedule"] for record in said} == {"talk"}  # type: ignore[attr-defined]
    fields = lines.records[-1].fields  # type: ignore[attr-defined]
    assert fields["why"] == "RuntimeError: no paper, token=***"
    assert fields["stack"].endswith("\nRuntimeError: no paper, token=***")
    assert "hunter2" not in fields["stack"]
    assert "output" not in fields


@pytest.mark.parametrize(
    ("status", "level"),
    [(FiringStatus.FIRED, "INFO"), (FiringStatus.FAILED, "ERROR"), (FiringStatus.MISSED, "WARNING")],
)
def test_each_firing_is_a_line_with_its_lateness(
    status: FiringStatus, level: str, lines: pytest.LogCaptureFixture
) -> None:
    report([Firing("nightly", START + timedelta(minutes=1), status, 0.25, id="abc")], ChildOptions())
    [record] = lines.records
    assert record.levelname == level
    fields = record.fields  # type: ignore[attr-defined]
    assert fields == {"name": "nightly", "at": text(1), "lateness": 0.25, "id": "abc"}
