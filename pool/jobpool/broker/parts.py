"""The parts that a backend is put together from. Each call is one atomic step; times are seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from jobpool.broker.values import (
    Edit,
    Edited,
    Existing,
    Message,
    MessageFilter,
    NewBatch,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    Verb,
)
from jobpool.message.batches import BatchStatus
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement

Settlements = Sequence[tuple[JobLease, Settlement]]

Brought = dict[int, list[NewMessage]]
"""Messages that the settlements of a call add to queues, by the place of the settlement in it."""

Enqueue = Callable[[Sequence[NewMessage]], Existing | None]
"""Add those that are not known; for each left out because its unique key is known: its id → the known id."""

EnqueueIn = Callable[[object, Sequence[NewMessage]], Existing | None]
"""The same on the caller's connection; for brokers with `transactions`."""

Fetch = Callable[[str, int, float, str], list[JobLease]]  # of a queue, a limit, a ttl and a fetch id
WaitAny = Callable[[Sequence[str], float], str | None]  # for queues, and a timeout
Settle = Callable[[Settlements, Brought, str], list[Settled]]  # under a call id
Renew = Callable[[Sequence[JobLease], float], list[JobLease | None]]
Reap = Callable[[str, ReapPolicy, float | None], list[Reaped]]  # of a queue, by a policy and a visibility timeout
Bulk = Callable[[MessageFilter, Verb, int], int]  # of up to a limit of messages, in those of the states that it meets

Edits = Callable[[Sequence[Edit], str], list[Edited]]
"""Make edits under a call id, each if its message is as it was seen: EDITED, CHANGED or DUPLICATE."""


class Results(Protocol):
    """The part that looks for kept results. Each comes with its `Ack`, until its end or its id's next job."""

    def get(self, idents: Sequence[str], /) -> dict[str, bytes]:
        """Return the records that are kept, by the ids of their jobs."""

    def wait(self, idents: Sequence[str], timeout: float, /) -> None:
        """Wait until one of these jobs may have ended; half a second at most, and no busy loop.

        A settlement that keeps a result ends it at once, and so does an end before the call.
        """


class Batches(Protocol):
    """The part that counts members of batches.

    `Enqueue` counts the messages that it adds. One whose batch is not open is an `InvalidJob`, with nothing added. A
    message that a settlement brings joins until the batch ends. After that it is added without one.

    A member ends once, in the step of its ack (succeeded), its death or its deletion. A death is counted as failed, or
    as cancelled by its reason, and a deletion as cancelled. A dead letter is not a member any more, so raising it
    changes nothing. A move is not an end.

    The step that ends the last member of a closed batch adds the callbacks. `message.batches.with_end` completes their
    bodies. The same step ends the batch as a member of its parent. There it is cancelled if it was stopped, and failed
    if a member did not succeed.
    """

    def open(self, batch: NewBatch, /) -> None:
        """Add an open batch, and count it as a member of its parent; one whose id is known is left as it is.

        Raises `InvalidJob`: its parent is not open.
        """

    def close(self, ident: str, /, stop: bool = False) -> None:
        """Let it end when its last member has; again, or of an unknown one, nothing.

        `stop`: it was cancelled as a whole. Then, unless it has ended, its callback on success is never added.
        """

    def get(self, ident: str, /) -> BatchStatus | None:
        """Return its counts; None: it never was, or ended more than `BATCH_MEMORY_S` ago."""

    def members(self, ident: str, limit: int, /) -> list[str]:
        """Return the ids of up to `limit` messages of it that have not ended."""


class Inspector(Protocol):
    """The part that looks at messages and changes none. See the methods of `QueueBackend`."""

    def stats(self, queue: str, /) -> QueueStats: ...

    def queues(self) -> list[str]: ...

    def page(self, where: MessageFilter, after: int, limit: int, largest: int = MAX_BODY_BYTES, /) -> list[Message]:
        """Return up to `limit` messages after the cursor `after`, 0 = the first. A body may be more than `largest`."""

    def count(self, where: MessageFilter, cap: int, /) -> int: ...

    def inspect(self, ident: str, /) -> Message | None:
        return next(iter(self.page(MessageFilter(ids=(ident,)), 0, 1, sys.maxsize)), None)
