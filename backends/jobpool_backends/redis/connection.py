"""One connection to one Redis server: how to make it, and how to find the server among several.

redis-py's `Connection` connects, speaks TLS, authenticates and frames; its clients are left out. For an EVALSHA of 500
arguments (some hundred messages) `redis.Redis` takes 143 µs of CPU, and its `Connection` 110 µs. `Connection` with
commands packed by hiredis, as here, takes 61 µs, as a bare socket does. The clients also retry with back-off, ping
before a call and hold locks, which a caller with call ids does not need.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hiredis import pack_command
from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError

from jobpool.errors import AccessRefused, BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.redis.errors import explain

Result = TypeVar("Result")
Word = str | bytes | int | float

MIN_SHARE_S = 0.25  # for each of many servers: less would pass over servers that are merely far away


class Connection:
    """A connection, for one thread at a time. Raises redis-py's errors; broken, it stays so.

    Attributes:
        used: It has answered before, so that a break found now may be an old one.
        ident: The server's id of it, once asked for; 0 before.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        connection.connect()
        self._socket: socket.socket = connection._sock  # redis-py has no public name for it
        self.fileno = self._socket.fileno  # readable when an answer is there
        self.close = connection.disconnect  # safe to call twice
        self.used = False
        self.ident = 0

    def ask(self, words: Sequence[Word]) -> Any:
        """Return the answer to one command, within the endpoint's `timeout`."""
        self._connection.send_packed_command((_pack(words),), False)
        return self._connection.read_response()

    def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Return the answers to all commands, sent at once; refusals are values among them."""
        self._connection.send_packed_command((b"".join(map(_pack, commands)),), False)
        answers = []
        for _ in commands:
            try:
                answers.append(self._connection.read_response())
            except ResponseError as error:
                answers.append(error)
        return answers

    def send(self, words: Sequence[Word]) -> None:
        self._connection.send_packed_command((_pack(words),), False)

    def receive(self, limit: float) -> Any:
        """Return the answer to a command that was sent, within `limit` seconds."""
        return self._connection.read_response(timeout=limit)

    def interrupt(self) -> None:
        """Wake the thread that waits on this connection, from any other. Not a close: the number may be reused."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _pack(words: Sequence[Word]) -> bytes:
    return pack_command(tuple(words))  # type: ignore[arg-type, no-any-return]  # its stub says a tuple of one


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server, and how to connect to it.

    Attributes:
        host: Name or address; empty when `path`, of a Unix socket, is set.
        password: None = do not authenticate. `username` None = Redis's `default`.
        timeout: Seconds for an answer, and for a TLS or authentication step.
        connect_timeout: Seconds for a connection, to each address that the host name has.
        tls: redis-py's `ssl_…` options; None = no TLS.
        role: In error texts.
    """

    host: str = ""
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout: float = 2.0
    connect_timeout: float = 2.0
    tls: Mapping[str, Any] | None = field(default=None, repr=False)
    role: str = "Redis"

    @property
    def name(self) -> str:
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def title(self) -> str:
        """Name in error texts."""
        return f"{self.role} at {self.name}" if self.host or self.path else self.role

    def open(self) -> Connection:
        """Return a new connection, ready for commands. Raises redis-py's errors."""
        kind: Any = UnixDomainSocketConnection if self.path else TcpConnection if self.tls is None else SSLConnection
        place: dict[str, Any] = {"path": self.path} if self.path else {"host": self.host, "port": self.port}
        return Connection(
            kind(
                **place,
                **(self.tls or {}),
                db=self.db,
                username=self.username,
                password=self.password,
                socket_timeout=self.timeout,
                socket_connect_timeout=self.connect_timeout,
                protocol=2,  # no HELLO on each connection, and nothing is pushed
                driver_info=None,  # nor CLIENT SETINFO
            )
        )


def open_and_ask(endpoint: Endpoint, *words: Word) -> tuple[Connection, Any]:
    """Return a new connection, and the answer to a first command on it. Raises as a link's calls do."""
    try:
        connection = endpoint.open()
        try:
            return connection, connection.ask(words)
        except BaseException:  # also an interrupt: the caller has no connection yet to close
            connection.close()
            raise
    except RedisError as error:
        raise (explain(error, endpoint).error or error) from error


def ask_in_turn(servers: Sequence[Endpoint], ask: Callable[[Endpoint], Result], what: str) -> tuple[int, Result]:
    """Return the first answer that `ask` gets, and the place of the server that gave it.

    Blocks for little longer than one server may take to connect, however many are silent: they share that time.
    Raises `ConfigurationError` where one refuses us, else `BackendUnavailable`: `what`, and the trouble of each.
    """
    timeout = servers[0].connect_timeout
    share = min(timeout, max(timeout / len(servers), MIN_SHARE_S))
    give_up = time.monotonic() + timeout
    troubles: list[JobpoolError] = []
    for place, server in enumerate(servers):
        try:
            return place, ask(replace(server, connect_timeout=share, timeout=share))
        except JobpoolError as trouble:
            troubles.append(trouble)
        if time.monotonic() >= give_up:
            break
    refusal = next((trouble for trouble in troubles if isinstance(trouble, ConfigurationError)), None)
    raise refusal or BackendUnavailable(f"{what}: {'; '.join(map(str, troubles))}")


class Sentinels:
    """The way to the master of one service.

    Each new connection asks the sentinels anew, and the server is asked if it agrees. A master that was demoted closes
    its connections or answers READONLY; the link then throws all of them away, so the next call comes here. Nobody
    listens for announcements: an answer costs a millisecond when a connection breaks, and nothing otherwise.

    Attributes:
        place: The master, wherever it is.
    """

    def __init__(self, seeds: Sequence[Endpoint], node: Endpoint, service: str) -> None:
        self._seeds = tuple(replace(seed, role="Redis sentinel") for seed in seeds)
        self._node = replace(node, role=f"Redis master {service}")
        self._service = service
        names = ", ".join(seed.name for seed in seeds)
        self.place = replace(self._node, role=f"{self._node.role} (sentinels {names})")

    def open(self) -> Connection:
        """Return a connection to the master. Raises as a link's calls do.

        Blocks for the sentinels `connect_timeout` in all, however many are silent; then as for one server.
        """
        seeds = self._seeds
        place, master = ask_in_turn(seeds, self._find_master, f"no sentinel names the master of {self._service}")
        self._seeds = seeds[place:] + seeds[:place]  # the one that answered is asked first next time
        connection, [role, *_] = open_and_ask(master, "ROLE")
        if role != b"master":
            connection.close()
            raise BackendUnavailable(
                f"{master.title} is a replica still: a failover is under way, or the sentinels are wrong"
            )
        return connection

    def _find_master(self, sentinel: Endpoint) -> Endpoint:
        connection, answer = open_and_ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        connection.close()
        if answer is None:
            raise AccessRefused(
                f"{sentinel.title} knows no service {self._service!r}: write the one of its `sentinel monitor` line"
            )
        return replace(self._node, host=answer[0].decode(), port=int(answer[1]))
