"""Within a transaction of the caller's own: enqueueing, and a handler's ack of its own message.

Works on a connection of psycopg 3 to the queue's database. Nothing is committed here, and nothing about the connection
is changed. A connection in autocommit with no transaction open is refused: each call would be a transaction of its own.
A handler imports this module in a child, and the child stays small: nothing else of the backend comes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from jobpool.broker.values import NewMessage, Ticket
from jobpool.errors import ConfigurationError, InvalidJob, LeaseLost
from jobpool.message.batches import NOT_OPEN
from jobpool.message.names import storable
from jobpool_backends.shared import micros

HOME = """
(SELECT current_database() || to_char(min(applied_at) AT TIME ZONE 'UTC', ' YYYYMMDDHH24MISSUS')
 FROM {schema}.migrations)
"""
"""Tells apart databases that have a schema of the same name. It is the same through any pooler, host or user."""

ENQUEUE = """
SELECT {schema}.enqueue(%(ids)b::text[], %(given)b::boolean[], %(queues)b::text[], %(handlers)b::text[],
    %(priorities)b::smallint[], %(dues)b::bigint[], %(bodies)b::bytea[]{eager})
"""
BRING = """
SELECT * FROM {schema}.bring(%(ids)b::text[], %(given)b::boolean[], %(queues)b::text[], %(handlers)b::text[],
    %(priorities)b::smallint[], %(dues)b::bigint[], %(bodies)b::bytea[], %(unique_keys)b::text[],
    %(attempts)b::integer[], %(crashes)b::integer[], %(deliveries)b::bigint[], %(errors)b::text[],
    %(causes)b::text[]{eager}, batches => %(batches)b::text[], brought => %(brought)b)
"""
_ACK = f"""
SELECT {HOME}, {{schema}}.settle(%(call)b::text, ARRAY[%(queue)b::text], ARRAY[%(seq)b::bigint],
    ARRAY[%(holder)b::bigint])
"""
_ACK_GUARDED = f"""
SELECT {HOME}, {{schema}}.settle(%(call)b::text, '{{}}', '{{}}', '{{}}', ARRAY[%(queue)b::text], ARRAY[%(seq)b::bigint],
    ARRAY[%(holder)b::bigint], 'a', ARRAY[-1], keys => ARRAY[%(key)b::text], keeps => ARRAY[%(keep)b::bigint])
