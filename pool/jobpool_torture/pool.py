"""One pool of a fleet: a `jobpool` program that is started again and again, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobpool.ipc.board_views import ChildState, HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.ops.runtime_dir import PoolFile, discover
from jobpool_torture import processes
from jobpool_torture.clocks import PoolClock, clear
from jobpool_torture.logpipe import LogPipe

LOG_END_CHARS = 3000
"""Characters of a log that a report shows."""


class Pool:
    """One place for a pool: its program may have ended, and another be started in its place.

    Attributes:
        number: From 0.
        name: Given to the program.
        url: Of the broker, as this pool reaches it.
        log_path: The log of all its programs.
        log: The pipe by which it comes; None = no program was started yet, or `close_log` was called.
        runtime: Its runtime directory.
        clock: Its own; None = the machine's.
        runs: How many programs were started here.
        awaited: Exit statuses that it was ordered to end with; empty = it is to run.
        away: Seconds until another is started, once it has ended as ordered.
        begun: When the one that runs was started (CLOCK_MONOTONIC).
        start_at: When another is to be started; None = it runs, or is to stay away.
        was_ready: True if the running program has had a ready child.
    """

    def __init__(self, number: int, url: str, directory: Path, clock: PoolClock | None = None) -> None:
        self.number = number
        self.name = f"pool{number + 1}"
        self.url = url
        self.log_path = directory / f"{self.name}.log"
        self.runtime = directory / "run" / self.name
        self.clock = clock
        self.log: LogPipe | None = None
        self.runs = 0
        self.awaited: set[int] = set()
        self.away = 0.0
        self.begun = 0.0
        self.start_at: float | None = None
        self.was_ready = False
        self._process: subprocess.Popen[bytes] | None = None

    # --- its program --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of its master, which may have ended but was not collected yet; 0 = there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self, words: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        """Start a program here; there must be none. Raises OSError."""
        if self._process is not None:
            raise RuntimeError(f"{self.name} runs already, as pid {self.pid}")
        env = dict(environment) | {"JOBPOOL_RUNTIME_DIR": str(self.runtime), "JOBPOOL_BACKEND": self.url}
        env["JOBPOOL_NAME"] = self.name  # the witness reads it there
        self.log = self.log or LogPipe(self.log_path)
        self._process = subprocess.Popen(
            [*words, "-n", self.name],
            cwd=directory,
            env=self.clock.environment(env) if self.clock else env,
            stdin=subprocess.DEVNULL,
            stdout=self.log.writer,
            stderr=self.log.writer,
            process_group=0,  # a Ctrl-C at the terminal is for the fleet's process
        )
        self.runs += 1
        self.begun = time.monotonic()
        self.awaited = set()
        self.start_at = None
        self.was_ready = False

    def collect(self) -> tuple[int, int] | None:
        """Collect its program if it has ended since the last call; return pid and exit status."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        ended, self._process = self._process.pid, None
        if self.log:
            self.log.drain()
        if self.clock:
            clear(ended)
        return ended, status

    def close_log(self) -> None:
        """Copy the rest of what was written; nobody writes any more. Safe to call twice."""
        if self.log:
            self.log.close()
        self.log = None

    def is_master(self, pid: int) -> bool:
        """Return whether this is its master; for `processes.send`. Its pid is its own until it is collected."""
        return self._process is not None and self._process.pid == pid and processes.parent_of(pid) == os.getpid()

    # --- looking at it --------------------------------------------------------------------------------

    def note(self) -> PoolFile | None:
        """Return its note in its runtime directory; None: not yet."""
        return next((found for found in discover(self.runtime) if found.pid == self.pid), None)

    def _board(self) -> Scoreboard | None:
        note = self.note() if self.pid else None
        with contextlib.suppress(OSError, ValueError):
            return Scoreboard.open(note.board) if note and note.board else None
        return None

    def header(self) -> HeaderView | None:
        """Return its master's header; None: nothing yet."""
        board = self._board()
        if board is None:
            return None
        with board:
            return board.header.read()

    def ready(self) -> int:
        """Return how many children are ready."""
        header = self.header()
        return header.ready if header else 0

    def is_full(self, workers: int) -> bool:
        """Return whether it has `workers` children, all of them ready, and no other."""
        return self.ready() == len(self.children()) == workers

    def is_ready(self) -> bool:
        """Return whether it has had a ready child since it was started, and so takes signals as a pool does."""
        self.was_ready = self.was_ready or self.ready() > 0
        return self.was_ready

    def generation(self) -> int:
        """Return the generation of its newest fork server; 0 = none yet."""
        header = self.header()
        return header.generation if header else 0

    def fork_servers(self) -> list[int]:
        """Return its living fork servers, the newest generation last."""
        return processes.fork_servers_of(self.pid) if self.pid else []

    def children(self) -> list[int]:
        """Return the living children of all its fork servers, by pid."""
        return sorted(processes.pool_children_of(self.pid)) if self.pid else []

    def busy(self) -> list[int]:
        """Return those of its children that were at work a moment ago."""
        board = self._board()
        if board is None:
            return []
        with board:
            views = [board.slot(index).child.read() for index in range(board.slots)]
        busy = {view.pid for view in views if view.state is ChildState.BUSY}
        return [child for child in self.children() if child in busy]

    def log_end(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return self.log_path.read_text(errors="replace")[-LOG_END_CHARS:]
        return ""
