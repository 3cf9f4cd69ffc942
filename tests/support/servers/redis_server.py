"""A Redis of the tests' own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobpool_backends.redis.connection import Endpoint
from support.servers.process import LIMIT, ServerFailed, find_program
from support.servers.turned_time import TurnedServer
from support.waiting import wait_until

DURABLE = {"appendonly": "yes", "appendfsync": "always"}
"""Configuration with which an acknowledged write survives a kill."""

_EPHEMERAL = {"save": "", "appendonly": "no"}


class RedisServer(TurnedServer):
    """A running redis-server, on a free port of 127.0.0.1 and on a Unix socket; it keeps nothing unless asked to.

    On a turned server commands that block for a time never give up: their end is reckoned on the clock that stands
    still.

    Args:
        folder: For its log, its socket and its data; made if it is missing.
        turned: Its clock stands still until `advance` or `turn_to` moves it.
        config: Directives of redis.conf, over what is set here; `DURABLE` for one that keeps its data.

    Attributes:
        socket_path: Of its Unix socket.
        url: redis://127.0.0.1:PORT/0.
    """

    name = "redis-server"
    _password: str | None = None

    def __init__(self, folder: Path, *, turned: bool = False, config: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, turned)
        self.socket_path = folder / "redis.sock"
        if len(os.fsencode(self.socket_path)) > 107:
            raise ValueError(f"the path of a Unix socket has at most 107 bytes, which {self.socket_path} exceeds")
        self._config = dict(config or {})
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def stop(self) -> None:
        self.resume()
        # A Redis that has just become a replica drops the signal: "Writing initial AOF, can't exit."
        writes = b"aof_rewrite_in_progress:1"
        with suppress(OSError):  # it is killed, or refuses us: then it need not be waited for
            wait_until(lambda: self._over() or writes not in self._ask(b"INFO persistence\r\n"), LIMIT)
        super().stop()

    def ask(self, *words: str | int | bytes) -> Any:
        """The answer to one command, in bytes."""
        wire = Endpoint(self.host, self.port, password=self._password, timeout=LIMIT).open()
        try:
            return wire.ask(words)
        finally:
            wire.close()

    def flush(self) -> None:
        """Remove every key of every database."""
        reply = self._ask(b"FLUSHALL\r\n")
        if reply != b"+OK\r\n":
            raise ServerFailed(f"FLUSHALL was answered {reply!r}")

    def _command(self, port: int) -> list[str]:
        directives = {
            "port": str(port),
            "bind": self.host,
            "unixsocket": str(self.socket_path),
            "dir": str(self.folder),
            "daemonize": "no",
            **_EPHEMERAL,
            **self._config,
        }
        return [
            find_program("redis-server"),
            *(word for key, value in directives.items() for word in (f"--{key}", value)),
        ]

    def _answers(self) -> bool:
        """On its own socket, which is opened after the port: so the port is its own too."""
        try:
            return self._ask(b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _ask(self, command: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(str(self.socket_path))
            connection.sendall(command)
            return connection.recv(4096)

    def _gone(self, pid: int) -> None:
        # A start must not take the socket of a predecessor that was killed for its own.
        self.socket_path.unlink(missing_ok=True)
        super()._gone(pid)
