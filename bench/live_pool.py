"""A pool as a user starts it: the `jobpool` program, on an SQLite file or any broker, seen through its scoreboard."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from support.poolrig import PoolProcess, Rig

from bench.note_file import read_notes
from bench.plan import Plan
from bench.processes import descendants
from bench.programs import ROOT
from jobpool.client.jobs import Jobs
from jobpool.ipc.board_layout import ChildState
from jobpool.ipc.scoreboard import Scoreboard

T = TypeVar("T")

QUEUE = "bench"
LIMIT = 60.0
LOOK_EVERY = 0.002


class LivePool:
    """One that runs.

    Attributes:
        jobs: A producer in this process.
        board: The pool's scoreboard.
        notes: A file for handlers to write times to.
    """

    def __init__(self, process: subprocess.Popen[bytes], jobs: Jobs, board: Scoreboard, notes: Path) -> None:
        self._process = process
        self.jobs = jobs
        self.board = board
        self.notes = notes

    def enqueue(self, handler: str, **payload: object) -> str:
        return self.jobs.define(handler, payload).queue(QUEUE).dispatch()

    def lines(self, count: int) -> list[list[str]]:
        """Return the words of each line of `notes`, as soon as there are `count`."""
        return wait_for_notes(self.notes, count)

    def processes(self) -> list[int]:
        """Return master, fork server, children."""
        return [self._process.pid, *descendants(self._process.pid)]

    def children(self) -> list[int]:
        """Return the pids of children that are ready."""
        return [pid for pid in (self.board.slot(slot).master.read().pid for slot in range(self.board.slots)) if pid]

    def slot_of(self, pid: int) -> int:
        return next(slot for slot in range(self.board.slots) if self.board.slot(slot).child.read().pid == pid)

    def ready_after(self, slot: int, pid: int) -> float:
        """Return when the child that follows `pid` in its slot was ready. It must not have been given a job since."""
        page = self.board.slot(slot).child

        def ready() -> float | None:
            view = page.read()
            return view.since if view.pid != pid and view.state is ChildState.IDLE else None

        return wait_for(ready, f"a child after {pid}")

    def wait_ready(self, workers: int) -> None:
        """Wait until `workers` children are ready, by the master's word."""
        wait_for(lambda: self.board.header.read().ready == workers or None, f"{workers} children")


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """Return the result of `look` as soon as it is not None; TimeoutError after `LIMIT` seconds."""
    give_up = time.monotonic() + LIMIT
    while (found := look()) is None:
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {LIMIT:g} s: {what}")
        time.sleep(LOOK_EVERY)
    return found


def wait_for_notes(path: Path, count: int) -> list[list[str]]:
    """Return the words of each line of this file, as soon as there are `count`."""
    wait_for(lambda: len(read_notes(path)) >= count or None, f"{count} lines in {path.name}")
    return read_notes(path)


@contextmanager
def twins(plan: Plan, url: str, workers: int, *words: str) -> Iterator[Path]:
    """Yield two pools that share the broker at `url`, both ready; their handlers' notes go to the yielded file."""
    with plan.scratch() as directory, several(directory, url, 2, workers, *words):
        yield directory / "notes"


@contextmanager
def several(
    directory: Path, url: str, pools: int, workers: int, *words: str, **variables: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield pools that share the broker at `url`, all ready. `variables`: of their environment."""
    with Rig(directory, url) as rig:
        started = [_start(rig, workers, "bench.apps", *words, **variables) for _ in range(pools)]
        yield [pool.wait_ready(workers).process for pool in started]


@contextmanager
def live_pool(plan: Plan, workers: int, app: str = "bench.apps", broker: str = "") -> Iterator[LivePool]:
    """Start a pool on `broker`, or on an SQLite file; wait until all its children are ready; stop it afterwards."""
    with plan.scratch() as directory, Rig(directory, broker or None) as rig, Jobs(rig.url) as jobs:
        process = _start(rig, workers, app, "-Q", QUEUE).wait_ready(workers)
        with Scoreboard.open(process.note().board) as board:
            yield LivePool(process.process, jobs, board, directory / "notes")


def _start(rig: Rig, workers: int, app: str, *words: str, **variables: Any) -> PoolProcess:
    variables |= {"JOBPOOL_DEBUG": "1"}  # its memory is measured, which is else hidden from all but root
    return rig.start_pool("--stop-grace", "1", *words, workers=workers, app=app, PYTHONPATH=str(ROOT), **variables)