"""
_DEFER = "SET CONSTRAINTS {schema}.end_batch DEFERRED"
_AT_HOME = f"WHERE {HOME} = %(home)s"
_ELSEWHERE = f"UNION ALL SELECT NULL, NULL WHERE {HOME} IS DISTINCT FROM %(home)s"
_SNAPSHOT = (
    "jobpool: the lease was renewed, or a member of its batch ended, after this transaction had taken its snapshot. Ack"
    " in a transaction with isolation level READ COMMITTED, or ack first"
)
_AUTOCOMMIT = (
    "the connection is in autocommit, with no transaction open: work within `with connection.transaction():`, or"
    " connect without autocommit (in Django: within transaction.atomic())"
)
_FIELDS = {"ids": "id", "queues": "queue", "handlers": "handler", "priorities": "priority", "bodies": "body"}
_MENDS = {
    "sqlalchemy": "with an engine of postgresql+psycopg://, pass connection.connection.driver_connection; of a session,"
    " session.connection().connection.driver_connection",
    "django": "with psycopg 3 installed, pass django.db.connection.connection",
    "psycopg": "pass the connection itself, and not an asynchronous one",
    **dict.fromkeys(
        ("psycopg2", "asyncpg", "pg8000", "aiopg"),
        "open one with psycopg.connect(), and do in its transaction what must go together",
    ),
}
BATCH_NOT_OPEN = "JP002"
"""The server's word for it when a message's batch is not open, whose id it tells."""

_ANSWERS = {"n": "not in flight", "e": "expired", "w": "not the owner"}


class OtherDatabase(ConfigurationError):
    """The connection leads to a schema other than `home`. Nothing was done on it."""


def enqueue(
    connection: object, schema: str, home: str, messages: Sequence[NewMessage], brought: bool = False
) -> dict[str, str]:
    """Add messages on the caller's connection; return the ids left out because of a unique key → the ids that have it.

    `home`: `HOME` in the queue's database; else `OtherDatabase` is raised. `brought`: by a settlement. The commit
    wakes waiters. Waits for another transaction that has claimed such a key, as with any unique index, or that counts a
    member of the same batch. Raises `ConfigurationError`, or what psycopg raises; `InvalidJob` for a batch that is not
    open. After that the transaction can only be rolled back.
    """
    if all(map(is_plain, messages)):
        if not _ask(connection, schema, f"{ENQUEUE} {_AT_HOME}", columns(messages) | {"home": home}):
            raise _other_database(connection)
        return {}
    parameters = all_columns(messages, brought) | {"home": home}
    known = dict(_ask(connection, schema, f"{BRING} {_AT_HOME} {_ELSEWHERE}", parameters))
    if None in known:
        raise _other_database(connection)
    return known


def ack(connection: object, ticket: Ticket, messages: Sequence[NewMessage] = ()) -> Callable[[], bool]:
    """Ack the ticket's message on the handler's connection, and enqueue its follow-ups; see `QueueBackend.ticket`.

    From here to its end the transaction locks the message: renewals and reaps pass it by. It also locks the message's
    batch: a settlement or an enqueue of another member waits.

    Raises `LeaseLost`, `ConfigurationError` for a connection that leads elsewhere, or what psycopg raises. Above READ
    COMMITTED that is a `SerializationFailure` when the lease was renewed since the transaction began. So it is when
    another member of the batch was added or has ended.
    """
    schema = str(ticket["schema"])
    lease = {"call": f"ack:{ticket['owner']}", "key": None, **ticket}
    if any(message.batch is not None for message in messages):
        # The caller may have made all constraints immediate: the batch would end before these have joined.
        _ask(connection, schema, _DEFER, {})
    try:
        [(home, answer)] = _ask(connection, schema, _ACK_GUARDED if "keep" in ticket else _ACK, lease)
    except psycopg.errors.SerializationFailure as error:
        error.add_note(_SNAPSHOT)
        raise
    if answer not in ("o", "a"):
        if home != ticket["home"]:
            raise _other_database(connection)
        why = _ANSWERS.get(answer, answer)
        raise LeaseLost(f"the lease of message {ticket['id']} in queue {ticket['queue']!r} has ended: {why}")
    if messages and answer == "o":  # else this is the second time within the transaction
        enqueue(connection, schema, home, messages, brought=True)
    # A lost connection's status is unknown: its transaction is over, too.
    over = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    return lambda: _check(connection).info.transaction_status not in over


def columns(messages: Sequence[NewMessage]) -> dict[str, list[Any] | None]:
    """Return the parameters of the function `enqueue`."""
    found: dict[str, list[Any] | None] = {
        name: [getattr(message, field) for message in messages] for name, field in _FIELDS.items()
    }
    found["given"] = [message.given for message in messages]
    return found | {"dues": or_null([None if message.due is None else micros(message.due) for message in messages])}


def is_plain(message: NewMessage) -> bool:
    """Return whether `columns` says all there is to say: no key, no batch, and it does not come from another queue."""
    counters = message.deliveries == message.attempts == message.crashes == 0
    return counters and message.unique_key is None and message.batch is None


def all_columns(messages: Sequence[NewMessage], brought: bool = False) -> dict[str, Any]:
    """Return the parameters of the function `bring`, which may leave out an id only once."""
    messages = distinct(messages)
    found: dict[str, Any] = {**columns(messages)}
    for name in ("attempts", "crashes", "deliveries"):
        found[name] = [getattr(message, name) for message in messages]
    for name, field in {"unique_keys": "unique_key", "errors": "last_error", "causes": "cause"}.items():
        texts = [getattr(message, field) for message in messages]
        found[name] = or_null([None if text is None else storable(text) for text in texts])
    return found | {"batches": or_null([message.batch for message in messages]), "brought": brought}


def distinct(messages: Sequence[NewMessage]) -> list[NewMessage]:
    """Return the first message of each id, in their order."""
    by_id: dict[str, NewMessage] = {}
    for message in messages:
        by_id.setdefault(message.id, message)
    return list(by_id.values())


def or_null(values: list[Any]) -> list[Any] | None:
    """Return an array as a parameter; NULL for one of NULLs alone, which says the same.

    psycopg would write that as text, which under `array_nulls = off` holds the word NULL.
    """
    return None if values.count(None) == len(values) else values


def _ask(connection: object, schema: str, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of one statement, through a cursor of our own making."""
    own = _check(connection)
    if own.info.transaction_status == TransactionStatus.IDLE and own.autocommit:
        raise ConfigurationError(_AUTOCOMMIT)
    try:
        with psycopg.Cursor(own, row_factory=tuple_row) as cursor:
            filled = sql.replace("{eager}", ", eager => true").replace("{schema}", f'"{schema}"')
            cursor.execute(filled, parameters, prepare=False)
            rows = [] if sql is _DEFER else cursor.fetchall()
            # The caller's client encoding may be SQL_ASCII: texts are then bytes, of UTF-8 as in the database.
            return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]
    except (
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.UndefinedObject,
    ) as error:
        lack = f"has no current schema {schema!r} of jobpool's"
        mend = "connect to the queue's database, or run `jobpool init` on it"
        raise ConfigurationError(_leads(connection, f"{lack}: {mend}")) from error
    except psycopg.Error as error:
        if error.sqlstate == BATCH_NOT_OPEN:
            raise not_open(error) from error
        raise


def _leads(connection: object, what: str) -> str:
    info = _check(connection).info
    return f"the connection leads to database {info.dbname!r} on {info.host}:{info.port}, which {what}"


def _other_database(connection: object) -> OtherDatabase:
    return OtherDatabase(_leads(connection, "is not the queue's database: connect to that"))


def not_open(error: psycopg.Error) -> InvalidJob:
    """Return the meaning of an error with the state `BATCH_NOT_OPEN`."""
    return InvalidJob(NOT_OPEN.format(error.diag.message_primary))


def _check(connection: object) -> psycopg.Connection[Any]:
    if isinstance(connection, psycopg.Connection):
        return connection
    kind = type(connection)
    mend = _MENDS.get(kind.__module__.partition(".")[0], "pass the one that psycopg.connect() gave")
    raise ConfigurationError(
        "postgresql:// needs a connection of psycopg 3 (psycopg.Connection), not a"
        f" {kind.__module__}.{kind.__qualname__}: {mend}"
    )
