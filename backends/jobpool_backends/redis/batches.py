"""Batches: opened, closed and looked at. Their members are counted by the scripts that add and end messages.

A batch is a hash of the namespace. See `lua/batches.lua` and `lua/end_batches.lua`.
"""

from __future__ import annotations

import orjson

from jobpool.broker.values import NewBatch, NewMessage
from jobpool.errors import InvalidJob
from jobpool.message.batches import NOT_OPEN, BatchStatus
from jobpool_backends.redis.keyspace import BATCH_CLOSE, BATCH_OPEN, Keyspace
from jobpool_backends.redis.records import PRIORITIES, due_word, tail_of
from jobpool_backends.shared import MICRO, unix_time

_FIELDS = ("open", "total", "succeeded", "failed", "cancelled", "failed_ids", "created", "ended", "parent", "stopped")


class Batches:
    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys

    def open(self, batch: NewBatch) -> None:
        callbacks = map(_callback_entry, (batch.on_success, batch.on_done))
        if self._keys.run(BATCH_OPEN, [""], [batch.id, batch.parent or "", *callbacks]):
            raise InvalidJob(NOT_OPEN.format(batch.parent))

    def close(self, ident: str, stop: bool = False) -> None:
        self._keys.run(BATCH_CLOSE, [""], [ident, int(stop)])

    def get(self, ident: str) -> BatchStatus | None:
        counts = ("HMGET", self._keys.shared("", f"batch:{ident}"), *_FIELDS)
        found, nested = self._keys.link.call_many([counts, ("LRANGE", self._keys.shared("", f"nested:{ident}"), 0, -1)])
        opened, total, succeeded, failed, cancelled, failed_ids, created, ended, parent, stopped = found
        if opened is None:
            return None
        return BatchStatus(
            ident,
            opened == b"1",
            int(total),
            int(succeeded),
            int(failed),
            int(cancelled),
            tuple(failed_ids.decode().splitlines()),
            int(created) / MICRO,
            unix_time(ended and int(ended)),
            parent and parent.decode(),
            tuple(each.decode() for each in nested),
            stopped is not None,
        )

    def members(self, ident: str, limit: int) -> list[str]:
        key = self._keys.shared("", f"members:{ident}")
        some = self._keys.link.call("ZRANGE", key, "-inf", "+inf", "BYSCORE", "LIMIT", 0, limit)
        return [each.decode() for each in some]


def _callback_entry(message: NewMessage | None) -> bytes:
    """Return a callback as `end_batches.lua` adds it: a line of facts, then the body; b"" for none."""
    if message is None:
        return b""
    tail = tail_of(message)
    end = tail if isinstance(tail, str) else tail.decode()
    facts = (message.queue, message.id, PRIORITIES[message.priority], str(due_word(message.due)), end)
    return orjson.dumps(facts) + b"\n" + message.body
