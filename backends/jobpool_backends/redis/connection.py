"""One connection to one Redis server: how to make it, how to find the server among several, and its errors' meaning.

redis-py's `Connection` connects, speaks TLS, authenticates and frames; its clients are left out. For an EVALSHA of 500
arguments (some hundred messages) `redis.Redis` takes 143 µs of CPU, and its `Connection` 110 µs. `Connection` with
commands packed by hiredis, as here, takes 61 µs, as a bare socket does. The clients also retry with back-off, ping
before a call and hold locks, which a caller with call ids does not need.

A refusal by the server begins with a word (`READONLY …`). One table turns it into `BackendUnavailable` (wait, or mend
the server) or `AccessRefused` (mend the settings, or its rights). A break of the connection carries the operating
system's error. An error in no table is a fault of ours, such as an error in a script, and stays as it is.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else the first look for a host imports it, which a fork may cut short
import errno
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from hiredis import pack_command
from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, InvalidResponse, RedisError, ResponseError, TimeoutError

from jobpool.errors import AccessRefused, BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.errors import HUNG_UP, Meaning, outage, refusal, unreached, write_refusal
from jobpool_backends.polling import is_readable

Result = TypeVar("Result")
Word = str | bytes | int | float
_NUMBERS = (int, float)

WORDS_AT_ONCE = 50_000
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
        self.send(words)
        return self._connection.read_response()

    def ask_many(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Return the answers to all commands, sent at once; refusals are values among them."""
        self._send(b"".join(map(_pack, commands)))
        answers = []
        for _ in commands:
            try:
                answers.append(self._connection.read_response())
            except ResponseError as error:
                answers.append(error)
        return answers

    def send(self, words: Sequence[Word]) -> None:
        self._send(_pack(words))

    def _send(self, packed: bytes) -> None:
        """Send on the socket itself: redis-py's way there costs a cold program 20 µs, and would connect anew."""
        try:
            self._socket.sendall(packed)
        except OSError as error:
            kind = TimeoutError if isinstance(error, socket.timeout) else ConnectionError
            raise kind(f"cannot send: {error}") from error

    def receive(self, limit: float) -> Any:
        """Return the answer to a command that was sent, within `limit` seconds."""
        return self._connection.read_response(timeout=limit)

    def is_closed(self) -> bool:
        """Return whether the other side has closed it: nothing else is to be read between two calls."""
        return is_readable(self.fileno())

    def interrupt(self) -> None:
        """Wake the thread that waits on this connection, from any other. Not a close: the number may be reused."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _pack(words: Sequence[Word]) -> bytes:
    # Of numbers hiredis 3.5 makes text itself, and crashes if a signal's handler raises meanwhile, as Ctrl-C does.
    text = [str(word) if type(word) in _NUMBERS else word for word in words]
    if len(text) > WORDS_AT_ONCE:  # other threads wait for a step of C
        parts = [text[start : start + WORDS_AT_ONCE] for start in range(0, len(text), WORDS_AT_ONCE)]
        return b"*%d\r\n" % len(text) + b"".join(_pack(part).partition(b"\r\n")[2] for part in parts)
    return pack_command(tuple(text))  # type: ignore[arg-type, no-any-return]  # its stub says a tuple of one


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server, and how to connect to it."""

    host: str = ""  # name or address
    port: int = 6379
    path: str = ""  # of a Unix socket, in place of a host
    db: int = 0
    username: str | None = None  # None = Redis's `default`
    password: str | None = field(default=None, repr=False)  # None = do not authenticate
    timeout: float = 2.0  # seconds for an answer, and for a TLS or authentication step
    connect_timeout: float = 2.0  # seconds for a connection, to each address that the host name has
    tls: Mapping[str, Any] | None = field(default=None, repr=False)  # redis-py's `ssl_…` options; None = no TLS
    role: str = "Redis"  # in error texts

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
        raise explain(error, endpoint).error or error from None


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
    """The way to the master of one service: `place`, wherever it is.

    Each new connection asks the sentinels anew, and the server is asked if it agrees. A master that was demoted closes
    its connections or answers READONLY; one that its replicas have left answers NOREPLICAS. The link then throws all of
    them away, so the next call comes here. It does not listen for announcements: an answer costs a millisecond when a
    connection breaks, and nothing otherwise.
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


class Explained(NamedTuple):
    error: JobpoolError | None  # to raise; None = the original
    sound: bool = False  # the connection can be used again
    hung_up: bool = False  # the other side had closed the connection: a kept one may only have been stale


_GRANT = refusal("does not allow this user what jobpool needs: grant it the commands and the keys")
_GIVE_THE_PASSWORD = refusal(
    "wants a password, and got none: write user and password before the host in the URL, or use the option password"
    " (a sentinel's is sentinel_password)"
)
_TAKE_OUT_THE_PASSWORD = refusal("has no password set, yet one was given: leave it out, or set one there")
_TOO_OLD = refusal("does not know a command that jobpool needs: it must be Redis 6.2 or later, with no command renamed")
_MOVING = outage("is moving these keys to another node: it answers when that is done", sound=True)
_WRITE_CLUSTER = refusal("is a node of a cluster: write redis+cluster:// instead")

_BY_WORD = {
    "LOADING": outage("is loading its data from disk: it answers when that is done"),
    "READONLY": outage(
        "is a replica, which takes no writes: after a failover the next call looks for the new master; if there was"
        " none, name the master"
    ),
    "UNBLOCKED": outage("became a replica while it was waited on: the next call looks for the new master"),
    "MASTERDOWN": outage("is a replica that has lost its master: bring the master back, or let a failover finish"),
    "CLUSTERDOWN": outage("says that its cluster is down: bring the missing nodes back (redis-cli --cluster check)"),
    "BUSY": outage("is busy with a script that does not end: find its caller, or end it with SCRIPT KILL", sound=True),
    "WRONGTYPE": outage("holds another program's value under a key of jobpool's: remove that key", sound=True),
    "TRYAGAIN": _MOVING,
    "OOM": write_refusal(
        "refuses to grow, for the server's memory is full (maxmemory is reached): raise maxmemory, or remove what is"
        " not needed; nothing was changed"
    ),
    "MISCONF": write_refusal("refuses writes because it cannot save to its disk: see its log, and free some space"),
    "NOREPLICAS": write_refusal(
        "refuses writes because too few of its replicas are connected (min-replicas-to-write): bring them back"
    )._replace(sound=False),  # they may follow a new master: sentinels name it 10 s before they demote this one
    "NOAUTH": _GIVE_THE_PASSWORD,
    "WRONGPASS": refusal("refuses this password or user name: mend them in the URL or in the options"),
    "NOPERM": _GRANT,
    "DENIED": refusal(
        "is in protected mode and takes connections from its own machine only: give it a password, or bind it to an"
        " address on purpose"
    ),
    "MOVED": _WRITE_CLUSTER,
}

_BY_PHRASE = {  # as Redis 6, Redis 7 and Valkey say it
    "max number of clients": outage(  # a cluster adds "+ cluster connections"
        "has no connection left (maxclients): close some clients, or raise maxclients"
    ),
    "DB index is out of range": refusal(
        "has no database of this number: choose one below its setting `databases` (16 unless it was changed)"
    ),
    "SELECT is not allowed in cluster mode": _WRITE_CLUSTER,
    "hash to the same slot": _WRITE_CLUSTER,
    "cluster support disabled": refusal("is not a node of a cluster: write redis:// instead"),
    "'SENTINEL'": refusal("is not a sentinel: name the sentinels' own port, or write redis:// instead"),
    "unknown command": _TOO_OLD,
    "command called from": _TOO_OLD,
    "unauthenticated": _GIVE_THE_PASSWORD,  # the answer to a long command, which is not read so far as to its name
    "without any password configured": _TAKE_OUT_THE_PASSWORD,
    "no password is set": _TAKE_OUT_THE_PASSWORD,
    "access a non local key": _MOVING,
    "user executing the script can't": _GRANT,
    "ACL failure in script": _GRANT,
}

_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""Redis 6 puts the refusal of a command behind the place in the script that sent it."""

