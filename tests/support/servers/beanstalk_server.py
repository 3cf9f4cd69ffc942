"""A beanstalkd of the tests' own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import greenstalk

from support.servers.process import find_program
from support.servers.turned_time import TurnedServer
from support.waiting import wait_until

ROOMY = 2**20 + 2**16
"""Bytes a job, so that the largest body of jobpool and what a backend writes beside it fit in."""


class BeanstalkServer(TurnedServer):
    """A running beanstalkd, on a free port of 127.0.0.1; it keeps nothing unless asked to.

    beanstalkd looks at its clock when it has carried out a command. So `advance` and `turn_to` send one, and every
    command that is sent after they have returned sees jobs that fell due ready and leases that ran out free. They send
    one before as well: after an answer beanstalkd reads its clock twice to note when the connection's first lease ends,
    and a turn between the two readings would make that later by the turn. Once another connection is answered, it has
    read them.

    On a turned server a `reserve-with-timeout` above 0 never gives up: its end is reckoned on the clock that stands
    still. A lease ends a microsecond after its deadline; when time lands on the deadline itself, beanstalkd 1.12
    forgets it until its holder's next command.

    Args:
        folder: For its log and its binlog; made if it is missing.
        turned: Its clock stands still until `advance` or `turn_to` moves it.
        binlog: Keep jobs in files of `folder`, written before each answer: a restart, and a kill, lose nothing.
        sync_ms: How often those are synced to their disk; 0 = before each answer.
        max_job_size: The largest job in bytes.

    Attributes:
        url: beanstalk://127.0.0.1:PORT.
        max_job_size: Of the next start.
    """

    name = "beanstalkd"

    def __init__(
        self,
        folder: Path,
        *,
        turned: bool = False,
        binlog: bool = False,
        sync_ms: int = 0,
        max_job_size: int = ROOMY,
    ) -> None:
        super().__init__(folder, turned)
        self._sync_ms = sync_ms
        self._binlog = self.folder / "binlog" if binlog else None
        self.max_job_size = max_job_size
        self._asked = 0
        self.start()

    @property
    def url(self) -> str:
        return f"beanstalk://{self.host}:{self.port}"

    def client(self, tube: str = "default") -> greenstalk.Client[bytes]:
        """A connection of the test's own, which uses and watches this tube; the test closes it."""
        return greenstalk.Client((self.host, self.port), encoding=None, use=tube, watch=tube)

    def drain(self) -> None:
        """Have it take no more jobs, until it is started again; returns when that is so."""
        os.kill(self.pid, signal.SIGUSR1)
        with self.client() as client:
            wait_until(lambda: client.stats()["draining"] == "true", what="drain mode")

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Have it end what it is about before this block, and look at its clock after it."""
        with self.client() as client:
            client.using()
            yield
            client.using()

    def _command(self, port: int) -> list[str]:
        self._asked = port
        command = [find_program("beanstalkd"), "-l", self.host, "-p", str(port), "-z", str(self.max_job_size)]
        if self._binlog is None:
            return command
        self._binlog.mkdir(exist_ok=True)
        return [*command, "-b", str(self._binlog), "-f", str(self._sync_ms)]

    def _answers(self) -> bool:
        """Another one may have got hold of the port."""
        try:
            with greenstalk.Client((self.host, self._asked), encoding=None) as client:
                return client.stats()["pid"] == self.pid
        except OSError:
            return False
