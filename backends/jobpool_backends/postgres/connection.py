"""From a URL to a connection that never waits forever; a clear sentence for each mistake, and no password in a text.

libpq's own parameters (`sslmode`, `target_session_attrs`, several hosts, …) pass through; libpq itself names them.
Other options that are not ours are refused by name.

psycopg waits for an answer without a limit. The kernel's timers do not cover a stopped server, whose machine goes on
acknowledging what we send. So every wait here has an end, which is the connection's end too. Its state is then unknown,
and psycopg would wait again when it leaves a pipeline or a transaction.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo, pq
from psycopg.rows import TupleRow
from psycopg.waiting import Ready, Wait

from jobpool.broker.opening import redact
from jobpool.errors import ConfigurationError
from jobpool_backends.options import DEAD_CAPS, choice, pattern, read_options, seconds, split_query, take_caps, whole
from jobpool_backends.polling import POLLIN, POLLOUT, is_readable, poll
from jobpool_backends.shared import DeadCaps

if TYPE_CHECKING:
    from psycopg.abc import RV, PQGen

SCHEME = "postgresql"
DEFAULT_TIMEOUT = 3.0
DEFAULT_SCHEMA = "jobpool"

URL_OPTIONS = (
    seconds("timeout", DEFAULT_TIMEOUT),
    # psycopg waits for whole seconds, and for 2 at least, for each host in turn.
    whole("connect_timeout", 2, 2, 3600, "seconds"),
    pattern(
        "schema",
        DEFAULT_SCHEMA,
        "1 to 50 letters, digits or '_', starting with no digit and not with 'pg_'",
        "(?!(?i:pg_))[A-Za-z_][A-Za-z0-9_]{0,49}",
    ),
    choice("listen", True, {"auto": True, "no": False}),
    *DEAD_CAPS,
)
"""Beside those of libpq. The schema's name becomes an SQL identifier and part of a channel's name."""

_SCHEME = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PORTS = re.compile(r"[0-9,]*")
_MENDED = (
    "write postgresql://user:password@host:5432/database, with '@', '/', ':', '?' and '%' in the user or the password"
    " as %40, %2F, %3A, %3F and %25"
)

OLDEST_SERVER = 130000  # Postgres 13, as libpq writes it
_ENCODINGS = ("UTF8", None)  # a pooler may not tell
PREPARE_AFTER = 2  # executions of a statement: one that is asked once is not worth it

_EVENTS = {Wait.R: POLLIN, Wait.W: POLLOUT, Wait.RW: POLLIN | POLLOUT}

_GREET = """
SELECT pg_backend_pid() = %(pid)s,
    CASE WHEN pg_backend_pid() = %(pid)s AND current_setting('statement_timeout') = '0'
    THEN set_config('statement_timeout', %(statement)s, false) END,
    CASE WHEN pg_backend_pid() = %(pid)s AND current_setting('idle_in_transaction_session_timeout') = '0'
    THEN set_config('idle_in_transaction_session_timeout', %(idle)s, false) END
"""
"""Asks whose session this is, and sets limits in a session of our own, where nobody else has.

A pooler shows a session number of its own making, and lends its sessions to others, so their settings are not ours to
change. The server gives up a little before we do, so that no work continues there after a call has failed here. It also
ends a transaction, with its locks, whose client has vanished.
"""

_SERVER_GIVES_UP = 0.9
_IDLE_IN_TRANSACTION_MS = "10000"


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address, and the options of connections to it."""

    parameters: dict[str, str] = field(repr=False)  # libpq's, for `psycopg.connect`; they may hold a password
    timeout: float = DEFAULT_TIMEOUT  # seconds, > 0, for a statement to be answered
    schema: str = DEFAULT_SCHEMA  # of our tables; checked, not quoted
    listen: bool = True  # LISTEN may be used
    caps: DeadCaps = field(default_factory=DeadCaps)  # on the dead letters of a queue

    @property
    def where(self) -> str:
        """Host, port and database as somebody wrote them, for texts; else as libpq takes them from PGHOST and so on."""
        options = pq.Conninfo.get_defaults()
        defaults = {option.keyword.decode(): option.val.decode() for option in options if option.val}
        known = defaults | self.parameters
        hosts = (known.get("host") or known.get("hostaddr") or "the local socket").split(",")
        ports = known.get("port", "").split(",")
        if len(ports) != len(hosts):
            ports = ports[:1] * len(hosts)
        usual = defaults.get("port", "5432")
        places = (f"{host}:{port or usual}" for host, port in zip(hosts, ports, strict=True))
        database = self.parameters.get("dbname")
        return ", ".join(places) + (f" (database {database!r})" if database else "")


