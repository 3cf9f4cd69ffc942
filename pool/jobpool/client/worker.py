"""`QueueWorker`: one message at a time in the caller's own process, for tests, cron and small scripts.

The pipeline is the pool's: fetch, inspect, run one attempt, decide, settle. A single process has limits: no master
kills a handler that hangs in C code, and one that crashes takes the caller with it. Its lease then expires, and the
reaper of a pool, or `backend.reap_expired(queue)`, recovers the message.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Self, TypeVar

from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.packing import pack_all
from jobpool.broker.values import Leases, check_ttl
from jobpool.child.attempt import JobToRun, own_ack, run_attempt
from jobpool.errors import BackendUnavailable, JobFailed, JobpoolError, Unsupported, check_seconds
from jobpool.handlers.ending import Attempt
from jobpool.handlers.handler import AnyHandler
from jobpool.handlers.registry import DEFAULT, HandlerRegistry
from jobpool.master.acquire import Acquirer, check_key_store
from jobpool.master.events import Event, LeasesBroke, Renewed, ThreadDied
from jobpool.master.slots import Delivery
from jobpool.master.threads import LostLeaseThread, MasterThread, RenewThread
from jobpool.message.allowances import Allowances
from jobpool.message.dead_letters import ON_DEATH, hook_job_of_abandoned
from jobpool.message.definition import JobDefinition, result_ttl_of, timeout_of
from jobpool.message.envelope import JobEnvelope, decode, encode
from jobpool.message.lease import JobLease
from jobpool.message.outcome import (
    Contended,
    ExecutionResult,
    LostLease,
    Outcome,
    ResultKind,
    Status,
    Stopped,
    Succeeded,
    UnknownHandler,
    WorkerResult,
)
from jobpool.message.results import JobState, JobStatus, Kept, keep
from jobpool.message.settlement import Abandon, Ack, Forfeit, Leave, Nack, Release, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.classify import checked, counters_of, counts_as_attempt, outcome_of, status_of
from jobpool.policy.decide import Rules, budget, decide
from jobpool.policy.inspection import Inspected, LeaseInspector
from jobpool.policy.limits import Limits
from jobpool.policy.retry import RetryPolicy, parse_backoff, remember

Answer = TypeVar("Answer")

DEFAULT_TIMEOUT = 3600.0  # seconds for a handler when neither the job nor the handler says
REJECTED_EVERY_S = 60.0  # between two log lines about rejected messages, so that forged ones cannot fill the log

logger = logging.getLogger("jobpool.worker")


class JobFailedError(JobFailed):
    """A job that was run inline did not succeed. The text is its error; `result` has the rest."""

    def __init__(self, envelope: JobEnvelope, queue: str, result: ExecutionResult) -> None:
        status = JobStatus(
            envelope.identifier, JobState.DEAD, queue, result.handler, reason=result.kind, error=result.error
        )
        super().__init__(f"job for handler {result.handler!r} failed: {result.error}", status)
        self.result = result


class QueueWorker:
    """Processes messages one by one, in the thread that calls it.

    Args:
        backend: Where messages come from. It stays its owner's; its signer verifies what is fetched.
        registry: The handlers; None = those of `@jobpool.handler`.
        retry: The policy for failed attempts; None = `RetryPolicy()`: no retries unless a job or handler asks for them.
        ttl: Seconds, > 0, that a lease is asked to hold; it is renewed every third of the time that it does while the
            handler runs.
        default_timeout: Seconds, >= 0, for jobs and handlers that set none; 0 = unlimited.
        max_timeout: Seconds, >= 0, that a job gets at most, whatever it or its handler asks for; 0 = no limit.
        queue_handlers: Queue to the only handlers that may run there; a queue that is absent is free.
        allowances: Permissions of the built-in handlers; None = the registry's, which by itself has none.
        unknown_handler_grace: Seconds for which a message waits for its handler, before it is given up.
        limits: Concurrency and rate limits, shared with all pools of this broker, and how long done idempotency keys
            are kept; None = no limits. A job held back by a limit, lock or key is released for a while.

    Its `counters` hold, by queue, counts by name (`jobs_fetched`, `jobs_succeeded`, …), taken when the backend accepts.

    Raises `ValueError`: `ttl`, `default_timeout` or `max_timeout` is out of bounds. `ConfigurationError`: there are
    limits, and the backend keeps no keys.
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
        self._registry = (DEFAULT if registry is None else registry).with_rules(allowances)
        self._retry = retry or RetryPolicy()
        self._ttl = check_ttl(ttl)
        self._default_timeout = check_seconds(default_timeout, "default_timeout")
        self._max_timeout = check_seconds(max_timeout, "max_timeout")
        self._queue_handlers = queue_handlers or {}
        self._inspector = LeaseInspector(backend.signer, self._queue_handlers)
        limits = Limits() if limits is None else limits
        check_key_store(limits, backend)
        self._acquirer = Acquirer(backend, limits)
        self._grace = unknown_handler_grace
        self._unknown_since: dict[str, float] = {}
        self._rejected_logged_at = -math.inf
        self.counters: dict[str, Counter[str]] = {}

    def process_once(self, queue: str) -> WorkerResult:
        """Process one message of `queue`, or none when there is none to fetch.

        An error of the handler is in the result, never raised. After Ctrl-C in the handler its message is free again.

        Raises `BackendUnavailable`: the broker did not answer the fetch, or was silent until the lease had run out. The
        message may be settled then; if not, the reaper recovers it.

        Blocks for the handler, and a few round trips. In the main thread SIGALRM enforces the handler's timeout; in any
        other, a handler that returns late has timed out, and one that hangs, hangs.
        """
        lease = self._backend.fetch(queue, ttl=self._ttl)
        if lease is None:
            return WorkerResult(Status.EMPTY)
        self._count(queue, ("fetched",))
        inspected = Inspected(lease, self._inspector.inspect(lease, self._backend.time.guess))
        self._guard(inspected)
        lease, outcome, handler = inspected.lease, inspected.outcome, None
        if outcome is None:
            handler = _find(self._registry, lease.envelope.job, queue)
            outcome, lease = self._run(lease, handler)
        return self._conclude(outcome, lease, handler)

    def _guard(self, inspected: Inspected) -> None:
        """Get the lease what it needs before its handler may run, or its outcome."""
        lease = inspected.lease
        for _, guards in self._acquirer.asks(lease.queue, [inspected]):
            [begun] = self._retry_while_leased(lease, partial(self._acquirer.begin, [(lease, guards)]))
            if not self._acquirer.conclude(inspected, guards, begun):
                # A pool would leave the queue alone for a while; here the caller decides when, so the message waits.
                inspected.outcome = Contended(self._acquirer.delay(lease, begun.after))

    def _run(self, lease: JobLease, handler: AnyHandler | None) -> tuple[Outcome, JobLease]:
        """Run one attempt; return its outcome, and the lease as it was last renewed."""
        job = _job_to_run(lease.envelope, handler, self._default_timeout, self._max_timeout)
        job.fence, job.crashes = lease.deliveries, lease.crashes
        job.max_retries = budget(lease, self._rules(handler), self._retry) - 1
        if handler is not None and handler.ack_in_transaction:
            job.ack = own_ack(self._backend.ticket(lease), partial(pack_all, self._backend))
        with LeaseKeeper(self._backend, lease, self._ttl) as keeper:
            attempt = self._attempt(job)
        if attempt.exception is not None:  # Ctrl-C, which is meant for this program, and not for the job alone
            self._conclude(LostLease() if keeper.lost else Stopped(), keeper.lease, handler)
            raise attempt.exception
        if keeper.lost and job.ack is None:  # else its own commit may have ended it, which the broker tells
            return LostLease(), keeper.lease
        now = self._clock.mono()
        met = self._unknown_since.get(lease.id, now)
        outcome = outcome_of(
            attempt.kind,
            handler=attempt.handler,
            error=attempt.error,
            after=attempt.after,
            follow_ups=tuple(attempt.follow_ups),
            seen_for=now - remember(self._unknown_since, lease.id, met) if handler is None else 0.0,
            output=attempt.output,
            result=self._kept(attempt, lease, handler),
        )
        return outcome, keeper.lease

    def _kept(self, attempt: Attempt, lease: JobLease, handler: AnyHandler | None) -> Kept | None:
        ttl = result_ttl_of(lease.envelope.result_ttl, handler.result_ttl if handler else None)
        if not (attempt.kept and ttl and self._backend.capabilities.key_store):
            return None
        return keep(attempt.kept, ttl, lease, self._backend.time.guess())

    def _rules(self, handler: AnyHandler | None) -> Rules:
        if handler is None:
            return Rules(unknown_handler_grace=self._grace)
        backoff = parse_backoff(handler.backoff) if handler.backoff else None
        return Rules(handler.max_retries, self._grace, backoff=backoff)

    def _attempt(self, job: JobToRun) -> Attempt:  # `jobpool.testing` injects faults here, in `_settle` and `_nap`
        return run_attempt(job, self._registry)

    def _conclude(self, outcome: Outcome, lease: JobLease, handler: AnyHandler | None) -> WorkerResult:
        outcome = checked(outcome, self._backend.pack)
        settlement = decide(outcome, lease, self._rules(handler), self._retry, self._clock.boot())
        if isinstance(settlement, Abandon):
            settlement = self._with_hook_job(lease, settlement)
        own = handler is not None and handler.ack_in_transaction and isinstance(settlement, Ack)
        call_id = f"ack:{lease.owner_token}" if own else secrets.token_hex(8)
        settled = Settled.OK if isinstance(settlement, Leave) else self._settle(lease, settlement, call_id)
        self._count(lease.queue, counters_of(settlement, outcome, settled))
        ran = isinstance(outcome, Succeeded) or counts_as_attempt(outcome)
        status = status_of(settlement, outcome, settled)
        result = WorkerResult(status, lease.attempts + ran, _error(settlement, outcome, settled))
        if status is Status.DEAD_LETTERED:
            text = "job %s (%s) of queue %s is a dead letter after %d attempts: %s"
            name = lease.envelope.name or lease.envelope.job
            logger.critical(text, lease.id, name, lease.queue, result.attempts, result.error)
        elif status is Status.REJECTED and time.monotonic() - self._rejected_logged_at >= REJECTED_EVERY_S:
            self._rejected_logged_at = time.monotonic()
            # No name: nothing in the body of a rejected message is to be believed.
            logger.critical("message %s of queue %s is rejected: %s", lease.id, lease.queue, result.error)
        return result

    def _with_hook_job(self, lease: JobLease, settlement: Abandon) -> Abandon:
        """Add the job that tells the `on_death` hooks, if the registry has some; a refused one delays no death."""
        if not has_death_hooks(self._registry, self._queue_handlers, lease.queue):
            return settlement
        try:
            job = hook_job_of_abandoned(lease, settlement, self._backend.pack)
        except JobpoolError as error:
            logger.warning("no on_death hook is told of job %s: %s", lease.id, error)
            return settlement
        return settlement if job is None else replace(settlement, follow_ups=(job,))

    def _settle(self, lease: JobLease, settlement: Settlement, call_id: str) -> Settled:
        return self._retry_while_leased(lease, lambda: self._backend.settle_many([(lease, settlement)], call_id)[0])

    def _retry_while_leased(self, lease: JobLease, call: Callable[[], Answer]) -> Answer:
        """Make a call that may be repeated, as a settlement under one id, until it is answered or the lease ends."""
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
        self.counters.setdefault(queue, Counter()).update(f"jobs_{name}" for name in names)


