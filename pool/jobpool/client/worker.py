"""`QueueWorker`: one message at a time in the caller's own process, for tests, cron and small scripts.

The pipeline is the pool's: fetch, inspect, run one attempt, decide, settle. Inspection, attempt and decision are the
very functions that the pool uses. A single process has limits: nobody kills a handler that hangs in C code, and one
that crashes takes the caller with it. Its lease then expires, and the reaper of a pool, or
`backend.reap_expired(queue)`, recovers the message.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Self, TypeVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Leases, check_ttl
from jobpool.child.attempt import Attempt, JobToRun, run_attempt
from jobpool.child.transaction import own_ack
from jobpool.errors import BackendUnavailable, JobpoolError, LeaseLost, Unsupported
from jobpool.handlers.registry import DEFAULT, AnyHandler, HandlerRegistry
from jobpool.master.acquire import Acquirer, check_key_store
from jobpool.master.threads import LOST_LOOK_EVERY_S
from jobpool.message.allowances import Allowances
from jobpool.message.definition import JobDefinition, capped, check_seconds
from jobpool.message.envelope import JobEnvelope, decode, encode
from jobpool.message.lease import JobLease
from jobpool.message.outcome import (
    Contended,
    Failed,
    LostLease,
    MemoryExceeded,
    Outcome,
    ResultKind,
    RetryAsked,
    Succeeded,
    TimedOut,
)
from jobpool.message.result import ExecutionResult, Status, WorkerResult
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Nack, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.counters import counters_of, status_of
from jobpool.policy.decide import Rules, decide
from jobpool.policy.inspection import Inspected, Inspector
from jobpool.policy.limits import Limits
from jobpool.policy.outcomes import checked, outcome_of
from jobpool.policy.retry import RetryPolicy

T = TypeVar("T")

DEFAULT_TIMEOUT = 3600.0
"""Seconds for a handler when neither the job nor the handler says."""

MOST_SEEN = 10_000
"""Messages with an unknown handler whose first sight is remembered."""

REJECTED_EVERY = 60.0
"""Seconds between two log lines about rejected messages, so that forged ones cannot fill the log."""

logger = logging.getLogger("jobpool.worker")


class JobFailedError(JobpoolError):
    """A job that was run inline did not succeed. The text is its error; `result` has the rest."""

    def __init__(self, result: ExecutionResult) -> None:
        super().__init__(f"job for handler {result.handler!r} failed: {result.error}")
        self.result = result


class QueueWorker:
    """Processes messages one by one, in the thread that calls it.

    Args:
        backend: Where messages come from. It stays its owner's; its signer verifies what is fetched.
        registry: The handlers; None = those of `@jobpool.handler`.
        retry: The policy for failed attempts; None = no retries unless a job or handler asks for them.
        ttl: Seconds, > 0, that a lease is asked to hold; it is renewed every third of the time that it does while the
            handler runs.
        default_timeout: Seconds, >= 0, for jobs and handlers that set none; 0 = unlimited.
        max_timeout: Seconds, >= 0, that a job gets at most, whatever it or its handler asks for; 0 = no limit.
        queue_handlers: Queue to the only handlers that may run there; a queue that is absent is free.
        allowances: Permissions of the built-in handlers; None = the registry's, which by itself has none.
        unknown_handler_grace: Seconds for which a message waits for its handler, before it is given up.
        limits: Concurrency and rate limits, shared with all pools of this broker, and how long done idempotency keys
            are kept; None = no limits. A job held back by a limit, lock or key is released for a while.

    Attributes:
        counters: Queue to counts by name (`jobs_fetched`, `jobs_succeeded`, …), counted when the backend accepted.

    Raises:
        ValueError: `ttl`, `default_timeout` or `max_timeout` is out of bounds.
        ConfigurationError: There are limits, and the backend keeps no keys.
    """

    def __init__(
        self,
        backend: QueueBackend,
        registry: HandlerRegistry | None = None,
        *,
        retry: RetryPolicy | None = None,
        ttl: float = 30.0,
        default_timeout: float = DEFAULT_TIMEOUT,
        max_timeout: float = 0.0,
        queue_handlers: Mapping[str, list[str]] | None = None,
        allowances: Allowances | None = None,
        unknown_handler_grace: float = 600.0,
        limits: Limits | None = None,
    ) -> None:
        self._backend = backend
        self._clock = backend.clock
        self._registry = _ruled(registry, allowances, None)
        self._retry = retry or RetryPolicy()
        self._ttl = check_ttl(ttl)
        self._default_timeout = check_seconds(default_timeout, "default_timeout")
        self._max_timeout = check_seconds(max_timeout, "max_timeout")
        self._inspector = Inspector(backend.signer, queue_handlers or {})
        self._acquirer = Acquirer(backend, _usable(Limits() if limits is None else limits, backend))
        self._grace = unknown_handler_grace
        self._seen = _FirstSeen()
        self._rejected_logged_at: float | None = None
        self.counters: dict[str, Counter[str]] = {}

    def process_once(self, queue: str) -> WorkerResult:
        """Process one message of `queue`, or none when there is none to fetch.

        Returns:
            Its end. An error of the handler is in the result, never raised.

        Raises:
            BackendUnavailable: The broker did not answer the fetch, or was silent until the lease had run out. The
                message may be settled then; if not, the reaper recovers it.

        Blocks for the handler, and a few round trips. In the main thread the handler's timeout is enforced by SIGALRM;
        in any other, a handler that returns late has timed out, and one that hangs, hangs.
        """
        lease = self._backend.fetch(queue, ttl=self._ttl)
        if lease is None:
            return WorkerResult(Status.EMPTY)
        self._count(queue, ("jobs_fetched",))
        inspected = self._inspector.inspect(lease, self._backend.time.guess)
        self._guard(inspected)
        lease = inspected.lease
        if inspected.outcome is not None:
            return self._conclude(inspected.outcome, lease, None)
        handler = _find(self._registry, lease.envelope.job, queue)
        outcome, lease = self._run(lease, handler)
        return self._conclude(outcome, lease, handler)

    def _guard(self, inspected: Inspected) -> None:
        """Get the lease what it needs before its handler may run, or its outcome."""
        lease = inspected.lease
        asked = self._acquirer.asks(lease.queue, [inspected])
        if not asked:
            return
        [(_, guards)] = asked
        [begun] = self._patiently(lease, lambda: self._acquirer.begin([(lease, guards)]))
        if not self._acquirer.conclude(inspected, guards, begun):
            # A pool would leave the queue alone for a while; here the caller decides when, so the message waits.
            inspected.outcome = Contended(self._acquirer.delay(lease, begun))

    def _run(self, lease: JobLease, handler: AnyHandler | None) -> tuple[Outcome, JobLease]:
        """Run one attempt; return its outcome, and the lease as it was last renewed."""
        envelope = lease.envelope
        job = JobToRun(
            envelope,
            lease.queue,
            fence=lease.deliveries,
            crashes=lease.crashes,
            timeout=capped(_timeout(envelope, handler, self._default_timeout), self._max_timeout),
            max_retries=self._retry.budget(_max_retries(envelope, handler)) - 1,
        )
        if handler is not None and handler.ack_in_transaction:
            job.ack = own_ack(self._backend.ticket(lease), lambda jobs: [self._backend.pack(each) for each in jobs])
        with LeaseKeeper(self._backend, lease, self._ttl) as keeper:
            attempt = self._attempt(job)
        if keeper.lost:
            return LostLease(), keeper.lease
        seen_for = self._seen.seconds(lease.id, self._clock.mono(), handler is None)
        outcome = outcome_of(
            attempt.kind,
            handler=attempt.handler,
            error=attempt.error,
            after=attempt.after,
            follow_ups=tuple(attempt.follow_ups),
            seen_for=seen_for,
        )
        return checked(outcome, self._backend.pack), keeper.lease

    def _attempt(self, job: JobToRun) -> Attempt:
        """Run the handler. `jobpool.testing` injects its faults here and in `_nap`."""
        return run_attempt(job, self._registry)

    def _conclude(self, outcome: Outcome, lease: JobLease, handler: AnyHandler | None) -> WorkerResult:
        """Decide, settle, count and log."""
        rules = Rules(
            max_retries=handler.max_retries if handler else None,
            unknown_handler_grace=self._grace,
            can_forfeit=bool(self._backend.capabilities.leases),
        )
        settlement = decide(outcome, lease, rules, self._retry, self._clock.boot())
        own = handler is not None and handler.ack_in_transaction and isinstance(settlement, Ack)
        call_id = f"ack:{lease.owner_token}" if own else secrets.token_hex(8)
        settled = Settled.OK if isinstance(settlement, Leave) else self._settle(lease, settlement, call_id)
        self._count(lease.queue, counters_of(settlement, outcome, settled))
        result = _result(settlement, outcome, settled, lease)
        self._log(result, lease)
        return result

    def _settle(self, lease: JobLease, settlement: Settlement, call_id: str) -> Settled:
        """Settle, again and again under one call id while the broker is silent and the lease runs."""
        return self._patiently(lease, lambda: self._backend.settle_many([(lease, settlement)], call_id)[0])

    def _patiently(self, lease: JobLease, call: Callable[[], T]) -> T:
        """Make a call that may be repeated, until it is answered or the lease has ended."""
        pause, give_up = 0.1, time.monotonic() + lease.expires_at - self._clock.boot()
        while True:
            try:
                return call()
            except BackendUnavailable:
                if time.monotonic() + pause >= give_up or self._clock.boot() + pause >= lease.expires_at:
                    raise
            self._nap(pause)
            pause = min(1.0, pause * 2)

    def _nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def _count(self, queue: str, names: tuple[str, ...]) -> None:
        self.counters.setdefault(queue, Counter()).update(names)

    def _log(self, result: WorkerResult, lease: JobLease) -> None:
        if result.status is Status.DEAD_LETTERED:
            name = lease.envelope.name or lease.envelope.job
            text = "job %s (%s) of queue %s is a dead letter after %d attempts: %s"
            logger.critical(text, lease.id, name, lease.queue, result.attempts, result.error)
        elif result.status is Status.REJECTED and self._may_log_rejected(time.monotonic()):
            # No name: nothing in the body of a rejected message is to be believed.
            logger.critical("message %s of queue %s is rejected: %s", lease.id, lease.queue, result.error)

    def _may_log_rejected(self, now: float) -> bool:
        if self._rejected_logged_at is not None and now - self._rejected_logged_at < REJECTED_EVERY:
            return False
        self._rejected_logged_at = now
        return True


class LeaseKeeper:
    """A renewer of one lease from a thread of its own, while the caller's thread runs the handler.

    It goes by how long the lease holds, which is not always what was asked for (`Leases.BROKER`). If leases
    break with their connection, the thread looks for that too. Of several keepers on one backend, some find out only at
    their next renewal, because another one was told.

    Attributes:
        lease: As it was last renewed.
        lost: The backend said that the lease has ended.
    """

    def __init__(self, backend: QueueBackend, lease: JobLease, ttl: float) -> None:
        self.lease = lease
        self.lost = False
        self._backend = backend
        self._ttl = ttl
        self._lasts = lease.expires_at - backend.clock.boot()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"jobpool-renew-{lease.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing. Blocks for the round trip that is under way, if there is one."""
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        pause = self._lasts / 3
        while not self._has_ended(pause):
            asked_at = self._backend.clock.boot()
            try:
                self.lease = self._backend.renew(self.lease, self._ttl)
                self._lasts = self.lease.expires_at - asked_at
                pause = self._lasts / 3
            except BackendUnavailable:
                pause = min(1.0, self._lasts / 10)  # the lease still runs: there is time for several tries
            except LeaseLost:
                self.lost = True
                return

    def _has_ended(self, pause: float) -> bool:
        """Wait for `pause` seconds; return whether the end of the attempt, or of the lease, cut that short."""
        if self._backend.capabilities.leases is not Leases.CONNECTION:
            return self._stop.wait(pause)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            if self._stop.wait(min(left, LOST_LOOK_EVERY_S)):
                return True
            self.lost = any(lease.owner_token == self.lease.owner_token for lease in self._backend.lost())
            if self.lost:
                return True
        return False


