"""A beanstalkd of one's own: on loopback, on a free port, in memory or with a binlog in a directory that goes away."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.servers import beanstalk_server

from bench.servers import Asked, Server

SYNC_MS = 50
"""Between two syncs of a binlog: what beanstalkd takes by itself."""


class BeanstalkServer(Server):
    """A place is a prefix of tubes; nothing is left in them."""

    namespace = "tube_prefix"

    _program: beanstalk_server.BeanstalkServer

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
        with self._program.client() as client:
            return sum(int(count) for name, count in client.stats().items() if name.startswith("cmd-"))  # type: ignore[call-overload]


@contextmanager
def beanstalkd(directory: Path, *, binlog: bool = False) -> Iterator[BeanstalkServer]:
    """Yield a server in memory; with `binlog` it writes a log, and syncs it as it does by itself."""
    with beanstalk_server.BeanstalkServer(directory, binlog=binlog, sync_ms=SYNC_MS) as program:
        yield BeanstalkServer(program, program.url)
