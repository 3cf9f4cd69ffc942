"""Batches: one function of the schema a step; see `sql/batches.sql`."""

from __future__ import annotations

from typing import Any

import orjson

from jobpool.broker.values import NewBatch, NewMessage
from jobpool.message.batches import BatchStatus
from jobpool.message.names import storable
from jobpool_backends.postgres.database import Database
from jobpool_backends.shared import micros
from jobpool_backends.sql import read_batch


class PostgresBatches:
    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, batch: NewBatch) -> None:
        named = [_callback(new, only_success=True) for new in [batch.on_success] if new]
        named += [_callback(new, only_success=False) for new in [batch.on_done] if new]
        self._database.value("open_batch", batch.id, batch.parent, orjson.dumps(named).decode())

    def close(self, ident: str, stop: bool = False) -> None:
        self._database.value("close_batch", storable(ident), stop)

    def get(self, ident: str) -> BatchStatus | None:
        rows = self._database.call("find_batch", storable(ident))
        return read_batch(rows[0]) if rows else None

    def members(self, ident: str, limit: int) -> list[str]:
        return [member for (member,) in self._database.call("list_members", storable(ident), limit)]


def _callback(new: NewMessage, only_success: bool) -> dict[str, Any]:
    """Return a message as JSON that Postgres reads as a row."""
    return {
        "id": new.id,
        "given": new.given,
        "queue": new.queue,
        "handler": new.handler,
        "priority": new.priority,
        "due": None if new.due is None else micros(new.due),
        "body": f"\\x{new.body.hex()}",
        "unique_key": None if new.unique_key is None else storable(new.unique_key),
        "batch": new.batch,
        "only_success": only_success,
    }
