"""`FaultyWorker`: the pipeline of `QueueWorker`, where a plan says what goes wrong, and naps take no time."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.child.attempt import JobToRun, run_attempt
from jobpool.client.worker import QueueWorker
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, MalformedEnvelope
from jobpool.handlers.ending import Attempt
from jobpool.handlers.handler import AnyHandler
from jobpool.handlers.hooks import Hooks
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message import producer
from jobpool.message.context import JobContext
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Crashed, ExecutionResult, Outcome, ResultKind, Status, WorkerResult, overran
from jobpool.message.settlement import Forfeit, Settled, Settlement
from jobpool.testing.faults import BrokerDown, Crash, Fault, FaultPlan, LoseLease, Point, Timeout

SILENT = "the broker does not answer: a test has told it so"


@dataclass(frozen=True, slots=True)
class Run(WorkerResult):
    """One delivery of one message, in the order in which they happened."""

    id: str = ""  # the message's
    queue: str = ""  # where it was fetched from
    handler: str = ""  # its handler's name; "" for a body that is not a wire object
    output: str = ""  # the handler's result and printed text, as the pool keeps it; "" when it did not come to its end
    at: float = 0.0  # Unix time, in virtual seconds, at which it was fetched


class Struck(BaseException):
    """Raised in a handler that crashes or is out of time. `except Exception` does not swallow it."""


class FaultyWorker(QueueWorker):
    """Processes messages one by one, and tells of each as a `Run`. `struck`: the last fault that struck a handler."""

    def __init__(self, backend: QueueBackend, clock: ManualClock, plan: FaultPlan, **options: Any) -> None:
        super().__init__(backend, **options)
        self._virtual = clock
        self._plan = plan
        self._outage = 0
        self._lease: JobLease | None = None
        self.struck: Fault | None = None
        self._output = ""

    def deliver(self, queue: str) -> Run | None:
        """Process one message; None when there is none. Raises `BackendUnavailable`: the fetch was not answered."""
        down = self._plan.take_fetch()
        self._outage += down.calls if down else 0
        if self._outage:
            self._outage -= 1
            raise BackendUnavailable(SILENT)
        self._lease, self._output, fetched_at = None, "", self._virtual.wall()
        try:
            result = self.process_once(queue)
        except BackendUnavailable as error:
            if self._lease is None:
                raise
            result = WorkerResult(Status.LOST, self._lease.attempts, str(error))
        lease = self._lease
        if lease is None:
            return None
        try:
            handler = lease.envelope.job
        except MalformedEnvelope:
            handler = ""
        return Run(result.status, result.attempts, result.error, lease.id, queue, handler, self._output, fetched_at)

    def _run(self, lease: JobLease, handler: AnyHandler | None) -> tuple[Outcome, JobLease]:
        self._lease = lease
        fault = self._plan.take("before_start", lease, Crash, LoseLease)
        if isinstance(fault, Crash):
            return Crashed(fault.cause), lease
        if fault is not None:
            self._lose(lease)
        outcome, lease = super()._run(lease, handler)
        struck = self.struck
        fault = struck or self._plan.take("before_settle", lease, Crash, LoseLease)
        if isinstance(fault, Crash):
            self._output = ""
            return Crashed(fault.cause), lease
        if isinstance(fault, LoseLease) and fault is not struck:
            self._lose(lease)
        return outcome, lease

    def _attempt(self, job: JobToRun) -> Attempt:
        """Run the handler; a fault that strikes it decides the attempt, whatever the handler did about it."""
        assert self._lease is not None
        self.struck = None
        outside = producer.of_attempt.set(self._backend)
        try:
            if self._plan.concerns_handler(self._lease):
                sabotaged = _Sabotaged(self._registry, self)
                attempt = run_attempt(job, sabotaged, progress=lambda fraction, _: self.meet(fraction))
            else:
                attempt = super()._attempt(job)
        finally:
            producer.of_attempt.reset(outside)
        if isinstance(self.struck, Timeout):
            name = job.envelope.name or job.envelope.job
            attempt.kind = ResultKind.TIMEOUT
            attempt.error = overran(name, job.timeout)
            attempt.follow_ups = ()
        self._output = attempt.output
        return attempt

    def meet(self, progress: float | None = None) -> None:
        """Let the fault happen whose turn it is: the handler begins, or has reported progress."""
        lease, fault = self._lease, None
        assert lease is not None
        # Nothing more is taken from the plan after the end: the handler has swallowed it, and meets it again.
        if not isinstance(self.struck, Crash | Timeout):
            fault = self._plan.take("in_handler", lease, Crash, Timeout, LoseLease, progress=progress)
        self.struck = fault or self.struck
        if isinstance(fault, LoseLease):
            self._lose(lease)
        if isinstance(self.struck, Crash | Timeout):
            raise Struck("stopped by a test")

    def _conclude(self, outcome: Outcome, lease: JobLease, handler: AnyHandler | None) -> WorkerResult:
        self._lease = lease
        result = super()._conclude(outcome, lease, handler)
        self._plan.take("after_settle", lease, Crash)  # a crash now has nothing left to lose
        return result

    def _settle(self, lease: JobLease, settlement: Settlement, call_id: str) -> Settled:
        """Settle with requests, and then answers, lost as often as the plan says."""
        requests = answers = 0
        if not isinstance(settlement, Forfeit):  # of a crash, which is the worse of the two
            requests, answers = self._calls("before_settle", lease), self._calls("after_settle", lease)

        def settle() -> Settled:
            nonlocal requests, answers
            if requests:
                requests -= 1
                raise BackendUnavailable(SILENT)
            answer = self._backend.settle_many([(lease, settlement)], call_id)[0]
            if answers:
                answers -= 1
                raise BackendUnavailable(SILENT)
            return answer

        return self._retry_while_leased(lease, settle)

    def _calls(self, at: Point, lease: JobLease) -> int:
        down = self._plan.take(at, lease, BrokerDown)
        return down.calls if isinstance(down, BrokerDown) else 0

    def _lose(self, lease: JobLease) -> None:
        """End the lease as the broker would see it: its deadline has come, and the reaper finds it."""
        self._backend.settle_many([(lease, Forfeit("lease expired"))])

    def _nap(self, seconds: float) -> None:
        self._virtual.advance(seconds)


class _Sabotaged(HandlerRegistry):
    """A registry that resolves as the real one does; its handler has the fault after its `before_run`."""

    def __init__(self, real: HandlerRegistry, worker: FaultyWorker) -> None:
        super().__init__()
        self.hooks = _HooksUntilCrash(real.hooks, worker)
        self._real = real
        self._worker = worker

    def resolve(self, name: str, queue: str) -> AnyHandler:
        handler = copy.copy(self._real.resolve(name, queue))
        before, after, worker = handler.before_run, handler.after_run, self._worker

        def before_run(ctx: JobContext) -> None:
            if before is not None:
                before(ctx)
            worker.meet()

        def after_run(result: ExecutionResult) -> None:
            if after is not None and not isinstance(worker.struck, Crash):
                after(result)

        handler.before_run, handler.after_run = before_run, after_run
        return handler


class _HooksUntilCrash(Hooks):
    """The hooks of an app, of which none runs after the handler's process has died."""

    def __init__(self, real: Hooks, worker: FaultyWorker) -> None:
        super().__init__()
        self._hooks, self._worker = real._hooks, worker

    def after_attempt(self, ctx: JobContext, result: ExecutionResult) -> None:
        if not isinstance(self._worker.struck, Crash):
            super().after_attempt(ctx, result)
