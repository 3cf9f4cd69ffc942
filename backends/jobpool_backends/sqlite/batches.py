"""Batches: members are counted in the transactions that add and end them; the last end brings the callbacks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from jobpool.broker.values import NewBatch, NewMessage
from jobpool.errors import InvalidJob
from jobpool.message.batches import BATCH_MEMORY_S, MAX_FAILED_IDS, NOT_OPEN, BatchStatus, with_end
from jobpool_backends.shared import micros
from jobpool_backends.sql import read_batch
from jobpool_backends.sqlite import enqueue
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import EACH
from jobpool_backends.sqlite.step import Step, sweeping

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"  # columns that count ends

_IS_KNOWN = "SELECT 1 FROM batches WHERE id = ?"
_OPEN = "INSERT INTO batches (id, parent, created_at, callbacks) VALUES (?, ?, ?, ?)"
_NEST = "UPDATE batches SET total = total + 1, nested = json_insert(nested, '$[#]', ?) WHERE id = ? AND open"
_CLOSE = "UPDATE batches SET open = 0, stopped = stopped OR ? WHERE id = ? AND ended_at IS NULL"
_MEMBERS = f"SELECT batch, id FROM messages WHERE seq IN {EACH} AND batch IS NOT NULL"
_LEAVE_BATCH = f"UPDATE messages SET batch = NULL WHERE seq IN {EACH}"
_COUNT = "UPDATE batches SET succeeded = succeeded + ?, failed = failed + ?, cancelled = cancelled + ? WHERE id = ?"
_FAILED_IDS = "SELECT failed_ids FROM batches WHERE id = ?"
_NOTE = "UPDATE batches SET failed_ids = ? WHERE id = ?"
_STATUS = """
SELECT id, open, total, succeeded, failed, cancelled, failed_ids, created_at, ended_at, parent, nested, stopped,
    callbacks
FROM batches WHERE id = ?
"""
_IS_OVER = "AND NOT open AND ended_at IS NULL AND total = succeeded + failed + cancelled"
_END = "UPDATE batches SET ended_at = ?, until = ? WHERE id = ?"
_LIVING = "SELECT id FROM messages INDEXED BY messages_of_batch WHERE batch = ? ORDER BY seq LIMIT ?"
_SWEEP = sweeping("batches", "id")


class SqliteBatches:
    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, batch: NewBatch) -> None:
        named = {"on_success": batch.on_success, "on_done": batch.on_done}
        callbacks = json.dumps({name: new and new.to_dict() for name, new in named.items()})
        with self._database.write() as step:
            step.execute(_SWEEP, (step.now.wall,))
            if step.execute(_IS_KNOWN, (batch.id,)).fetchone():
                return
            if batch.parent is not None and not step.execute(_NEST, (batch.id, batch.parent)).rowcount:
                raise InvalidJob(NOT_OPEN.format(batch.parent))
            step.execute(_OPEN, (batch.id, batch.parent, step.now.wall, callbacks))

    def close(self, ident: str, stop: bool = False) -> None:
        with self._database.write() as step:
            step.execute(_CLOSE, (stop, ident))
            _touch(step, ident)

    def get(self, ident: str) -> BatchStatus | None:
        with self._database.session() as connection:
            row = connection.execute(_STATUS + "AND (until IS NULL OR until > ?)", (ident, self._database.wall()))
            found = row.fetchone()
        return read_batch(found, json.loads) if found else None

    def members(self, ident: str, limit: int) -> list[str]:
        with self._database.session() as connection:
            return [found for (found,) in connection.execute(_LIVING, (ident, limit))]


def end_members(step: Step, sequence: Sequence[int], how: str) -> None:
    """Count the ends of those of these messages that are members; they are none any more. Call it before their end."""
    numbers = json.dumps(sequence)
    rows = step.execute(_MEMBERS, (numbers,)).fetchall()
    for batch, ident in rows:
        end(step, batch, ident, how)
    if rows:
        step.execute(_LEAVE_BATCH, (numbers,))


def end(step: Step, batch: str, member: str, how: str) -> None:
    """Count the end of one member with this transaction."""
    _touch(step, batch).append((member, how))


def _touch(step: Step, batch: str) -> list[tuple[str, str]]:
    step.at_end = _finish
    return step.ended_members.setdefault(batch, [])


def _finish(step: Step) -> None:
    """Write the counts, end the batches that are over, and add their callbacks."""
    while step.ended_members:
        batch, ends = step.ended_members.popitem()
        _count(step, batch, ends)
        row = step.execute(_STATUS + _IS_OVER, (batch,)).fetchone()
        if row is not None:
            _bring(step, row)


def _count(step: Step, batch: str, ends: Iterable[tuple[str, str]]) -> None:
    counts = Counter(how for _, how in ends)
    step.execute(_COUNT, (counts[SUCCEEDED], counts[FAILED], counts[CANCELLED], batch))
    failed = [member for member, how in ends if how == FAILED]
    if failed:
        known = json.loads(step.execute(_FAILED_IDS, (batch,)).fetchone()[0])
        if len(known) < MAX_FAILED_IDS:
            step.execute(_NOTE, (json.dumps([*known, *failed][:MAX_FAILED_IDS]), batch))


def _bring(step: Step, row: tuple[Any, ...]) -> None:
    status, now = read_batch(row, json.loads), step.now.wall
    step.execute(_END, (now, now + micros(BATCH_MEMORY_S), status.id))
    stored = {name: new and NewMessage.from_dict(new) for name, new in json.loads(row[-1]).items()}
    failed = status.stopped or status.succeeded < status.total
    callbacks = NewBatch(status.id, status.parent, **stored).callbacks(failed)
    end_of_batch = status.end()
    enqueue.add(step, [replace(new, body=with_end(new.body, end_of_batch)) for new in callbacks], brought=True)
    if status.parent is not None:
        end(step, status.parent, status.id, CANCELLED if status.stopped else FAILED if failed else SUCCEEDED)