class LeaseKeeper:
    """A lease that the pool's own threads renew, and watch for breaks, while the caller's thread runs the handler.

    `lost`: the backend said that the lease has ended. Of several keepers on one backend, some find out only at their
    next renewal, because another one was told.
    """

    def __init__(self, backend: QueueBackend, lease: JobLease, ttl: float) -> None:
        self.lost = False
        self._delivery = Delivery(lease, 0, 0.0, "", backend.clock.mono())
        renewer = RenewThread(backend, ttl, lambda: [self._delivery], self)
        if (lasts := lease.expires_at - backend.clock.boot()) < ttl / 2:
            renewer.expect(lasts)  # else its first look is early enough, and this would cost a wake-up
        self._threads: list[MasterThread] = [renewer]
        if backend.capabilities.leases is Leases.CONNECTION:
            self._threads.append(LostLeaseThread(backend, self))

    @property
    def lease(self) -> JobLease:
        return self._delivery.lease

    def put(self, event: Event) -> None:
        match event:
            case Renewed([(_, JobLease() as lease)]):
                self._delivery.lease = lease
            case Renewed([(_, None)]):
                self._lose()
            case LeasesBroke(leases) if any(lease.owner_token == self.lease.owner_token for lease in leases):
                self._lose()
            case ThreadDied(trace=trace):
                logger.error("a lease is renewed no more: %s", trace)

    def _lose(self) -> None:
        self.lost = True
        for thread in self._threads:
            thread.stop()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads. Blocks for the round trip that is under way, if there is one."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join()