_NOT_TO_SHOW = re.compile(", with args| script: ")
"""The rest of a refusal from there on may be secret, or says nothing."""

_NO_SOCKET = {
    errno.ENOENT: "is not there: start Redis with this `unixsocket`, or mend the path",
    errno.EACCES: "may not be used by this user: mend `unixsocketperm`, or join the socket's group",
    errno.ENOTSOCK: "is not a socket: mend the path",
}


def explain(error: RedisError, place: Endpoint) -> Explained:
    hung_up = False
    meaning = _refusal(error)
    if meaning is None:
        match error:
            case InvalidResponse():
                meaning = outage("does not speak Redis's protocol; if the port wants TLS, write rediss://")
            case TimeoutError():
                meaning = outage(_slow(error, place))
            case ConnectionError():
                meaning, hung_up = _broken(error, place)
            case _:
                return Explained(None, sound=True)
    if meaning in (_GRANT, _TOO_OLD):  # the server may name it
        meaning = meaning._replace(text=f"{meaning.text} ({_NOT_TO_SHOW.split(str(error))[0].rstrip('.')})")
    return Explained(meaning.as_error(place.title), meaning.sound, hung_up)


def _refusal(error: RedisError) -> Meaning | None:
    text = str(error)
    word = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts the words that it knows
    in_script = _IN_SCRIPT.search(text)
    known = _BY_WORD.get(word) or (_BY_WORD.get(in_script[1]) if in_script else None)
    return known or next((meaning for phrase, meaning in _BY_PHRASE.items() if phrase in text), None)


def _slow(error: TimeoutError, place: Endpoint) -> str:
    if "connecting" not in str(error):
        return (
            f"did not answer within {place.timeout:g} s: see whether it runs, is stopped or has too much to do, or"
            " raise the option timeout"
        )
    tls = "" if place.tls is None else "; if the port speaks no TLS, write redis://"
    return f"took no connection in time: see whether it runs and no firewall swallows packets{tls}"


def _broken(error: ConnectionError, place: Endpoint) -> tuple[Meaning, bool]:
    """Return the meaning of a broken connection, and True if the other side had closed it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):  # the operating system's, which redis-py wrapped
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return refusal(_tls_trouble(cause)), False
    if cause is None or cause.errno in HUNG_UP or isinstance(cause, ssl.SSLError):
        hint = "if the port wants TLS, write rediss://"
        if place.tls is not None:
            hint = "if it wants a certificate, give one that it trusts as ssl_certfile; if it speaks no TLS, write redis://"
        return outage(f"closed the connection: it was stopped or restarted, or it is full (see its log); {hint}"), True
    known = unreached(cause, "Redis") or _NO_SOCKET.get(cause.errno or 0)
    return outage(known or f"cannot be reached: {cause.strerror or cause}"), False


def _tls_trouble(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return f"shows no valid certificate ({why}): renew it, name its authority with ssl_ca_certs, or mend the host"
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "speaks no TLS: write redis:// instead, or name its TLS port"
    if "CERTIFICATE" in reason or "ALERT_UNKNOWN_CA" in reason:  # the server refuses our certificate
        return f"accepts no certificate of ours ({reason}): give it one that it trusts as ssl_certfile and ssl_keyfile"
    return f"does not agree on TLS ({reason or error}): mend the ssl_… options, or the server's tls-… settings"
