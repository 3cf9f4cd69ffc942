"""The batches of one backend. Called within a turn, unless it is a method of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from jobpool.broker.values import NewBatch, NewMessage
from jobpool.errors import InvalidJob
from jobpool.message.batches import BATCH_MEMORY_S, MAX_FAILED_IDS, NOT_OPEN, BatchStatus, with_end
from jobpool_backends.memory.values import Entry, Expiries, Turn
from jobpool_backends.shared import MICRO, micros, unix_time


class End(Enum):
    """The end of a member."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class _Batch(Struct):
    new: NewBatch
    created_at: int
    total: int = 0
    ends: dict[End, int] = field(default_factory=lambda: dict.fromkeys(End, 0))
    failed_ids: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    open: bool = True
    stopped: bool = False
    ended_at: int | None = None

    @property
    def left(self) -> int:
        return self.total - sum(self.ends.values())

    def count(self, ident: str, end: End) -> None:
        self.ends[end] += 1
        if end is End.FAILED and len(self.failed_ids) < MAX_FAILED_IDS:
            self.failed_ids.append(ident)

    @property
    def status(self) -> BatchStatus:
        succeeded, failed, cancelled = self.ends.values()
        return BatchStatus(
            self.new.id,
            self.open,
            self.total,
            succeeded,
            failed,
            cancelled,
            tuple(self.failed_ids),
            self.created_at / MICRO,
            unix_time(self.ended_at),
            self.new.parent,
            tuple(self.nested),
            self.stopped,
        )


class MemoryBatches:
    """The batches. `entries`: the messages of the store; `bring` adds callbacks to them."""

    def __init__(
        self, turn: Turn, entries: Mapping[int, Entry], bring: Callable[[Sequence[NewMessage]], object]
    ) -> None:
        self._turn = turn
        self._entries = entries
        self._bring = bring
        self._batches: dict[str, _Batch] = {}
        self._ends: Expiries[str] = Expiries()
        self._touched: dict[str, None] = {}

    def open(self, batch: NewBatch) -> None:
        with self._turn.step():
            self._forget()
            if batch.id in self._batches:
                return
            if batch.parent is not None:
                parent = self._opened(batch.parent)
                parent.total += 1
                parent.nested.append(batch.id)
            self._batches[batch.id] = _Batch(batch, self._turn.now)

    def close(self, ident: str, stop: bool = False) -> None:
        with self._turn.step():
            batch = self._batches.get(ident)
            if batch is not None and batch.ended_at is None:
                batch.open, batch.stopped = False, batch.stopped or stop
                self._touched[ident] = None

    def get(self, ident: str) -> BatchStatus | None:
        with self._turn.step():
            self._forget()
            found = self._batches.get(ident)
            return found.status if found else None

    def members(self, ident: str, limit: int) -> list[str]:
        with self._turn.step():
            return [entry.id for entry in self._entries.values() if entry.batch == ident][:limit]

    def joining(self, messages: Sequence[NewMessage], brought: bool) -> Sequence[NewMessage]:
        """Return messages to be added, without the batches that they join too late; see `add`."""
        if not any(new.batch for new in messages):
            return messages
        if brought:
            return [new if self._is_live(new.batch) else replace(new, batch=None) for new in messages]
        for new in messages:
            if new.batch is not None:
                self._opened(new.batch)
        return messages

    def joined(self, new: NewMessage) -> None:
        """Count a message that was added."""
        if new.batch is not None:
            self._batches[new.batch].total += 1

    def ended(self, entry: Entry, batch: str, end: End) -> None:
        """Count the end of a message of this batch, which is not a member any more."""
        self._count(batch, entry.id, end)
        entry.batch = None

    def _count(self, batch: str, member: str, end: End) -> None:
        self._batches[batch].count(member, end)
        self._touched[batch] = None

    def finish(self) -> None:
        """End the batches whose last members have ended in this step, and add their callbacks."""
        while self._touched:
            batch = self._batches[self._touched.popitem()[0]]
            if not batch.open and not batch.left and batch.ended_at is None:
                self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        batch.ended_at = self._turn.now
        self._ends.put(batch.new.id, batch.ended_at + micros(BATCH_MEMORY_S))
        failed = batch.stopped or batch.ends[End.SUCCEEDED] < batch.total
        end = batch.status.end()
        self._bring([replace(callback, body=with_end(callback.body, end)) for callback in batch.new.callbacks(failed)])
        if batch.new.parent is not None:
            end_of_member = End.CANCELLED if batch.stopped else End.FAILED if failed else End.SUCCEEDED
            self._count(batch.new.parent, batch.new.id, end_of_member)

    def _opened(self, ident: str) -> _Batch:
        if ident not in self._batches or not self._batches[ident].open:
            raise InvalidJob(NOT_OPEN.format(ident))
        return self._batches[ident]

    def _is_live(self, ident: str | None) -> bool:
        return ident in self._batches and self._batches[ident].ended_at is None

    def _forget(self) -> None:
        for ident, _ in self._ends.due(self._turn.now):
            del self._batches[ident]
