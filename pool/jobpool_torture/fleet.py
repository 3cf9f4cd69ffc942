"""Several pools on one queue, as real programs in one folder: started, ended, counted, and killed at the last.

All processes of a fleet work in a folder of its own, of a unique name, by which they are found in any session. (An
environment does not tell: a process title is written over it.) Methods do not block unless they say so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobpool.ipc.board_layout import ChildState, HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.ops.runtime_dir import discover
from jobpool_torture import processes
from jobpool_torture.clocks import PoolClock, clear
from jobpool_torture.logpipe import LogPipe

LOG_LINE_CHARS = 500
PROGRAM = (sys.executable, "-m", "jobpool_torture.pool_process")
RESTART_PAUSE_S = 1.0
LOOK_PAUSE_S = 0.02
KILL_LIMIT_S = 10.0


class Pool:
    """One place for a pool: its program may have ended, and another be started in its place."""

    def __init__(self, number: int, url: str, directory: Path, clock: PoolClock | None = None) -> None:
        self.number = number
        self.name = f"pool{number + 1}"
        self.url = url
        self.log_path = directory / f"{self.name}.log"
        self.runtime = directory / "run" / self.name
        self.clock = clock  # its own; None = the machine's
        self.log: LogPipe | None = None  # None = no program was started yet, or `close_log` was called
        self.runs = 0
        self.awaited: set[int] = set()  # exit statuses that it was ordered to end with; empty = it is to run
        self.away = 0.0  # seconds until another is started, once it has ended as ordered
        self.begun = 0.0
        self.start_at: float | None = None
        """When another is to be started (CLOCK_MONOTONIC); None = it runs, or is to stay away."""
        self.was_ready = False
        self.has_fetched = False
        self._process: subprocess.Popen[bytes] | None = None

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
        self.was_ready = self.has_fetched = False

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

    def order_end(self, how: signal.Signals, away: float = 0.0) -> int:
        """Send SIGTERM or SIGKILL to its master, and return its pid; 0 = it is not there.

        Another is started `away` seconds after its end.
        """
        pid = self.pid
        if not (pid and processes.send(pid, how, self.is_master)):
            return 0
        self.awaited.add(0 if how == signal.SIGTERM else -int(how))
        self.away = away
        return pid

    def close_log(self) -> None:
        """Copy the unread rest of the log, to which no process writes any more. Safe to call twice."""
        if self.log:
            self.log.close()
        self.log = None

    def is_master(self, pid: int) -> bool:
        """Return whether this is its master; for `processes.send`. Its pid is its own until it is collected."""
        return self._process is not None and self._process.pid == pid and processes.parent_of(pid) == os.getpid()

    def _board(self) -> Scoreboard | None:
        """Open the scoreboard that the note in its runtime directory names; None: not yet."""
        notes = discover(self.runtime) if self.pid else []
        with contextlib.suppress(OSError, ValueError):
            return next((Scoreboard.open(note.board) for note in notes if note.pid == self.pid and note.board), None)
        return None

    def header(self) -> HeaderView | None:
        """Return its master's header; None: nothing yet."""
        with self._board() or contextlib.nullcontext() as board:
            return board.header.read() if board else None

    def is_full(self, workers: int) -> bool:
        """Return whether it has `workers` children, all of them ready, and no other."""
        header = self.header()
        return header is not None and header.ready == len(self.children()) == workers

    def is_ready(self) -> bool:
        """Return whether it has had a ready child since it was started, and so takes signals as a pool does."""
        if header := self.header():
            self.was_ready = self.was_ready or header.ready > 0
            self.has_fetched = self.has_fetched or header.fetched > 0
        return self.was_ready

    def fork_servers(self) -> list[int]:
        """Return its living fork servers, the newest generation last."""
        return processes.fork_servers_of(self.pid)

    def children(self) -> list[int]:
        """Return the living children of all its fork servers, by pid."""
        return sorted(processes.pool_children_of(self.pid))

    def busy(self) -> list[int]:
        """Return those of its children that were at work a moment ago."""
        with self._board() or contextlib.nullcontext() as board:
            views = [board.slot(index).child.read() for index in range(board.slots)] if board else []
        busy = {view.pid for view in views if view.state is ChildState.BUSY}
        return [child for child in self.children() if child in busy]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a pool. `expected`: it was ordered to end so, or could not do otherwise. `said`: see `last_line`."""

    pool: str
    pid: int
    status: int
    expected: bool
    why: str
    said: str = ""


def last_line(log: Path) -> str:
    """Return the line of a log in which a program says what it died of."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-LOG_LINE_CHARS:] if lines else "its log is empty"
    return "it has no log"


