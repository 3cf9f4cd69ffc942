"""One attempt that a fault may strike: the handler's hooks and its progress are where it happens."""

from __future__ import annotations

import copy
from collections.abc import Callable

from jobpool.child.attempt import Attempt, JobToRun, run_attempt
from jobpool.handlers.ending import timeout_text
from jobpool.handlers.registry import AnyHandler, HandlerRegistry
from jobpool.message.capped_text import DEFAULT_CAP
from jobpool.message.context import JobContext
from jobpool.message.lease import JobLease
from jobpool.message.outcome import ResultKind
from jobpool.message.result import ExecutionResult
from jobpool.testing.faults import Crash, Fault, FaultPlan, LoseLease, Timeout


class Struck(BaseException):
    """Raised in a handler that crashes or is out of time. `except Exception` does not swallow it."""


class Sabotage:
    """One attempt with the plan's faults for its handler.

    Args:
        plan: The faults.
        lease: Of the message.
        lose: Ends it.

    Attributes:
        fault: The fault that struck; it decides the attempt, whatever the handler did about it.
    """

    def __init__(self, plan: FaultPlan, lease: JobLease, lose: Callable[[JobLease], None]) -> None:
        self._plan = plan
        self._lease = lease
        self._lose = lose
        self.fault: Fault | None = None

    def run(self, job: JobToRun, registry: HandlerRegistry) -> Attempt:
        """Return the attempt, as its pool would see it."""
        attempt = run_attempt(job, _Sabotaged(registry, self), progress=self.report)
        if isinstance(self.fault, Timeout):
            name = job.envelope.name or job.envelope.job
            attempt.kind = ResultKind.TIMEOUT
            attempt.error = timeout_text(name, job.timeout, None, DEFAULT_CAP)
            attempt.follow_ups = ()
        return attempt

    def enter(self) -> None:
        """Note that the handler begins."""
        self._strike(self._plan.take("in_handler", self._lease, Crash, Timeout, LoseLease))

    def report(self, fraction: float, text: str) -> None:
        """Note that the handler reports progress."""
        del text
        if self.is_over:
            raise Struck("stopped by a test")  # again: the handler has swallowed the first
        self._strike(self._plan.take_at_progress(fraction, self._lease))

    def _strike(self, fault: Fault | None) -> None:
        self.fault = fault or self.fault
        if isinstance(fault, LoseLease):
            self._lose(self._lease)
        if self.is_over:
            raise Struck("stopped by a test")

    @property
    def is_over(self) -> bool:
        """True if the handler was stopped: then nothing of the user's runs any more."""
        return isinstance(self.fault, Crash | Timeout)


class _Sabotaged(HandlerRegistry):
    """A registry that resolves as the real one does; its handler has the fault after its `before_run`."""

    def __init__(self, real: HandlerRegistry, sabotage: Sabotage) -> None:
        super().__init__()
        self._real = real
        self._sabotage = sabotage

    def resolve(self, name: str, queue: str) -> AnyHandler:
        handler = copy.copy(self._real.resolve(name, queue))
        before, after, sabotage = handler.before_run, handler.after_run, self._sabotage

        def before_run(ctx: JobContext) -> None:
            if before is not None:
                before(ctx)
            sabotage.enter()

        def after_run(result: ExecutionResult) -> None:
            if after is not None and not isinstance(sabotage.fault, Crash):
                after(result)

        handler.before_run, handler.after_run = before_run, after_run
        return handler
