"""Pools as real programs, in a directory of their own and on a broker, with everything that must be seen of them.

The broker is an SQLite file in that directory, or whatever a URL names (see `support.poolrig_brokers`).

A rig's processes are known by their working directory, or by a mark in their environment: that finds what has put
itself into another session, or was adopted by init, too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import Message, MessageFilter, QueueStats, State
from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.message.definition import JobDefinition
from jobpool.message.signing import EnvelopeSigner
from jobpool.ops.health import look
from jobpool.ops.runtime_dir import PoolFile, discover
from jobpool_torture import processes
from jobpool_torture.ledger import LEDGER, Ledger, Line
from jobpool_torture.options import with_timeout
from jobpool_torture.processes import is_alive
from support import failpoints
from support.accounts import Account, count
from support.stalls import Stalls
from support.waiting import patiently, wait_ended, wait_until, whole_lines

LIMIT = 90.0
"""Seconds: far more than anything here takes on an idle machine."""

PAGE = 1000
"""Messages that a backend lists at once."""

APP = Path(__file__).with_name("apps_pool.py")


class PoolProcess:
    """One `jobpool` program that was started."""

    def __init__(
        self, rig: Rig, name: str, process: subprocess.Popen[bytes], log: Path, *, witnessed: bool = False
    ) -> None:
        self._rig = rig
        self.witnessed = witnessed
        self.name = name
        self.process = process
        self.log_path = log

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- telling it ---------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = LIMIT) -> int:
        """Signal it and wait for its end; its exit status."""
        self.send(number)
        return self.wait(limit)

    def wait(self, limit: float = LIMIT) -> int:
        """Its exit status, negative = by that signal."""
        try:
            return wait_ended(self.process, limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pool {self.name} has not ended within {limit:g} s") from None

    # --- looking at it --------------------------------------------------------------------------------

    def note(self) -> PoolFile:
        """What it left in the runtime directory."""
        return next(found for found in discover(self._rig.runtime) if found.pid == self.pid)

    def header(self) -> HeaderView:
        with Scoreboard.open(self.note().board) as board:
            return board.header.read()

    def slots(self) -> dict[int, int]:
        """Slot → pid of its child."""
        with Scoreboard.open(self.note().board) as board:
            pids = {index: board.slot(index).master.read().pid for index in range(board.slots)}
        return {index: pid for index, pid in pids.items() if pid}

    def last_deaths(self) -> list[str]:
        """How the last child of each slot died that did not end by order."""
        with Scoreboard.open(self.note().board) as board:
            return [board.slot(index).master.read().last_death for index in range(board.slots)]

    def ready(self) -> int:
        """How many children are ready; 0 before there is a scoreboard."""
        with contextlib.suppress(StopIteration, OSError, ValueError):
            return self.header().ready
        return 0

    def is_healthy(self) -> bool:
        with contextlib.suppress(StopIteration):
            return look(self.note()).ok
        return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of what it answers to a GET, where it serves metrics."""
        port = int(wait_until(lambda: self.log("metrics are served"))[0]["port"])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def wait_ready(self, count: int) -> PoolProcess:
        """Wait until exactly that many children are ready, and the scoreboard shows none that is dead already."""

        def there() -> bool:
            assert self.process.poll() is None, f"pool {self.name} has ended: {self.log_path.read_text()[-2000:]}"
            return self.ready() == count and all(map(is_alive, self.slots().values()))

        wait_until(there, LIMIT, f"{count} children ready")
        return self

    def fork_servers(self) -> list[int]:
        return processes.fork_servers_of(self.pid)

    def children(self) -> list[int]:
        """The children of all its fork servers, youngest last."""
        return processes.pool_children_of(self.pid)

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss(self) -> int:
        """Bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Of the master alone, since its start."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_lines(self) -> list[str]:
        """All that it and its children have written."""
        return whole_lines(self.log_path)

    def log(self, event: str = "") -> list[dict[str, Any]]:
        """The entries of its log, all or those of one event."""
        entries = [json.loads(line) for line in self.log_lines() if line.startswith("{")]
        return [entry for entry in entries if event in ("", entry["event"])]


class Rig(AbstractContextManager["Rig"]):
    """A directory with a queue, a ledger and any number of pools; a context manager that kills what is left.

    `url`: of the broker; the rig enqueues and looks there, and so do pools that are not given another way to it.
    `witness`: whether pools that are started from here on run under the witness (jobpool_torture.witness).
    """

    def __init__(self, directory: Path, url: str | None = None, *, witness: bool = False) -> None:
        self.directory = directory
        self.url = url or f"sqlite:///{directory}/jobpool.db"
        self.witness = witness
        self.ledger = Ledger(directory / "ledger")
        self.runtime = directory / "run"
        self.pools: list[PoolProcess] = []
        self.enqueued: set[str] = set()
        self._mark = secrets.token_hex(8)
        self._signer = EnvelopeSigner()
        self._backend: QueueBackend | None = None
        directory.mkdir(exist_ok=True)

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def backend(self) -> QueueBackend:
        if self._backend is None:
            self._backend = open_backend(self.url, signer=self._signer)
        return self._backend

    def sign_with(self, *keys: str) -> None:
        """What is enqueued from here on is signed with the first of them."""
        self._close_backend()
        self._signer = EnvelopeSigner(list(keys))

    def _close_backend(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    # --- producing ----------------------------------------------------------------------------------

    def enqueue(self, handler: str, payload: Any = None, **options: Any) -> str:
        return self.enqueue_many(handler, [payload or {}], **options)[0]

    def enqueue_many(self, handler: str, payloads: Iterable[Any], **options: Any) -> list[str]:
        jobs = [JobDefinition(handler=handler, payload=payload, **options) for payload in payloads]
        ids = self.backend.enqueue_many(jobs)
        self.enqueued.update(ids)
        return ids

    # --- pools --------------------------------------------------------------------------------------

    def start_pool(
        self,
        *flags: str,
        workers: int = 2,
        app: Path | str = APP,
        through: tuple[str, ...] = (),
        url: str | None = None,
        timeout: float | None = None,
        stderr: int | None = None,
        **environment: str,
    ) -> PoolProcess:
        """Start one, `through` a program that executes it, and come back at once.

        It leads a process group of its own, as a shell's job does. `url`: its own way to the broker. `timeout`:
        seconds that a call to the broker may take. `stderr`: a descriptor that its log goes to, in place of the file.
        """
        name = f"pool{len(self.pools) + 1}"
        url = url or self.url
        url = url if timeout is None else with_timeout(url, timeout)
        words = ["-A", str(app), "-b", url, "-w", str(workers), "-n", name, "--log-format", "json", *flags]
        program = ["-m", "jobpool_torture.pool_process" if self.witness else "jobpool"]
        if environment.get(failpoints.FAILPOINT):
            program = ["-P", failpoints.__file__]
        log = self.directory / f"{name}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*through, sys.executable, *program, *words],
                cwd=self.directory,
                env=self._environment() | {"JOBPOOL_NAME": name} | environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream if stderr is None else stderr,
                process_group=0,
            )
        pool = PoolProcess(self, name, process, log, witnessed=self.witness)
        self.pools.append(pool)
        return pool

    def run_pool(self, *flags: str, **options: Any) -> PoolProcess:
        """Start one and wait for its end."""
        pool = self.start_pool(*flags, **options)
        pool.wait()
        return pool

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
        mine = {
            "JOBPOOL_RUNTIME_DIR": str(self.runtime),
            LEDGER: str(self.ledger.path),
            "POOLTEST_MARK": self._mark,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return kept | mine

    # --- looking ------------------------------------------------------------------------------------

    def lines(self, event: str = "", ident: str = "") -> list[Line]:
        """The ledger, all of it or what concerns one event or message."""
        return [line for line in self.ledger.read() if event in ("", line.event) and ident in ("", line.id)]

    def starts(self, ident: str = "") -> list[Line]:
        return self.lines("start", ident)

    def ends(self, ident: str = "") -> list[Line]:
        return self.lines("end", ident)

    def wait_started(self, *idents: str, limit: float = LIMIT) -> list[Line]:
        """The first start line of each."""
        wait_until(lambda: set(idents) <= {line.id for line in self.starts()}, limit, "all of them have begun")
        return [self.starts(ident)[0] for ident in idents]

    def stats(self, queue: str = "default") -> QueueStats:
        """Ask the broker until it answers: a machine that stands still may keep it from that in time."""
        return patiently(lambda: self.backend.stats(queue))

    def inspect(self, ident: str) -> Message:
        message = self.backend.inspect(ident)
        assert message is not None, f"{ident} is gone"
        return message

    def dead(self) -> dict[str, Message]:
        """The dead letters, by id."""
        return {message.id: message for message in self._listed(MessageFilter(states=(State.DEAD,)))}

    def is_dead(self, ident: str) -> bool:
        message = self.backend.inspect(ident)
        return message is not None and message.state is State.DEAD

    def wait_drained(self, limit: float = LIMIT, queue: str = "default") -> None:
        """Wait until nothing is waiting, delayed or leased, and every pool that runs has heard what became of it."""
        wait_until(lambda: self.stats(queue).pending == 0, limit, "the queue is empty")
        wait_until(lambda: not any(self._unheard().values()), limit, "every pool has heard what became of its calls")

    def _unheard(self) -> dict[int, int]:
        """Pid of a pool that runs → settlements that it has asked for, and has written no answer to."""
        open_calls = {pool.pid: 0 for pool in self.pools if processes.state(pool.pid) not in ("", "T", "Z", "X")}
        for line in self.lines():
            if line.pid in open_calls and line.event in ("asked", "settled", "unknown"):
                open_calls[line.pid] += 1 if line.event == "asked" else -1
        return open_calls

    def kept(self) -> list[Message]:
        """Everything that the backend has, live (where it shows that) or dead."""
        return self._listed(None)

    def _listed(self, which: MessageFilter | None) -> list[Message]:
        found = page = self.backend.list_messages(which, limit=PAGE)
        while len(page) == PAGE:
            page = self.backend.list_messages(which, after=page[-1].cursor, limit=PAGE)
            found = found + page
        return found

    def account(self, **less: Any) -> Account:
        """The oracle's count, now, by what the witness saw; all pools must have run under one.

        `less`: what the test has taken from the broker, as `leases=Leases.CONNECTION` where it took leases away.
        """
        assert all(pool.witnessed for pool in self.pools), "set rig.witness before its pools start"
        return count(self.lines(), self.enqueued, self.kept(), can=replace(self.backend.capabilities, **less))

    def processes(self) -> dict[int, str]:
        """Pid → command of all that is alive of this rig."""
        return processes.marked(f"POOLTEST_MARK={self._mark}", self.directory)

    def assert_no_processes_left(self, limit: float = 1.0) -> None:
        """ORPHANS: every process of every pool, and whatever handlers started, is dead within the limit.

        The time for which the machine keeps all waiting is not counted, nor is that of the look which finds none: on a
        busy machine one look takes up to 1.7 s.
        """
        with Stalls() as stalls:
            begun = looked_at = time.monotonic()
            while left := self.processes():
                stalls.look()
                after = looked_at - begun
                assert after < limit + stalls.allowance, (
                    f"{left} alive after {after:.2f} s, {stalls.seconds:.2f} s stalled"
                )
                time.sleep(0.01)
                looked_at = time.monotonic()

    # --- the end ------------------------------------------------------------------------------------

    def describe(self) -> str:
        """For who reads why a test failed: where everything is, and the ends of the logs."""
        logs = "".join(f"--- {pool.name}\n{pool.log_path.read_text()[-3000:]}\n" for pool in self.pools)
        return f"left in {self.directory}\n{logs}"

    def end(self) -> None:
        """Kill and collect everything."""
        for pool in self.pools:
            if pool.process.poll() is None:
                pool.process.send_signal(signal.SIGKILL)
        give_up = time.monotonic() + LIMIT
        while (left := self.processes()) and time.monotonic() < give_up:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for pool in self.pools:
            pool.process.wait(LIMIT)
        self._close_backend()


# --- processes --------------------------------------------------------------------------------------------------------


def wait_gone(pids: Iterable[int], limit: float) -> None:
    """Wait until none of these processes runs."""
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)], limit, "the processes are dead")


def kill_child(pool: PoolProcess, pid: int) -> bool:
    """SIGKILL, never to a process that has taken over the pid; False: it was not there any more."""
    return processes.send(pid, signal.SIGKILL, lambda pid: pid in pool.children())


def measured(action: Callable[[], object]) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


@pytest.hookimpl(wrapper=True)
def describe_pools(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A hook for a conftest.py, as `pytest_runtest_makereport`: a failure shows the rigs that the test had."""
    report = yield
    for rig in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(rig, Rig):
            report.sections.append(("pools", rig.describe()))
    return report
