"""Asks the key store for what leases need before they may run, and reads its answers. No waiting, no retries.

The lease thread and `QueueWorker` share it; each has its own way to wait for a silent broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobpool.broker.backend import QueueBackend
from jobpool.errors import ConfigurationError, MalformedEnvelope
from jobpool.message.envelope import JobEnvelope
from jobpool.message.guards import IDEMPOTENCY_TTL, Begin, Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, Contended, LostLease, Outcome, Rejected
from jobpool.policy.contention import Contentions, contention_delay
from jobpool.policy.inspection import Inspected
from jobpool.policy.limits import QUEUE, Limits, QueueLimits, guards_of, refusal

Asked = list[tuple[Inspected, Guards]]


def check_key_store(limits: Limits, backend: QueueBackend) -> None:
    """Raise `ConfigurationError` if there are limits, or a life of idempotency keys, and nobody who could keep them."""
    if backend.capabilities.key_store:
        return
    keepless = f"a broker that keeps keys, and {backend.scheme}:// keeps none (Capabilities.key_store)"
    if limits:
        raise ConfigurationError(
            f"limits of concurrency and rate need {keepless}: leave the limits out, or choose another backend"
        )
    if limits.idempotency_ttl != IDEMPOTENCY_TTL:
        raise ConfigurationError(f"idempotency_ttl needs {keepless}: leave it out, or choose another backend")


class Acquirer:
    """For one thread.

    Args:
        backend: Its key store is asked; without one, messages that need it are rejected.
        limits: Of all queues.
    """

    def __init__(self, backend: QueueBackend, limits: Limits) -> None:
        self._keys = backend.keys if backend.capabilities.key_store else None
        self._scheme = backend.scheme
        self._limits = limits
        self._of: dict[str, QueueLimits] = {}
        self._contentions = Contentions()

    def asks(self, queue: str, found: Iterable[Inspected]) -> Asked:
        """Those that need guards, and which. What cannot be asked for is given its outcome here. No I/O."""
        limits = self._of.get(queue) or self._of.setdefault(queue, self._limits.of(queue))
        free = not (limits.holds or limits.rates)
        asked: Asked = []
        for inspected in found:
            if inspected.outcome is None:
                envelope = inspected.lease.envelope
                if free and envelope.idempotency_key is None and not envelope.meta:
                    continue  # nearly all messages: what `guards_of` would say, without the calls
                try:
                    guards = self._needed(envelope, limits)
                except MalformedEnvelope as error:
                    inspected.outcome = Rejected(str(error))
                    continue
                if guards is not None:
                    asked.append((inspected, guards))
        return asked

    def _needed(self, envelope: JobEnvelope, limits: QueueLimits) -> Guards | None:
        if self._keys is None and (why := refusal(envelope, self._scheme)):
            raise MalformedEnvelope(why)
        return guards_of(envelope, limits)

    def begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        """`KeyStore.begin_many`. Raises `BackendUnavailable`; safe to call again."""
        assert self._keys is not None
        return self._keys.begin_many(asked)

    def conclude(self, inspected: Inspected, guards: Guards, begun: Begun) -> bool:
        """Note the answer: the guarded lease, or the outcome. False: the queue's own limit refused it."""
        lease = inspected.lease
        if begun:
            self._contentions.forget(lease.id)
            inspected.lease = lease.guarded(guards)
            return True
        # An idempotency key may be called as the queue's own limit is: then only the message waits.
        of_queue = begun.name == QUEUE != guards.key and begun.answer in (Begin.HELD, Begin.LIMITED)
        inspected.outcome = Contended(0.0) if of_queue else self._refused(lease, begun)
        return not of_queue

    def delay(self, lease: JobLease, begun: Begun) -> float:
        """Seconds for which a refused message waits: longer each time, and never less than a rate takes."""
        return begun.after + contention_delay(self._contentions.met(lease.id))

    def _refused(self, lease: JobLease, begun: Begun) -> Outcome:
        match begun.answer:
            case Begin.DONE:
                self._contentions.forget(lease.id)
                return AlreadyDone()
            case Begin.LOST:
                return LostLease()
            case _:
                return Contended(self.delay(lease, begun))
