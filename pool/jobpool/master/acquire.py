"""Gets leases what they need from the key store before they may run, for the fetch thread and `QueueWorker`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobpool.broker.backend import QueueBackend
from jobpool.errors import ConfigurationError, JobpoolError, MalformedEnvelope
from jobpool.message.context import next_of
from jobpool.message.guards import IDEMPOTENCY_TTL, Begin, Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, Contended, LostLease, Outcome, Rejected
from jobpool.policy.inspection import Inspected
from jobpool.policy.limits import QUEUE, Limits, QueueLimits, contention_delay, guards_of, refusal
from jobpool.policy.retry import count_one_more

Guarded = list[tuple[Inspected, Guards]]

KEEPS_NO_KEYS = "a broker that keeps keys, and {}:// keeps none"


def check_key_store(limits: Limits, backend: QueueBackend) -> None:
    """Raise `ConfigurationError` if there are limits, or a life of idempotency keys, and nobody who could keep them."""
    if backend.capabilities.key_store:
        return
    keepless = KEEPS_NO_KEYS.format(backend.scheme)
    if limits:
        why = f"limits of concurrency and rate need {keepless}: leave the limits out, or choose another backend"
        raise ConfigurationError(why)
    if limits.idempotency_ttl != IDEMPOTENCY_TTL:
        raise ConfigurationError(f"idempotency_ttl needs {keepless}: leave it out, or choose another backend")


class Acquirer:
    """The acquirer of one thread. It never waits or retries. Without a key store, jobs that need it are rejected."""

    def __init__(self, backend: QueueBackend, limits: Limits) -> None:
        self._keys = backend.keys if backend.capabilities.key_store else None
        self._scheme = backend.scheme
        self._limits = limits
        self._of: dict[str, QueueLimits] = {}
        self._contended: dict[str, int] = {}  # by id: how often since it last got what it asked for

    def asks(self, queue: str, found: Iterable[Inspected]) -> Guarded:
        """Return those that need guards, and which; give what cannot be asked for its outcome. No I/O."""
        limits = self._of.get(queue) or self._of.setdefault(queue, self._limits.of(queue))
        free = not (limits.holds or limits.rates)
        asked: Guarded = []
        for inspected in found:
            if inspected.outcome is not None:
                continue
            envelope = inspected.lease.envelope
            if free and envelope.idempotency_key is None and not envelope.meta:
                continue  # nearly all messages
            try:
                if self._keys is None and (why := refusal(envelope, self._scheme)):
                    inspected.outcome = Rejected(why)
                elif (guards := guards_of(envelope, limits)) is not None:
                    asked.append((inspected, guards))
            except MalformedEnvelope as error:
                inspected.outcome = Rejected(str(error))
        return asked

    def begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        """Call `KeyStore.begin_many`. Raises `BackendUnavailable`; safe to call again."""
        assert self._keys is not None
        return self._keys.begin_many(asked)

    def conclude(self, inspected: Inspected, guards: Guards, begun: Begun) -> bool:
        """Note the answer: the guarded lease, or the outcome. False: the queue's own limit refused it."""
        lease = inspected.lease
        if begun:
            self._contended.pop(lease.id, None)
            inspected.lease = lease.guarded(guards)
            return True
        if begun.answer is Begin.DONE:  # its ack marks nothing anew; but a unique key is known for as long as others
            inspected.lease = lease.guarded(Guards(keep=guards.keep))
        # An idempotency key may be called as the queue's own limit is: then only the message waits.
        of_queue = begun.name == QUEUE != guards.key and begun.answer in (Begin.HELD, Begin.LIMITED)
        inspected.outcome = Contended(0.0, begun.name) if of_queue else self._refused(lease, begun)
        return not of_queue

    def delay(self, lease: JobLease, after: float = 0.0) -> float:
        """Return the seconds for which a refused message waits: longer each time, and never less than a rate takes."""
        return after + contention_delay(count_one_more(self._contended, lease.id))

    def _refused(self, lease: JobLease, begun: Begun) -> Outcome:
        if begun.answer is Begin.DONE:
            self._contended.pop(lease.id, None)
            try:
                return AlreadyDone(next_of(lease.envelope))
            except JobpoolError as error:
                return Rejected(f"the next job of its chain is refused: {error}")
        return LostLease() if begun.answer is Begin.LOST else Contended(self.delay(lease, begun.after), begun.name)
