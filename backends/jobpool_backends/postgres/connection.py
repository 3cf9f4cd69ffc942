"""One connection to the server, which never waits forever.

psycopg waits for an answer without a limit. The kernel's timers do not cover a stopped server, whose machine goes on
acknowledging what we send. So every wait here has an end, which is the connection's end too. Its state is then unknown,
and psycopg would wait again when it leaves a pipeline or a transaction.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from psycopg.waiting import Ready, Wait

from jobpool.errors import ConfigurationError
from jobpool_backends.postgres.address import Address

if TYPE_CHECKING:
    from psycopg.abc import RV, PQGen

OLDEST_SERVER = 130000  # Postgres 13, as libpq writes it
PREPARE_AFTER = 2  # executions of a statement: one that is asked once is not worth it

_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}

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


class AnswerTimeout(psycopg.OperationalError):
    """The server has not answered in time: whether it did what it was asked is not known."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection, for one thread at a time.

    Attributes:
        answer_timeout: Seconds to wait for each answer.
        pooled: True if there is a pooler, so that each transaction may meet another session.
    """

    answer_timeout: float = 3.0
    pooled: bool = False

    def wait(self, gen: PQGen[RV], interval: float = 0.0, timeout: float | None = None) -> RV:
        """Drive `gen`, psycopg's side of one exchange, to its end; `AnswerTimeout` when that takes too long."""
        del interval  # of looking for signals: they interrupt a poll by themselves
        answer_timeout = self.answer_timeout if timeout is None else timeout
        give_up = time.monotonic() + answer_timeout
        poll = select.poll()
        socket = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                poll.register(socket, _EVENTS[wanted])
                found = poll.poll(max(0.0, give_up - time.monotonic()) * 1000)
                if not found:
                    self.close()
                    raise AnswerTimeout(f"no answer within {answer_timeout:g} s")
                events = found[0][1]
                ready = (Ready.R if events & select.POLLIN else 0) | (Ready.W if events & select.POLLOUT else 0)
                wanted = gen.send(ready or wanted)  # after an error or a hang-up: libpq then names the error
        except StopIteration as end:
            answer: RV = end.value
            return answer


def connect(address: Address) -> Connection:
    """Return a new connection in autocommit, ready for use.

    Raises `psycopg.Error` (see `errors`), or `ConfigurationError` for a server that is too old. Blocks for
    `connect_timeout` for each host in turn, and for `timeout` after that.
    """
    connection = Connection.connect(
        make_conninfo(**address.parameters), autocommit=True, prepare_threshold=PREPARE_AFTER
    )
    try:
        connection.answer_timeout = address.timeout
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise ConfigurationError(
                f"the server at {address.where} is Postgres {version // 10000}, and postgresql:// needs"
                f" {OLDEST_SERVER // 10000} or later: upgrade it, or use another backend"
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
