"""Messages on their way in: one, a few by arrays, many by COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import psycopg

from jobpool.broker.claim_store import NewPost
from jobpool.broker.packing import in_batches
from jobpool.broker.values import Existing, NewMessage
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.in_transaction import BRING, ENQUEUE, all_columns, columns, distinct, is_plain
from jobpool_backends.shared import micros

COPY_FROM = 50  # messages in one call from which on COPY is cheaper, though it takes three round trips more

# The most in one statement, so that each is answered in time; all are one transaction.
_PIECE_MESSAGES = 10_000
_PIECE_BYTES = 16 * 1024 * 1024

_ONE = """
SELECT {schema}.enqueue_one(
    %(ids)b, %(given)b, %(queues)b, %(handlers)b, %(priorities)b::smallint, %(dues)b::bigint, %(bodies)b)
"""
_FEW = ENQUEUE.replace("{eager}", "")
_BRING = BRING.replace("{eager}", "")
_BEGIN = "SELECT {schema}.begin_enqueue()"
_COPY = """
COPY {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
FROM STDIN (FORMAT BINARY)
"""
_TYPES = ["int8", "int8", "int2", "int2", "bool", "bool", "text", "text", "text", "bytea"]
_FINISH = "SELECT {schema}.finish_enqueue(%(given)b::text[], %(ready)b::text[], %(now)b::bigint)"

Sized = TypeVar("Sized", NewMessage, NewPost)


class Enqueuer:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, messages: Sequence[NewMessage]) -> Existing | None:
        """Add those whose id or unique key is not known yet, in their order, all or none; return the keys' holders.

        A minted id is forgotten when its job ends, so one whose answer was lost may not be sent again.
        """
        given = all(message.given for message in messages)
        if not all(map(is_plain, messages)):
            messages = distinct(messages)  # also of two pieces
            if len(list(in_pieces(messages))) == 1:
                return dict(self._database.run(_BRING, all_columns(messages), repeatable=given))
            return self._database.transaction(lambda connection: self.add_on(connection, messages), repeatable=given)
        if len(messages) == 1:
            one = {name: values and values[0] for name, values in columns(messages).items()}
            self._database.run(_ONE, one, repeatable=given)
        elif len(messages) < COPY_FROM:
            self._database.run(_FEW, columns(messages), repeatable=given)
        else:
            self._add_many(messages, given)
        return None

    def add_on(
        self, connection: psycopg.Connection[Any], messages: Sequence[NewMessage], brought: bool = False
    ) -> Existing:
        """Return the same within a transaction that is open on this connection, a few in a statement."""
        known: dict[str, str] = {}
        for piece in in_pieces(messages):
            if all(map(is_plain, piece)):
                connection.execute(self._database.fill(_FEW), columns(piece))
            else:
                asked = all_columns(piece, brought)
                known.update(connection.execute(self._database.fill(_BRING), asked).fetchall())
        return known

    def _add_many(self, messages: Sequence[NewMessage], given: bool) -> None:
        """Enqueue by COPY, which has no exceptions: a known id undoes it, and then each message is added by itself."""
        new, transaction = distinct(messages), self._database.transaction
        try:
            transaction(lambda connection: self._copy_on(connection, new), pipelined=False, repeatable=given)
        except psycopg.errors.UniqueViolation:
            transaction(lambda connection: self.add_on(connection, new), repeatable=given)

    def _copy_on(self, connection: psycopg.Connection[Any], messages: Sequence[NewMessage]) -> None:
        with psycopg.Cursor(connection) as cursor:
            [(now,)] = cursor.execute(self._database.fill(_BEGIN)).fetchall()
            ready: set[str] = set()
            for piece in in_pieces(messages):
                with cursor.copy(self._database.fill(_COPY)) as copy:
                    copy.set_types(_TYPES)
                    for message in piece:
                        due = now if message.due is None else max(now, micros(message.due))
                        later, names = due > now, (message.id, message.queue, message.handler)
                        facts = (message.priority, int(later), message.given, not later)
                        copy.write_row((now, due, *facts, *names, message.body))
                        if not later:
                            ready.add(message.queue)
            given = [message.id for message in messages if message.given]
            cursor.execute(self._database.fill(_FINISH), {"given": given, "ready": sorted(ready), "now": now})


def in_pieces(messages: Sequence[Sized]) -> Iterator[Sequence[Sized]]:
    """Yield them in pieces, each small enough for one statement."""
    return in_batches(messages, _PIECE_MESSAGES, _PIECE_BYTES, lambda message: len(message.body))