def inline_runner(
    registry: HandlerRegistry | None = None,
    *,
    default_timeout: float = DEFAULT_TIMEOUT,
    queue_handlers: Mapping[str, list[str]] | None = None,
    allowances: Allowances | None = None,
) -> Callable[[JobDefinition], ExecutionResult]:
    """Return the runner of `sync://`: one attempt in the caller's process, then the follow-ups that it enqueued.

    Args:
        registry: The handlers; None = those of `@jobpool.handler`.
        default_timeout: Seconds, >= 0, for jobs and handlers that set none; 0 = unlimited.
        queue_handlers: Queue to the only handlers that may run there; a queue that is absent is free.
        allowances: Permissions of the built-in handlers; None = the registry's, which by itself has none.

    Returns:
        A function of a definition that returns the job's result, and raises `JobFailedError` when it, or one of its
        follow-ups, did not succeed. There are no retries, because nothing is kept.
    """
    handlers = _ruled(registry, allowances, queue_handlers)

    def run(definition: JobDefinition) -> ExecutionResult:
        first = attempt = run_inline(definition, handlers, default_timeout)
        waiting = deque(attempt.follow_ups)
        while waiting:
            follow_up = waiting.popleft()
            _refuse_later(follow_up)
            attempt = run_inline(follow_up, handlers, default_timeout)
            waiting.extend(attempt.follow_ups)
        return first.result

    return run