def inline_runner(
    registry: HandlerRegistry | None = None,
    *,
    default_timeout: float = DEFAULT_TIMEOUT,
    queue_handlers: Mapping[str, list[str]] | None = None,
    allowances: Allowances | None = None,
) -> Callable[[JobDefinition], ExecutionResult]:
    """Return the runner of `sync://`: one attempt in the caller's process, then the follow-ups that it enqueued.

    Arguments are as `QueueWorker`'s. The runner returns the job's result, and raises `JobFailedError` when it, or one
    of its follow-ups, did not succeed. There are no retries, because nothing is kept.
    """
    handlers = (DEFAULT if registry is None else registry).with_rules(allowances, queue_handlers)

    def run(definition: JobDefinition) -> ExecutionResult:
        first = attempt(definition)
        waiting = deque(first.follow_ups)
        while waiting:
            follow_up = waiting.popleft()
            due = follow_up.scheduled_at
            if due is not None and due > datetime.now(UTC):
                raise Unsupported(
                    f"follow-up job {follow_up.handler!r} is due at {due.isoformat()}, and what runs jobs inline keeps"
                    " none: leave the time out, or choose a backend that keeps messages"
                )
            waiting.extend(attempt(follow_up).follow_ups)
        return first.result

    def attempt(definition: JobDefinition) -> Attempt:
        try:
            return run_inline(definition, handlers, default_timeout)
        except JobFailedError as failed:
            raise failed.result.exception or failed from None  # Ctrl-C in it is meant for this program

    return run