class Fleet:
    """Pools, numbered from 0."""

    def __init__(
        self,
        directory: Path,
        urls: Sequence[str],
        flags: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        clocks: Sequence[PoolClock] = (),
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Make the fleet; `start` starts it.

        Args:
            directory: For logs (`pool1.log`, …), runtime directories and the working folder; exists.
            urls: One pool each; handed over in the environment, where `ps` does not show them.
            environment: On top of the caller's, of which JOBPOOL_* and JOBS_* are left out.
            clocks: One for each pool; none = they go by the machine's.
        """
        self._words = [*program, *flags]
        self._mark = f"{processes.MARK}={os.getpid()}-{secrets.token_hex(8)}"
        self._folder = directory / f"work-{secrets.token_hex(4)}"
        self._folder.mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
        self._environment = kept | dict(environment or {}) | dict([self._mark.split("=")])
        self.pools = [
            Pool(number, url, directory, clocks[number] if clocks else None) for number, url in enumerate(urls)
        ]
        self.ends: list[End] = []
        self._told = 0  # how many of them `collect` has returned
        self.excuse: Callable[[Pool], str] = lambda _: ""
        """Tells why a pool may have ended before it was ready; "" = it may not. Set by the nemesis."""

    @property
    def unexpected(self) -> list[End]:
        """The ends without an order: faults of the pool."""
        return [end for end in self.ends if not end.expected]

    def start(self) -> None:
        """Start all pools that are not running. Raises OSError. They are killed when the calling thread ends."""
        for pool in self.pools:
            if not pool.pid:
                pool.start(self._words, self._environment, self._folder)

    def wait_ready(self, limit: float) -> list[str]:
        """Wait until every pool that runs has had a ready child, and return the names of those that have not.

        Blocks for up to `limit` seconds. Pools that have ended meanwhile are named as well.
        """
        give_up = time.monotonic() + limit
        while True:
            self._look()
            waiting = [pool for pool in self.pools if not (pool.pid and pool.is_ready())]
            if time.monotonic() >= give_up or not any(pool.pid for pool in waiting):
                return [pool.name for pool in waiting]
            time.sleep(LOOK_PAUSE_S)

    def revive(self, now: float) -> list[str]:
        """Start the pools whose time has come (CLOCK_MONOTONIC); a sentence each. Raises OSError."""
        told = []
        for pool in self.pools:
            if not pool.pid and pool.start_at is not None and now >= pool.start_at:
                pool.start(self._words, self._environment, self._folder)
                told.append(f"{pool.name} started again, as pid {pool.pid}")
        return told

    def hurry(self) -> None:
        """Start pools that have ended, or are about to end as ordered, again at once."""
        for pool in self.pools:
            pool.away = 0.0
            pool.start_at = None if pool.start_at is None else 0.0

    def collect(self) -> list[End]:
        """Return the ends that were not told yet. `revive` starts those pools again, when their time has come."""
        self._look()
        fresh, self._told = self.ends[self._told :], len(self.ends)
        return fresh

    def _look(self) -> None:
        for pool in self.pools:
            if pool.pid:
                pool.is_ready()
                if pool.clock:
                    pool.clock.mend(pool.pid)
            if ended := pool.collect():
                self.ends.append(self._judge(pool, *ended))
                pool.start_at = time.monotonic() + (pool.away if pool.awaited else RESTART_PAUSE_S)

    def _judge(self, pool: Pool, pid: int, status: int) -> End:
        if status in pool.awaited:
            return End(pool.name, pid, status, True, f"{pool.name} has ended as ordered, with status {status}")
        if status == -signal.SIGTERM and 0 in pool.awaited and not pool.was_ready:
            return End(pool.name, pid, status, True, f"{pool.name} was told to stop before it knew how to")
        if status in (1, 2) and not pool.has_fetched and (why := self.excuse(pool)):
            return End(pool.name, pid, status, True, f"{pool.name} has not come up: {why}")
        awaited = f" instead of {min(pool.awaited)}" if pool.awaited else ", and nobody had told it to"
        why = f"{pool.name} (pid {pid}) has ended with status {status}{awaited}"
        return End(pool.name, pid, status, False, why, last_line(pool.log_path))

    def stop_all(self, limit: float) -> dict[str, int | None]:
        """Send SIGTERM to all that run, and wait for their ends, `limit` seconds and a little more at worst.

        Returns exit statuses by name, of those that ran: 0 = drained. None = it had not ended, and was killed.
        """
        running = [pool for pool in self.pools if pool.pid]
        for pool in running:
            pool.order_end(signal.SIGTERM)
        before = len(self.ends)
        give_up = time.monotonic() + limit
        while any(pool.pid for pool in running) and time.monotonic() < give_up:
            self._look()
            time.sleep(LOOK_PAUSE_S)
        statuses = {end.pool: end.status for end in self.ends[before:]}
        for pool in self.pools:
            pool.order_end(signal.SIGKILL)
            pool.start_at = None
        return {pool.name: statuses.get(pool.name) for pool in running}

    def kill_all(self) -> None:
        """Kill and collect everything that belongs to the fleet; block for up to 10 s. Safe at any time."""
        give_up = time.monotonic() + KILL_LIMIT_S
        while time.monotonic() < give_up:
            left = self.processes()
            for pid in left:
                processes.send(pid, signal.SIGKILL, self._owns)
            for pool in self.pools:
                pool.awaited.add(-signal.SIGKILL)
            self._look()
            if not left and not any(pool.pid for pool in self.pools):
                break
            time.sleep(LOOK_PAUSE_S)
        for pool in self.pools:
            pool.start_at = None
            pool.close_log()

    def processes(self) -> dict[int, str]:
        """Return pid → command of all living processes of the fleet, and of its handlers."""
        masters = {pool.pid: processes.command(pool.pid) for pool in self.pools if processes.is_alive(pool.pid)}
        return masters | processes.marked(self._mark, self._folder)

    def _owns(self, pid: int) -> bool:
        """Return whether it is of this fleet. Raises OSError, as `processes.is_marked`."""
        is_master = any(pool.is_master(pid) for pool in self.pools)
        return is_master or processes.is_marked(pid, self._mark, self._folder)

    def descriptors(self) -> dict[str, Counter[str]]:
        """Return how many descriptors each running master has open, by kind; by the pool's name."""
        found = {}
        for pool in self.pools:
            with contextlib.suppress(OSError):
                if pool.pid:
                    found[pool.name] = processes.descriptors(pool.pid)
        return found
