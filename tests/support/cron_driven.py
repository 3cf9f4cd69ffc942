"""Schedulers as processes of their own, on clocks that a test drives: hours pass in seconds.

`python -m support.cron_driven FOLDER NUMBER` is one of them; `Drive` is the test's side. They share a page of memory,
which tells the time that has passed, how far somebody has set each machine's wall clock, and how far each of them is.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobpool.broker.opening import open_backend
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.cron.service import CronLoop, Stop
from jobpool.message.context import JobContext

MOST = 8
GRACE = 4 * 3600.0
INLINE_EVERY = 2
"""Minutes."""

_DOUBLE = struct.Struct("d")
_PASSED, _BASE = 0, 1
_OFFSET, _DONE = 2, 2 + MOST


class Page:
    """The shared page. Each number is written by one process: the driver, but for `done`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "page"
        with path.open("a+b") as file:
            file.truncate(4096)
            self._map = mmap.mmap(file.fileno(), 4096)

    def get(self, place: int) -> float:
        number: float = _DOUBLE.unpack_from(self._map, 8 * place)[0]
        return number

    def put(self, place: int, number: float) -> None:
        _DOUBLE.pack_into(self._map, 8 * place, number)

    def close(self) -> None:
        self._map.close()


class DrivenClock:
    """The clocks of machine `number`."""

    def __init__(self, page: Page, number: int) -> None:
        self._page = page
        self._number = number

    def mono(self) -> float:
        return self.boot()

    def boot(self) -> float:
        return 1000.0 + self._page.get(_PASSED)

    def wall(self) -> float:
        return self._page.get(_BASE) + self._page.get(_PASSED) + self._page.get(_OFFSET + self._number)


class DrivenSleeper(Stop):
    """Waits until the driven time has come; says on the page how far it is, and not that it has woken up for more."""

    def __init__(self, page: Page, number: int) -> None:
        self._page = page
        self._number = number

    def stopped(self) -> bool:
        return False

    def sleep(self, seconds: float) -> None:
        began = self._page.get(_PASSED)
        self._page.put(_DONE + self._number, began)
        while (passed := self._page.get(_PASSED)) < began + seconds:
            self._page.put(_DONE + self._number, passed)
            time.sleep(0.002)


def a_scheduler(folder: Path) -> Scheduler:
    """What all of them have: each minute a message, every two minutes something inline.

    Or, where the test has schedules of its own: a message for each of these.
    """
    scheduler = Scheduler()
    if (own := folder / "schedules").exists():
        for name, expression, zone in json.loads(own.read_text()):
            scheduler.define("work").named(name).queue("work").cron(expression).zone(zone).misfire("all(1000)")
        return scheduler
    scheduler.define("work").named("each-minute").queue("work").every_minute().misfire("all(1000)")
    scheduler.define("note").named("inline").every_minute(INLINE_EVERY).misfire("all(1000)")
    return scheduler


def main(folder: Path, number: int) -> None:
    """One scheduler, until it is killed."""
    from jobpool.handlers.registry import HandlerRegistry

    page = Page(folder)
    registry = HandlerRegistry()

    @registry.handler("note")
    def note(ctx: JobContext) -> None:
        with (folder / "inline").open("ab", buffering=0) as file:
            file.write(f"{ctx.meta['scheduled_for']}\n".encode())

    way: dict[str, Any] = json.loads((folder / "broker").read_text())
    backend = open_backend(way["url"], clock=DrivenClock(page, number), **way["options"])
    if "schema" in way["options"]:
        backend.broker_time = turned_postgres(way["url"], way["options"]["schema"])  # type: ignore[method-assign]
    runner = CronRunner(a_scheduler(folder), backend, registry=registry, grace=GRACE, name=f"machine-{number}")
    CronLoop(runner, DrivenSleeper(page, number), len).run()


def turned_postgres(url: str, schema: str) -> Callable[[], float]:
    """What tells the time of a schema whose function `moment` was replaced; the backend's asks the server itself."""
    import psycopg
    from psycopg import sql

    connection = psycopg.connect(url, autocommit=True)
    query = sql.SQL("SELECT {}.moment()").format(sql.Identifier(schema))

    def tell() -> float:
        [moment] = connection.execute(query).fetchone() or (0,)
        return float(moment / 1e6)

    return tell


class Drive:
    """Starts, kills and freezes schedulers, and turns their clocks. Close it.

    Args:
        folder: A private directory.
        url, options: How they reach the broker.
        base: Unix time at which it begins.
        count: Of schedulers, up to 8.
        schedules: Name, expression and zone of each; None = those of `a_scheduler`.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        options: dict[str, Any],
        base: float,
        *,
        count: int = 3,
        schedules: list[tuple[str, str, str]] | None = None,
    ) -> None:
        (folder / "broker").write_text(json.dumps({"url": url, "options": options}))
        if schedules is not None:
            (folder / "schedules").write_text(json.dumps(schedules))
        self._folder = folder
        self._page = Page(folder)
        self._page.put(_BASE, base)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._frozen = [False] * count
        self.numbers = range(count)

    def start(self, number: int) -> None:
        self._page.put(_DONE + number, -1.0)
        here = Path(__file__).parent.parent
        words = [sys.executable, "-m", "support.cron_driven", str(self._folder), str(number)]
        path = os.pathsep.join([str(here), *filter(None, sys.path)])
        with (self._folder / "log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                words, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, number: int) -> None:
        process = self._processes[number]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self._frozen[number] = False
            self._processes[number] = None

    def freeze(self, number: int, frozen: bool) -> None:
        process = self._processes[number]
        if process is not None and self._frozen[number] is not frozen:
            process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)
            self._frozen[number] = frozen

    @property
    def any_frozen(self) -> bool:
        return any(self._frozen)

    def is_running(self, number: int) -> bool:
        return self._processes[number] is not None

    def set_clock(self, number: int, offset: float) -> None:
        """Somebody sets this machine's wall clock, to so many seconds ahead of the time."""
        self._page.put(_OFFSET + number, offset)

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return self._page.get(_PASSED)

    def advance(self, seconds: float) -> None:
        self._page.put(_PASSED, self.passed + seconds)

    def behind(self) -> float:
        """Seconds by which the best of those that run is behind; one that comes up is at the beginning."""
        running = [n for n in self.numbers if self._processes[n] is not None and not self._frozen[n]]
        return self.passed - max((self._page.get(_DONE + n) for n in running), default=-1.0)

    def all_asleep(self) -> bool:
        """Whether all that run have done what was due, and nothing more wakes them up before time passes."""
        running = [n for n in self.numbers if self._processes[n] is not None and not self._frozen[n]]
        return all(self._page.get(_DONE + n) >= self.passed for n in running)

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def inline(self) -> list[str]:
        """The instants that ran inline, in the order of their runs."""
        file = self._folder / "inline"
        return file.read_text().split() if file.exists() else []

    def close(self) -> None:
        for number in self.numbers:
            self.kill(number)
        self._page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
