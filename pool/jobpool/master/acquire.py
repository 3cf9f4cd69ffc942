"""Gets leases what they need from the key store before they may run, for the fetch thread and `QueueWorker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event as Flag

from jobpool.broker.backend import QueueBackend
from jobpool.errors import OUTAGES, ConfigurationError, JobpoolError, MalformedEnvelope
from jobpool.master.threads import BrokerRetry
from jobpool.message.context import next_of
from jobpool.message.guards import IDEMPOTENCY_TTL, Begin, Begun, Guards
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, Contended, LostLease, NotRun, Outcome, Rejected
from jobpool.policy.breaker import Breakers
from jobpool.policy.inspection import Inspected
from jobpool.policy.limits import (
    QUEUE,
    Contentions,
    Limits,
    LocalLimits,
    QueueLimits,
    contention_delay,
    guards_of,
    refusal,
)

Asked = list[tuple[Inspected, Guards]]

KEEPS_NO_KEYS = "a broker that keeps keys, and {}:// keeps none"

KEY_STORE = "the broker's keys, which do not answer"  # in place of the name of what is held

RENEW, BEGIN = "renew", "begin"  # kinds of calls, for `BrokerRetry`


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
        self._contentions = Contentions()

    def asks(self, queue: str, found: Iterable[Inspected]) -> Asked:
        """Return those that need guards, and which; give what cannot be asked for its outcome. No I/O."""
        limits = self._of.get(queue) or self._of.setdefault(queue, self._limits.of(queue))
        free = not (limits.holds or limits.rates)
        asked: Asked = []
        for inspected in found:
            if inspected.outcome is not None:
                continue
            envelope = inspected.lease.envelope
            if free and envelope.idempotency_key is None and not envelope.meta:
                continue  # nearly all messages: `guards_of` would say the same, at the cost of its calls
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
            self._contentions.forget(lease.id)
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
        return after + contention_delay(self._contentions.met(lease.id))

    def _refused(self, lease: JobLease, begun: Begun) -> Outcome:
        if begun.answer is Begin.DONE:
            self._contentions.forget(lease.id)
            try:
                return AlreadyDone(next_of(lease.envelope))
            except JobpoolError as error:
                return Rejected(f"the next job of its chain is refused: {error}")
        return LostLease() if begun.answer is Begin.LOST else Contended(self.delay(lease, begun.after), begun.name)


@dataclass(slots=True)
class RetryingAcquirer:
    """The step between inspection and the loop. `breakers`: of the queues; `stop`: set when the pool stops."""

    backend: QueueBackend
    acquirer: Acquirer
    local_limits: LocalLimits
    ttl: float
    broker_retry: BrokerRetry
    breakers: Breakers
    stop: Flag

    def in_time(self, leases: list[JobLease]) -> list[JobLease]:
        """Return those that may be begun. Not one that came so late that it has ended, unless the broker renews it."""
        now = self.backend.clock.boot()
        if all(lease.expires_at > now for lease in leases):
            return leases
        try:
            renewed = self.backend.renew_many(leases, self.ttl)
        except OUTAGES as error:
            self.broker_retry.failed(error, RENEW, holding=True)
            renewed = list(leases)
        now = self.backend.clock.boot()
        return [lease for lease in renewed if lease is not None and lease.expires_at > now]

    def admit(
        self, queue: str, found: list[Inspected], hand_over: Callable[[list[Inspected]], None]
    ) -> tuple[list[Inspected], int, bool]:
        """Get those of `found` that need something what they need, or their outcomes.

        Returns what is to be told to the loop, how many of `found` were not refused, and whether nothing was left
        unanswered. If the broker is silent, `hand_over` was called with those that need nothing, and only the others
        are returned.
        """
        asked = self.acquirer.asks(queue, found)
        if not asked:
            return found, len(found), True
        total = len(found)
        answers = self._begin(queue, asked)
        if answers is None:
            needy = {id(inspected): inspected for inspected, _ in asked}
            if plain := [inspected for inspected in found if id(inspected) not in needy]:
                hand_over(plain)
            found, answers = list(needy.values()), self._begin_again(queue, asked)
        if answers is not None:
            self._conclude(queue, asked, answers)
        started = total - sum(inspected.outcome is not None for inspected, _ in asked)
        return found, started, answers is not None

    def _begin(self, queue: str, asked: Asked) -> list[Begun] | None:
        try:
            answers = self.acquirer.begin([(inspected.lease, guards) for inspected, guards in asked])
        except OUTAGES as error:
            self.breakers.failed(queue, str(error), self.backend.clock.mono(), of_keys=True)
            self.broker_retry.failed(error, BEGIN, holding=True)
            return None
        self.broker_retry.over(BEGIN)
        return answers

    def _begin_again(self, queue: str, asked: Asked) -> list[Begun] | None:
        """Ask until there is an answer, which does no harm. None: all are given back.

        That is at a stop, and when the queue's breaker has opened, for other queues wait meanwhile. Also when half of
        a lease is over, for nobody renews these.
        """
        clock = self.backend.clock
        now = clock.boot()
        give_up = now + (min(inspected.lease.expires_at for inspected, _ in asked) - now) / 2
        while not (self.stop.is_set() or clock.boot() >= give_up or self.breakers.wait(queue, clock.mono())):
            if (answers := self._begin(queue, asked)) is not None:
                return answers
        for inspected, guards in asked:  # it may have been granted: then the lease gives it back
            lease = inspected.lease
            inspected.lease = lease.guarded(guards)
            inspected.outcome = NotRun() if self.stop.is_set() else Contended(self.acquirer.delay(lease), KEY_STORE)
        return None

    def _conclude(self, queue: str, asked: Asked, answers: list[Begun]) -> None:
        """Note every answer, and for the queue's local limit how many may start."""
        refused = None
        for (inspected, guards), begun in zip(asked, answers, strict=True):
            if not self.acquirer.conclude(inspected, guards, begun):
                refused = refused or begun
        granted = sum(inspected.outcome is None for inspected, _ in asked)
        self.local_limits.begun(queue, granted, refused, self.backend.clock.mono())