def run_inline(definition: JobDefinition, registry: HandlerRegistry, default_timeout: float) -> Attempt:
    """Run one attempt in the caller's process; its follow-ups are left to the caller.

    Raises:
        JobFailedError: It did not succeed.
        InvalidJob: Its body is out of bounds.

    Blocks for the handler; in the main thread its timeout is enforced by SIGALRM.
    """
    queue = definition.queue or "default"
    ident = definition.identifier or secrets.token_hex(8)
    body = encode(definition, identifier=ident, queue=queue, signer=EnvelopeSigner(), now=time.time())
    envelope = decode(body, attempts=0)  # the handler meets its payload as it would come off the wire
    handler = _find(registry, envelope.job, queue)
    timeout = _timeout(envelope, handler, default_timeout)
    attempt = run_attempt(JobToRun(envelope, queue, timeout=timeout), registry)
    if attempt.kind is not ResultKind.SUCCEEDED:
        raise JobFailedError(attempt.result)
    return attempt


def _refuse_later(definition: JobDefinition) -> None:
    due = definition.scheduled_at
    if due is not None and due > datetime.now(UTC):
        raise Unsupported(
            f"follow-up job {definition.handler!r} is due at {due.isoformat()}, and what runs jobs inline keeps none:"
            " leave the time out, or choose a backend that keeps messages"
        )


