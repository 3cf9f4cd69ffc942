"""The parts that a backend is put together from. Each call is one atomic step; times are seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jobpool.broker.values import Existing, Message, MessageFilter, NewMessage, QueueStats, Reaped, ReapPolicy, Verb
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
Bulk = Callable[[MessageFilter, Verb, int], int]  # of up to a limit of messages


class Results(Protocol):
    """The part that looks for kept results. An `Ack` with one keeps it in its own step; at its end it is gone."""

    def get(self, idents: Sequence[str], /) -> dict[str, bytes]:
        """Return the records that are kept, by the ids of their jobs."""

    def wait(self, idents: Sequence[str], timeout: float, /) -> None:
        """Wait until one of these jobs may have ended; half a second at most, and no busy loop.

        A settlement that keeps a result ends it at once, and so does an end before the call.
        """


class Inspector(Protocol):
    """The part that looks at messages and changes none. See the methods of `QueueBackend`."""

    def stats(self, queue: str, /) -> QueueStats: ...

    def queues(self) -> list[str]: ...

    def page(self, where: MessageFilter, after: int, limit: int, /) -> list[Message]:
        """Return up to `limit` messages after the one whose cursor says `after`; 0 = from the first."""

    def count(self, where: MessageFilter, cap: int, /) -> int: ...

    def inspect(self, ident: str, /) -> Message | None: ...