def run_inline(definition: JobDefinition, registry: HandlerRegistry, default_timeout: float) -> Attempt:
    """Run one attempt in the caller's process; its follow-ups are left to the caller.

    Raises `JobFailedError`: it did not succeed; `InvalidJob`: its body is out of bounds. Blocks for the handler; in the
    main thread its timeout is enforced by SIGALRM.
    """
    queue = definition.queue or "default"
    ident = definition.identifier or secrets.token_hex(8)
    body = encode(definition, identifier=ident, queue=queue, signer=EnvelopeSigner(), now=time.time())
    envelope = decode(body, attempts=0)  # the handler meets its payload as it would come off the wire
    handler = _find(registry, envelope.job, queue)
    attempt = run_attempt(_job_to_run(envelope, handler, default_timeout), registry)
    if attempt.kind is not ResultKind.SUCCEEDED:
        raise JobFailedError(envelope, queue, attempt.result)
    return attempt


def has_death_hooks(registry: HandlerRegistry, queue_handlers: Mapping[str, list[str]], queue: str) -> bool:
    """Return whether jobs for `on_death` hooks can run on a queue."""
    return ON_DEATH in queue_handlers.get(queue, (ON_DEATH,)) and _find(registry, ON_DEATH, queue) is not None


def _find(registry: HandlerRegistry, name: str, queue: str) -> AnyHandler | None:
    try:
        return registry.resolve(name, queue)
    except LookupError:
        return None  # the attempt finds the same, and says which of the two reasons it is


def _job_to_run(
    envelope: JobEnvelope, handler: AnyHandler | None, default_timeout: float, max_timeout: float = 0.0
) -> JobToRun:
    timeout = timeout_of(envelope.timeout, handler.timeout if handler else None, default_timeout, max_timeout)
    return JobToRun(envelope, timeout=timeout)


def _error(settlement: Settlement | Leave, outcome: Outcome, settled: Settled) -> str | None:
    if not settled:
        return f"the backend refused the settlement: {settled.value}"
    match settlement:
        case Nack(error=error) | Abandon(error=error):
            return error
        case Forfeit(text) | Leave(text):
            return text
        case Release() if isinstance(outcome, UnknownHandler):
            return f"no handler {outcome.handler!r} here"
        case _:
            return None
