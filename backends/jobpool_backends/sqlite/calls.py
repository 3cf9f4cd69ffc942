"""Memory that makes a repeated request harmless: calls for a minute, ids that a producer gave for ten.

One row a call, not a message, written in the transaction of the call itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from jobpool.broker.values import ENQUEUE_MEMORY, REMEMBER_CALLS
from jobpool.message.settlement import Settled
from jobpool_backends.shared import MICRO, micros

_LETTERS = {Settled.OK: "o", Settled.NOT_IN_FLIGHT: "n", Settled.EXPIRED: "e", Settled.NOT_OWNER: "w"}
_REPEATED = {letter: answer for answer, letter in _LETTERS.items()} | {"o": Settled.ALREADY}

SWEEP_BATCH_ROWS = 2000


def recall(connection: sqlite3.Connection, call: str, now: int) -> str | None:
    """Return the answer that `remember` kept under this id; None if it is too long ago or never was."""
    row = connection.execute("SELECT answer FROM calls WHERE id = ? AND until > ?", (call, now)).fetchone()
    return row[0] if row else None


def remember(connection: sqlite3.Connection, call: str, answer: str, now: int) -> None:
    connection.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", (call, now + micros(REMEMBER_CALLS), answer))


def remember_ended(connection: sqlite3.Connection, idents: Iterable[str], now: int) -> None:
    """Keep the ids of messages that have come to their end."""
    until = now + micros(ENQUEUE_MEMORY)
    connection.executemany("INSERT OR REPLACE INTO ended VALUES (?, ?)", [(ident, until) for ident in idents])


def write_answers(answers: Iterable[Settled]) -> str:
    return "".join([_LETTERS[answer] for answer in answers])


def repeat_answers(text: str) -> list[Settled]:
    """Return the answers of the first time, with ALREADY for OK."""
    return [_REPEATED[letter] for letter in text]


def sweeping(table: str, key: str) -> str:
    """Return SQL that drops a piece of the rows past their `until`; `key` is the table's primary key."""
    oldest = f"SELECT {key} FROM {table} WHERE until <= ? ORDER BY until LIMIT {SWEEP_BATCH_ROWS}"
    return f"DELETE FROM {table} WHERE ({key}) IN ({oldest})"


class Sweeper:
    """A sweeper of outdated rows, a bounded piece at a time, within write transactions.

    Shared by threads without a lock: all that a race can do is sweep once too often.

    Args:
        tables: Each with its primary key; what has reached its `until` is dropped.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self._next = 0
        self._statements = [sweeping(table, key) for table, key in tables.items()]

    def sweep(self, connection: sqlite3.Connection, now: int) -> bool:
        """Delete a piece, when a second has passed since the last or that one was full; whether it looked."""
        if now < self._next <= now + MICRO:
            return False
        swept = max(connection.execute(sql, (now,)).rowcount for sql in self._statements)
        self._next = now if swept >= SWEEP_BATCH_ROWS else now + MICRO
        return True
