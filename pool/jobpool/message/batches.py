"""Batches: jobs that belong together and have one end; and what their callbacks are told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson
from msgspec import Struct

BATCH_MEMORY_S = 7 * 86400.0  # seconds for which a batch is known after its end
MAX_FAILED_IDS = 100  # that are kept of a batch
NO_BATCHES = (
    "{}:// cannot count the jobs of a batch in the step that ends them: choose memory, sqlite, postgres, or redis"
    " without a cluster"
)
_END_TYPES = {"id": str, "total": int, "succeeded": int, "failed": int, "cancelled": int, "failed_ids": list}
NOT_OPEN = "batch {} is not open: it was closed, has ended, or never was. Add jobs before that, or in one of its jobs"


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The counts of one batch. A member is a job or a batch. Times are Unix seconds on the broker's clock."""

    id: str
    open: bool  # members may still be added by its producer
    total: int  # members so far
    succeeded: int
    failed: int  # dead, for any reason but the next
    cancelled: int  # by a person, or deleted
    failed_ids: tuple[str, ...]  # of the first `MAX_FAILED_IDS` that failed
    created_at: float
    ended_at: float | None = None
    parent: str | None = None
    nested: tuple[str, ...] = ()  # ids of batches that are members; perhaps of some that are forgotten by now
    stopped: bool = False  # it was cancelled as a whole

    @property
    def left(self) -> int:
        """Members that have not ended."""
        return self.total - self.succeeded - self.failed - self.cancelled

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    @property
    def progress(self) -> float:
        """The share of its members that have ended, 0 to 1; 1 without any."""
        return 1 - self.left / self.total if self.total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the values, of JSON alone."""
        return {**asdict(self), "left": self.left}

    def end(self) -> dict[str, Any]:
        """Return what a callback finds in its payload as `batch`."""
        return {name: getattr(self, name) for name in _END_TYPES}


class BatchCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call about one batch, as `QueueBackend.call_batch` carries it out; a handler's goes to its master."""

    verb: Literal["open", "close", "cancel", "get"]
    id: str
    parent: str | None = None  # of one that is opened, as the next
    callbacks: tuple[str, ...] = ()  # names of the jobs that come with the call


def is_end(value: Any) -> bool:
    """Return whether a JSON value is what `BatchStatus.end` returns."""
    return (
        type(value) is dict
        and {name: type(each) for name, each in value.items()} == _END_TYPES
        and all(each >= 0 for each in value.values() if type(each) is int)
        and all(type(ident) is str for ident in value["failed_ids"])
    )


def with_end(body: bytes, end: dict[str, Any]) -> bytes:
    """Return the body of a callback with the end of its batch, in a field that is not signed, as `attempts` is not."""
    return b'%b,"ended":%b}' % (body[:-1], orjson.dumps(end))