def read_address(url: str, options: dict[str, object] | None = None) -> Address:
    """Return the address that a URL names; options in its query, or by keyword, which win.

    Raises `ConfigurationError`: it is not a URL of libpq's, or an option is unknown or out of range.
    """
    place, found = split_query(url.strip())
    found |= options or {}
    parsed = _parse(place)
    passed = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - {one.name for one in URL_OPTIONS}
    named = {name: str(found.pop(name)) for name in list(found) if name in passed}
    values = read_options(SCHEME, found, URL_OPTIONS)
    named["connect_timeout"] = str(values.pop("connect_timeout"))
    # `timeout` bounds the wait for an answer (see `Connection`). The kernel ends other connections on a dead network:
    # idle ones, and those closed with data still to be sent.
    usual = {
        "tcp_user_timeout": str(round(values["timeout"] * 1000)),
        "keepalives_idle": "10",
        "keepalives_interval": "3",
        "keepalives_count": "3",
        "fallback_application_name": "jobpool",
    }
    return Address(usual | parsed | named | {"client_encoding": "UTF8"}, caps=take_caps(values), **values)


def _parse(place: str) -> dict[str, str]:
    """Return libpq's parameters in a URL without its query."""
    try:
        parsed = conninfo.conninfo_to_dict(_SCHEME.sub(f"{SCHEME}://", place, count=1))
    except psycopg.Error:
        parsed = None  # its text is left out: it repeats parts of the URL, and so of a password that holds an '@'
    host_holds_at = parsed is not None and "@" in str(parsed.get("host", ""))[1:]  # a first one: an abstract socket
    if parsed is None or host_holds_at or not _PORTS.fullmatch(str(parsed.get("port", ""))):
        raise ConfigurationError(f"{redact(place)!r} cannot be read: {_MENDED}")
    return {name: str(value) for name, value in parsed.items()}


class AnswerTimeout(psycopg.OperationalError):
    """The server has not answered in time: whether it did what it was asked is not known."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection, for one thread at a time."""

    answer_timeout: float = 3.0  # seconds to wait for each answer
    pooled: bool = False  # there is a pooler, so that each transaction may meet another session

    def is_closed(self) -> bool:
        """Return whether the server has closed it. It may also have told of a setting: a new one does as well."""
        return self.closed or is_readable(self.pgconn.socket)

    def wait(self, gen: PQGen[RV], interval: float = 0.0, timeout: float | None = None) -> RV:
        """Drive `gen`, psycopg's side of one exchange, to its end; `AnswerTimeout` when that takes too long."""
        del interval  # of looking for signals: they interrupt a poll by themselves
        answer_timeout = self.answer_timeout if timeout is None else timeout
        give_up = time.monotonic() + answer_timeout
        polled = poll()
        socket = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                polled.register(socket, _EVENTS[wanted])
                found = polled.poll(max(0.0, give_up - time.monotonic()) * 1000)
                if not found:
                    self.close()
                    raise AnswerTimeout(f"no answer within {answer_timeout:g} s")
                events = found[0][1]
                ready = (Ready.R if events & POLLIN else 0) | (Ready.W if events & POLLOUT else 0)
                wanted = gen.send(ready or wanted)  # after an error or a hang-up: libpq then names the error
        except StopIteration as end:
            answer: RV = end.value
            return answer


def connect(address: Address) -> Connection:
    """Return a new connection in autocommit, ready for use.

    Raises `psycopg.Error` (see `errors`), or `ConfigurationError` for a server that is too old, or a database that
    cannot keep every text. Blocks for `connect_timeout` for each host in turn, and for `timeout` after that.
    """
    connection = Connection.connect(
        conninfo.make_conninfo(**address.parameters), autocommit=True, prepare_threshold=PREPARE_AFTER
    )
    try:
        connection.answer_timeout = address.timeout
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise ConfigurationError(
                f"the server at {address.where} is Postgres {version // 10000}, and postgresql:// needs"
                f" {OLDEST_SERVER // 10000} or later: upgrade it, or use another backend"
            )
        if (encoding := connection.info.parameter_status("server_encoding")) not in _ENCODINGS:
            raise ConfigurationError(
                f"the database at {address.where} has the encoding {encoding}, and cannot keep every text: make one of"
                " another name with `createdb -E UTF8 -T template0`"
            )
        statement = str(round(address.timeout * _SERVER_GIVES_UP * 1000))
        limits = {"pid": connection.info.backend_pid, "statement": statement, "idle": _IDLE_IN_TRANSACTION_MS}
        row = connection.execute(_GREET, limits, prepare=False).fetchone()
    except BaseException:
        connection.close()
        raise
    connection.pooled = not (row and row[0])
    if connection.pooled:
        connection.prepare_threshold = None
    return connection
