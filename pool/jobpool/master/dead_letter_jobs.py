"""Jobs that tell of deaths in a reaper's hands: copies of failed payloads, and those for an app's `on_death` hooks.

Unlike an abandon, a reap cannot carry such jobs: they are a second step of the settle thread. It is repeated until the
broker answers, under an id that makes one job of it. A copy is left out by a pool that ends in between. Hooks must not
be: a pool with hooks looks for letters that nobody has told of, also those of other reapers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from jobpool.broker.backend import QueueBackend
from jobpool.broker.filters import matching
from jobpool.broker.values import Message, MessageFilter, Reaped, State
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.message.dead_letters import ON_DEATH, copy_id, copy_of, hook_job
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import JobEnvelope, decode, verify

MAX_WAITING_DEATHS = 10_000  # that wait for the broker; the oldest are forgotten beyond that
REASON = "crash-limit"  # of deaths in a reaper's hands
LOOK_BACK_S = 3600.0  # age of the oldest letters that hooks are told of
DEAD_LETTER_LOOK_S = 300.0  # seconds between two looks
MARKS = "jobpool.on_death"  # the space of records: id of the hooks' job -> it was enqueued

logger = logging.getLogger("jobpool.pool")


class DeadLetterJobs:
    """The sender of these jobs. Used by the settle thread alone, but for `closed_to_hooks`.

    A broker that keeps no records (`Capabilities.key_store`) cannot tell which letters were told of by another pool:
    there hooks are told again at each start. Where it knows no ids either (`Capabilities.keeps_records`), a repetition
    whose first answer was lost makes one more job.

    Attributes:
        closed_to_hooks: Queues of whose deaths the `on_death` hooks are not told; None = there are no hooks, or the app
            is not known yet. Set by the loop.
    """

    def __init__(self, backend: QueueBackend, queue: str | None) -> None:
        self._backend = backend
        self._queue = queue
        self.closed_to_hooks: frozenset[str] | None = None
        self._looked_in: set[str] = set()
        self._look_at = 0.0
        self._waiting: deque[Reaped] = deque(maxlen=MAX_WAITING_DEATHS)
        self._told: dict[str, None] = {}  # ids of jobs, the oldest first

    def died(self, reaped: list[Reaped]) -> None:
        """Remember those that the reap has made dead letters."""
        self._waiting.extend(one for one in reaped if one.dead and (self._copies(one.queue) or self._hooks(one.queue)))

    def is_due(self, queues: Sequence[str]) -> bool:
        """Return whether an outage has left some, or it is time to look for letters in `queues`."""
        return bool(self._waiting) or self._is_look_due(queues)

    def forward(self, queues: Sequence[str] = ()) -> None:
        """Enqueue the jobs of each letter that waits, two round trips a job.

        Now and then look in `queues` for letters that the hooks were not told of. After `BackendUnavailable` the rest
        waits on.
        """
        if self._is_look_due(queues):
            for queue in filter(self._hooks, queues):
                where = MessageFilter(queue=queue, states=(State.DEAD,), reason=REASON, newer_than=LOOK_BACK_S)
                for message in matching(self._backend, where):
                    self._enqueue(message, self._hook_job)
            self._looked_in, self._look_at = set(queues), self._backend.clock.mono() + DEAD_LETTER_LOOK_S
        while self._waiting:
            letter = self._letter(self._waiting[0])
            if letter is not None and letter.state is State.DEAD:  # else it is purged, or tried again
                if self._copies(letter.queue):
                    self._enqueue(letter, self._copy)
                if self._hooks(letter.queue):
                    self._enqueue(letter, self._hook_job)
            self._waiting.popleft()

    def _is_look_due(self, queues: Sequence[str]) -> bool:
        if not any(map(self._hooks, queues)):
            return False
        again = self._backend.capabilities.key_store and self._backend.clock.mono() >= self._look_at
        return again or not self._looked_in.issuperset(queues)

    def _copies(self, queue: str) -> bool:
        return self._queue is not None and queue != self._queue

    def _hooks(self, queue: str) -> bool:
        return self.closed_to_hooks is not None and queue not in self.closed_to_hooks

    def _enqueue(self, message: Message, make: Callable[[Message], JobDefinition | None]) -> None:
        """Enqueue what is made of a letter, unless that was done. Raises `BackendUnavailable`."""
        try:
            job = make(message)
            if job is not None:
                self._backend.enqueue(job)
                if job.handler == ON_DEATH:
                    self._mark(job.identifier or "")
        except BackendUnavailable:
            raise
        except JobpoolError as error:
            fields = {"id": message.id, "error": str(error)}
            logger.warning("a dead letter is not forwarded", extra={"fields": fields})

    def _hook_job(self, message: Message) -> JobDefinition | None:
        """Make the job for the hooks; None = they were told. Raises as `_copy`."""
        job = hook_job(
            self._verified(message),
            self._backend.pack,
            queue=message.queue,
            reason=message.reason or REASON,
            error=message.last_error,
            cause=message.cause,
            attempts=message.attempts,
            crashes=message.crashes,
            deliveries=message.deliveries,
            enqueued_at=message.enqueued_at,
        )
        return None if job is None or self._is_marked(job.identifier or "") else job

    def _is_marked(self, ident: str) -> bool:
        if ident in self._told or not self._backend.capabilities.key_store:
            return ident in self._told
        return self._backend.keys.get_record(MARKS, ident) is not None

    def _mark(self, ident: str) -> None:
        """Note that the hooks are told. A pool that ends before has them told twice: at least once, that is."""
        self._told[ident] = None
        if len(self._told) > MAX_WAITING_DEATHS:
            del self._told[next(iter(self._told))]
        if self._backend.capabilities.key_store:
            self._backend.keys.put_records(MARKS, {ident: b"1"}, 2 * LOOK_BACK_S)

    def _letter(self, reaped: Reaped) -> Message | None:
        if self._backend.capabilities.lists_live:
            return self._backend.inspect(reaped.id)
        # Such a broker finds a message by looking through all letters: let it do so in one queue.
        where = MessageFilter(queue=reaped.queue, states=(State.DEAD,), ids=(reaped.id,))
        return next(iter(self._backend.list_messages(where, limit=1)), None)

    def _copy(self, message: Message) -> JobDefinition:
        """Make the copy. Raises `MalformedEnvelope` for a body that is not what its producer signed."""
        envelope, queue = self._verified(message), self._queue or ""
        return copy_of(
            envelope.full_payload,
            envelope.job,
            message.reason or REASON,
            message.attempts,
            queue=queue,
            original_queue=message.queue,
            identifier=copy_id(queue, message.id, message.deliveries, message.enqueued_at),
            now=datetime.now(UTC),
        )

    def _verified(self, message: Message) -> JobEnvelope:
        envelope = decode(message.body, attempts=message.attempts)
        verify(envelope, self._backend.signer, message.queue)
        return envelope
