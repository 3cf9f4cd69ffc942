"""`VirtualPool`: a broker and a worker in the test's own process, on a clock that only the test turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Self

from jobpool.broker.control import Pause, read
from jobpool.broker.filters import matching
from jobpool.broker.opening import open_backend
from jobpool.broker.values import LIVE, Message, MessageFilter, ReapPolicy, State
from jobpool.client.jobs import Jobs
from jobpool.client.worker import DEFAULT_TIMEOUT, has_death_hooks
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.handlers.registry import DEFAULT, HandlerRegistry
from jobpool.master.dead_letter_jobs import DeadLetterJobs
from jobpool.message import producer
from jobpool.message.allowances import Allowances
from jobpool.message.builder import JobBuilder
from jobpool.message.definition import JobDefinition
from jobpool.message.outcome import Status
from jobpool.message.signing import EnvelopeSigner, Key
from jobpool.policy.limits import Limits
from jobpool.policy.retry import RetryPolicy
from jobpool.testing.faults import Fault, FaultPlan, Injection, Point
from jobpool.testing.worker import FaultyWorker, Run

OUTAGE_PAUSE = 1.0  # virtual seconds after which a fetch that was not answered is tried again

Job = JobDefinition | JobBuilder


class VirtualPool:
    """A pool that runs the jobs of a test in its own process, one after the other.

    Fetch, inspection, guards, attempt, decision and settlement are the pool's own; the broker is an empty `memory://`.
    Time stands still, also while a handler runs, until the test turns it or `run_all` has to wait for something.
    Handlers run for real, under their real timeouts. As a context manager it also takes what `handler.enqueue()`,
    `builder.dispatch()`, and every `Jobs()` without a URL or backend of its own, send. Delays count by its clock then.

    Args:
        registry, retry, limits, queue_handlers, allowances, default_timeout: As of `QueueWorker`.
        reap: The policy for messages whose lease has ended.
        signing_key: Signs and verifies; None = unsigned.
        ttl: Virtual seconds, > 0, that a lease holds. It is not renewed in virtual time.
        start: The time at first; None = now.

    Attributes:
        clock: The broker's and the worker's.
        backend: The broker: all of its contract can be called.
        jobs: Enqueues there.

    Raises as `QueueWorker`, and `ConfigurationError`: `start` has no timezone.
    """

    def __init__(
        self,
        registry: HandlerRegistry | None = None,
        *,
        retry: RetryPolicy | None = None,
        limits: Limits | None = None,
        reap: ReapPolicy | None = None,
        signing_key: Key | Sequence[Key] | None = None,
        queue_handlers: Mapping[str, list[str]] | None = None,
        allowances: Allowances | None = None,
        default_timeout: float = DEFAULT_TIMEOUT,
        ttl: float = 30.0,
        start: datetime | None = None,
    ) -> None:
        if start is not None and start.utcoffset() is None:
            raise ConfigurationError("start has no timezone: write datetime(…, tzinfo=UTC)")
        self.clock = ManualClock(wall=round(time.time(), 6) if start is None else start.timestamp())
        self.backend = open_backend("memory://", signer=EnvelopeSigner(signing_key), clock=self.clock)
        self.jobs = Jobs(backend=self.backend)
        self._reap = reap or ReapPolicy()
        self._registry, self._queue_handlers = registry or DEFAULT, queue_handlers or {}
        self._plan = FaultPlan()
        self._worker = FaultyWorker(
            self.backend,
            self.clock,
            self._plan,
            registry=registry,
            retry=retry,
            limits=limits,
            queue_handlers=queue_handlers,
            allowances=allowances,
            default_timeout=default_timeout,
            ttl=ttl,
        )

    def enqueue(self, job: Job | str, payload: Any = None) -> str:
        """Enqueue a job; its id. Parameters and errors as those of `Jobs.enqueue`."""
        return self.jobs.enqueue(job, payload)

    def enqueue_many(self, jobs: Iterable[Job]) -> list[str]:
        """Enqueue jobs; their ids, in order."""
        return self.jobs.enqueue_many(jobs)

    def message(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead; None when it is gone or never was."""
        return self.backend.inspect(ident)

    def waiting(self, queue: str | None = None) -> list[Message]:
        """Return the messages still to run, of one queue or of all: also delayed ones, and those that are leased."""
        found = self._messages(queue, *LIVE)
        return [message for message in found if message.handler]  # no pool runs posted messages

    def dead(self, queue: str | None = None) -> list[Message]:
        """Return the dead letters of one queue, or of all, in enqueue order; `reason` and `last_error` say why."""
        return self._messages(queue, State.DEAD)

    def counters(self, queue: str = "default") -> dict[str, int]:
        """Return the pool's counts for metrics, by name: `jobs_succeeded`, `jobs_requeued`, …"""
        return dict(self._worker.counters.get(queue, {}))

    def run_one(self, queue: str = "default") -> Run | None:
        """Run what is next in a queue now, and reap what that left behind; None when nothing is to be fetched.

        Raises `BackendUnavailable`: a test has told the broker not to answer, and it was the fetch that met it.
        """
        self.reap(queue)
        run = None if queue in self._paused() else self._worker.deliver(queue)
        if run is not None and run.status in (Status.CRASHED, Status.LOST):
            self.reap(queue)
        return run

    def run_ready(self, *queues: str, limit: int = 1000) -> list[Run]:
        """Run everything that is due now, and what becomes due by that; no time passes.

        Args:
            queues: Their names; none = all that hold a message.
            limit: Runs, >= 1, after which it fails: a job that enqueues itself would never end.

        Returns the runs, in order; a job that was retried at once is there twice. Raises `AssertionError`: there is
        more to do after `limit` runs.
        """
        return self._run(queues, limit, lambda _: False)

    def run_all(self, *queues: str, limit: int = 1000) -> list[Run]:
        """Run queues to their end: retries after their delays, and jobs scheduled, snoozed or held back.

        Turns the clock from one thing to the next. As `run_ready` otherwise. Afterwards nothing is left in these queues
        but dead letters, and the jobs of queues that are paused without an end.
        """
        return self._run(queues, limit, self._wait_for_the_next)

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, >= 0 seconds. In a handler: the time that its work would take; mind the lease."""
        self.clock.advance(seconds)

    def reap(self, *queues: str) -> int:
        """Give back what is held by leases that have ended, as every pool does now and then; how many."""
        reaped = [one for queue in self._chosen(queues) for one in self.backend.reap(queue, self._reap)]
        told = DeadLetterJobs(self.backend, None)
        hooked = partial(has_death_hooks, self._registry, self._queue_handlers)
        told.closed_to_hooks = frozenset(one.queue for one in reaped if not hooked(one.queue))
        told.died(reaped)
        told.forward()
        return len(reaped)

    def inject(
        self,
        fault: Fault,
        at: Point,
        *,
        handler: str | None = None,
        job: str | None = None,
        attempt: int | None = None,
        progress: float | None = None,
        times: int = 1,
    ) -> None:
        """Have something go wrong, at a named point of the next deliveries that fit.

        Args:
            fault: `Crash()`, `Timeout()`, `LoseLease()` or `BrokerDown()`.
            at: `before_start`, `in_handler`, `before_settle` or `after_settle`: see `jobpool.testing.faults`.
            handler: Only to jobs of this handler.
            job: Only to the job with this id.
            attempt: Only in this attempt, 1 = the first.
            progress: In the handler: not before `ctx.progress` has been called with at least so much.
            times: How often, >= 1.

        Raises `ConfigurationError`: this cannot happen there, or a number is out of bounds.
        """
        self._plan.append(Injection(fault, at, handler, job, attempt, progress, times))

    @property
    def unused(self) -> list[str]:
        """The faults that have not happened, in words. A test that planned one and never met it proves nothing."""
        return [str(injection) for injection in self._plan.left]

    def close(self) -> None:
        """Close the broker, and all that is in it."""
        self.backend.close()

    def __enter__(self) -> Self:
        self._outer = producer.process.chosen, producer.process.clock
        producer.set_default(self.jobs)
        producer.process.clock = self.clock
        return self

    def __exit__(self, *_: object) -> None:
        chosen, clock = self._outer
        producer.set_default(chosen)
        producer.process.clock = clock
        self.close()

    def __repr__(self) -> str:
        return f"<VirtualPool with {len(self.waiting())} jobs to run and {len(self.dead())} dead>"

    def _run(self, queues: tuple[str, ...], limit: int, idle: Callable[[Sequence[str]], bool]) -> list[Run]:
        """Deliver in turns until there is nothing to fetch and `idle` finds nothing to wait for."""
        if limit < 1:
            raise ConfigurationError(f"limit is 1 or more, not {limit!r}")
        runs: list[Run] = []
        while (found := self._round(queues)) or idle(queues):
            runs += found
            if len(runs) >= limit:
                unpaused = set(self._chosen(queues)) - self._paused().keys()
                ready = any(self.backend.stats(queue).waiting for queue in unpaused)
                if ready or idle(queues):
                    raise AssertionError(f"there is more to do after {len(runs)} runs; the last was {runs[-1]}")
        return runs

    def _round(self, queues: tuple[str, ...]) -> list[Run]:
        """Process one delivery of each queue; where the broker does not answer, again after a while."""
        runs: list[Run] = []
        for queue in self._chosen(queues):
            while True:
                try:
                    run = self.run_one(queue)
                    break
                except BackendUnavailable:
                    self.clock.advance(OUTAGE_PAUSE)
            if run is not None:
                runs.append(run)
        return runs

    def _wait_for_the_next(self, queues: Sequence[str]) -> bool:
        """Turn the clock to when a delay, a lease or a pause ends; whether there is one."""
        paused, ends = self._paused(), []
        for queue in self._chosen(queues):
            pause = paused.get(queue)
            for message in self.waiting(queue):
                held = message.available_at if message.expires_at is None else message.expires_at
                ends.append(held if pause is None else pause.until)
        times = [end for end in ends if end is not None]  # a pause without an end is not waited for
        if times:
            self.clock.advance(max(0.0, min(times) - self.clock.wall()))
        return bool(times)

    def _paused(self) -> Mapping[str, Pause]:
        return read(self.backend).paused

    def _chosen(self, queues: Sequence[str]) -> Sequence[str]:
        return queues or self.backend.queues()

    def _messages(self, queue: str | None, *states: State) -> list[Message]:
        return list(matching(self.backend, MessageFilter(queue=queue, states=states)))