def _ruled(
    registry: HandlerRegistry | None,
    allowances: Allowances | None,
    queue_handlers: Mapping[str, list[str]] | None,
) -> HandlerRegistry:
    """Return the handlers, under the rules that were given."""
    handlers = DEFAULT if registry is None else registry
    if allowances is None and queue_handlers is None:
        return handlers
    return handlers.with_rules(allowances, queue_handlers)


def _usable(limits: Limits, backend: QueueBackend) -> Limits:
    check_key_store(limits, backend)
    return limits


def _find(registry: HandlerRegistry, name: str, queue: str) -> AnyHandler | None:
    try:
        return registry.resolve(name, queue)
    except LookupError:
        return None  # the attempt finds the same, and says which of the two reasons it is


def _timeout(envelope: JobEnvelope, handler: AnyHandler | None, default: float) -> float:
    """Return the timeout in seconds, 0 = unlimited: the job's, else the handler's, else the default."""
    if envelope.timeout is not None:
        return envelope.timeout
    if handler is not None and handler.timeout is not None:
        return handler.timeout
    return default


def _max_retries(envelope: JobEnvelope, handler: AnyHandler | None) -> int | None:
    if envelope.max_retries is not None or handler is None:
        return envelope.max_retries
    return handler.max_retries


def _result(settlement: Settlement | Leave, outcome: Outcome, settled: Settled, lease: JobLease) -> WorkerResult:
    ran = isinstance(outcome, Succeeded | Failed | RetryAsked | TimedOut | MemoryExceeded)
    status = status_of(settlement, outcome, settled)
    return WorkerResult(status, lease.attempts + ran, _error(settlement, settled))


def _error(settlement: Settlement | Leave, settled: Settled) -> str | None:
    if not settled:
        return f"the backend refused the settlement: {settled.value}"
    match settlement:
        case Nack(error=error) | Abandon(error=error):
            return error
        case Forfeit(text) | Leave(text):
            return text
        case _:
            return None


class _FirstSeen:
    """The times when this worker first met messages with an unknown handler. Old ones are forgotten before new ones."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def seconds(self, ident: str, now: float, unknown: bool) -> float:
        """Return how long ago the message was first met without a handler; forgets it when there is one now."""
        if not unknown:
            self._times.pop(ident, None)
            return 0.0
        first = self._times.setdefault(ident, now)
        if len(self._times) > MOST_SEEN:
            del self._times[next(iter(self._times))]
        return now - first
