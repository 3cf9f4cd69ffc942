"""Copies of what died in the reaper's hands to the queue of failed payloads.

Unlike an abandon, which carries its copy, a reap cannot: the copy is a second step, right behind it. It is repeated
until the broker has answered, under an id that makes it one copy; a pool that ends in between leaves it out, and so
does whoever else reaps (`jobpool reap`, a pool without this setting). The dead letter itself is there in any case.
Where a broker knows no ids (`Capabilities.keeps_records`), a repetition whose first answer was lost makes one more.
"""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, Reaped, State
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.message.dead_letters import copy_id, copy_of
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import decode, verify

MAX_WAITING_COPIES = 10_000
"""Deaths that wait for the broker; the oldest are forgotten beyond that."""

logger = logging.getLogger("jobpool.pool")


class DeadLetterCopies:
    """Used by the settle thread alone. `queue`: of the copies; None = nothing is forwarded."""

    def __init__(self, backend: QueueBackend, queue: str | None) -> None:
        self._backend = backend
        self._queue = queue
        self._waiting: deque[Reaped] = deque(maxlen=MAX_WAITING_COPIES)

    @property
    def is_behind(self) -> bool:
        """Return whether something waits to be forwarded."""
        return bool(self._waiting)

    def died(self, reaped: list[Reaped]) -> None:
        """Remember those that the reap has made dead letters."""
        if self._queue is not None:
            self._waiting.extend(one for one in reaped if one.dead and one.queue != self._queue)

    def forward(self) -> None:
        """Enqueue a copy of each that waits. Blocks for two round trips each.

        Raises:
            BackendUnavailable: What is left waits for the next call.
        """
        while self._waiting:
            self._forward_one(self._waiting[0])
            self._waiting.popleft()

    def _forward_one(self, reaped: Reaped) -> None:
        message = self._letter(reaped)
        if message is None or message.state is not State.DEAD:
            return  # somebody was quicker: it is purged, or tried again
        try:
            self._backend.enqueue(self._copy(message))
        except BackendUnavailable:
            raise
        except JobpoolError as error:
            logger.warning("a dead letter is not forwarded", extra={"fields": {"id": reaped.id, "error": str(error)}})

    def _letter(self, reaped: Reaped) -> Message | None:
        if self._backend.capabilities.lists_live:
            return self._backend.inspect(reaped.id)
        # Such a broker finds a message by looking through all letters: let it do so in one queue.
        where = MessageFilter(queue=reaped.queue, states=(State.DEAD,), ids=(reaped.id,))
        return next(iter(self._backend.list_messages(where, limit=1)), None)

    def _copy(self, message: Message) -> JobDefinition:
        """Raises `MalformedEnvelope` for a body that is not what its producer signed."""
        envelope = decode(message.body, attempts=message.attempts)
        verify(message.body, envelope, self._backend.signer, message.queue)
        queue = self._queue or ""
        return copy_of(
            envelope.payload,
            envelope.job,
            message.reason or "crash-limit",
            message.attempts,
            queue=queue,
            original_queue=message.queue,
            identifier=copy_id(queue, message.id, message.deliveries),
            now=datetime.now(UTC),
        )
