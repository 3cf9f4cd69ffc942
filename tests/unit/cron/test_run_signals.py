"""Signals to a scheduler: before it is ready, between firings, and while an inline job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cronrig import CronRig, told

from jobpool.cron import scheduler as schedulers
from jobpool.cron.firing import Firing
from jobpool.cron.service import CronLoop, Stop, serve
from jobpool.cron.tick import SIGNALS
from jobpool.ipc.process_options import ChildOptions
from jobpool.ipc.scheduler_process import CronStart
from jobpool.message.context import JobContext

LONG = 30.0
"""Seconds that nothing here waits for, if it is right."""


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """What the tests do to signals ends with them."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def kill(number: int) -> None:
    """Signal this process; the handler has run when this returns."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_an_inline_job_now(rig: CronRig, number: int) -> None:
    @rig.registry.handler("long")
    def long(_ctx: JobContext) -> None:
        kill(number)
        kill(number)  # the same at once, as `timeout` sends it, counts once
        rig.ran.append(("long", "goes on after the first"))
        kill(next(other for other in SIGNALS if other != number))
        time.sleep(LONG)

    rig.scheduler.define("long")
    rig.scheduler.define("a")
    brought: list[Firing] = []
    with Stop() as stop:
        CronLoop(rig.runner(), stop, brought.extend).run()
    [firing] = brought
    assert told([firing]) == [("long", 0, "failed")]
    assert firing.why == "KeyboardInterrupt: ended by a second signal"
    assert rig.ran == [("long", "goes on after the first")], "what was due behind it is not begun"


def test_the_second_signal_ends_a_coroutine(rig: CronRig) -> None:
    @rig.registry.handler("long")
    async def long(_ctx: JobContext) -> None:
        import asyncio

        asyncio.get_running_loop().call_soon(lambda: [kill(number) for number in SIGNALS[:2]])
        await asyncio.sleep(LONG)

    rig.scheduler.define("long")
    with Stop() as stop:
        [firing] = rig.runner().run(stopped=stop.stopped)
    assert firing.status.value == "failed"
    assert firing.took is not None
    assert firing.took < LONG


def test_the_second_signal_between_two_jobs_raises_nothing() -> None:
    with Stop() as stop:
        for number in SIGNALS[:2]:
            kill(number)
        assert stop.stopped()


def test_a_hang_up_that_nohup_ignores_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            kill(signal.SIGHUP)
            assert not stop.stopped()
            kill(signal.SIGTERM)
            assert stop.stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_third_signal_ends_the_process() -> None:
    code = (
        "import os, signal\nfrom jobpool.cron.service import Stop\n"
        "term, interrupt = signal.SIGTERM, signal.SIGINT\n"
        "with Stop():\n    [os.kill(os.getpid(), number) for number in (term, interrupt, term)]\n    print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60.0, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, b"")


def test_what_an_inline_job_does_to_signals_ends_with_it(rig: CronRig) -> None:
    @rig.registry.handler("deaf")
    def deaf(_ctx: JobContext) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    rig.scheduler.define("deaf")
    with Stop() as stop:
        rig.runner().run()
        kill(signal.SIGTERM)
        assert stop.stopped()


def test_inline_jobs_run_on_any_thread(rig: CronRig) -> None:
    rig.scheduler.define("a")
    brought: list[Firing] = []
    thread = threading.Thread(target=lambda: brought.extend(rig.runner().run()))
    thread.start()
    thread.join()
    assert told(brought) == [("a", 0, "fired")]


@pytest.mark.parametrize("number", SIGNALS)
def test_an_import_that_hangs_is_ended_as_any_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Signals mean during the import what they meant before."""
    monkeypatch.setattr(schedulers, "_all", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "hanging_cron_app.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep({LONG})\n"
    )

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(number, leave)
    options = ChildOptions(apps=[str(tmp_path / "hanging_cron_app.py")])
    with pytest.raises(KeyboardInterrupt):
        serve(CronStart(f"sqlite:///{tmp_path}/jobpool.db", options))
