"""A beanstalkd of one's own: on loopback, on a free port, in memory or with a binlog in a directory that goes away."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import greenstalk

from bench.servers import Asked, Server, ServerMissing, free_port, running

BODIES = 2**20
"""Bytes of the largest body that it takes: jobpool's own limit."""

HOST = "127.0.0.1"


class BeanstalkServer(Server):
    """A place is a prefix of tubes; nothing is left in them."""

    namespace = "tube_prefix"

    def __init__(self, port: int, pid: int) -> None:
        super().__init__(f"beanstalk://{HOST}:{port}", pid)
        self.port = port

    @contextmanager
    def fresh(self) -> Iterator[str]:
        yield f"{self.url}?{self.namespace}=b{secrets.token_hex(4)}."

    def settle_down(self, url: str) -> None:
        """Do nothing: it puts nothing off."""

    @contextmanager
    def asked(self, url: str) -> Iterator[Asked]:
        del url  # it counts for all tubes together
        asked = Asked()
        before = self._commands()
        yield asked
        asked.commands = self._commands() - before - 1  # the second question

    def _commands(self) -> int:
        return sum(int(count) for name, count in self.stats().items() if name.startswith("cmd-"))

    def stats(self) -> dict[str, int | str]:
        """Return the server's own counts."""
        with contextlib.closing(greenstalk.Client((HOST, self.port))) as client:
            return dict(client.stats().items())  # type: ignore[arg-type]


@contextmanager
def beanstalkd(directory: Path, *, binlog: bool = False, port: int = 0) -> Iterator[BeanstalkServer]:
    """Yield a server in memory; with `binlog` it writes a log, and syncs it every 50 ms, as it does by itself.

    `port`: 0 = a free one.
    """
    program = shutil.which("beanstalkd")
    if program is None:
        raise ServerMissing("there is no beanstalkd: scripts/services up installs it")
    port = port or free_port()
    words = [program, "-l", HOST, "-p", str(port), "-z", str(2 * BODIES)]
    if binlog:
        words += ["-b", str(directory)]
    with running(words, directory / "beanstalkd.log", signal.SIGTERM, lambda: _answers(port)) as process:
        yield BeanstalkServer(port, process.pid)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1.0).close()
    except OSError:
        return False
    return True
