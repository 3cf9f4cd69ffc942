"""`FaultyWorker`: the pipeline of `QueueWorker`, where a plan says what goes wrong, and naps take no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.child.attempt import Attempt, JobToRun
from jobpool.client.worker import QueueWorker
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, MalformedEnvelope
from jobpool.handlers.registry import AnyHandler, HandlerRegistry
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Crashed, Outcome
from jobpool.message.result import Status, WorkerResult
from jobpool.message.settlement import Forfeit, Settled, Settlement
from jobpool.testing.faults import BrokerDown, Crash, FaultPlan, LoseLease, Point
from jobpool.testing.sabotage import Sabotage

SILENT = "the broker does not answer: a test has told it so"


@dataclass(frozen=True, slots=True)
class Run(WorkerResult):
    """One delivery of one message, in the order in which they happened.

    Attributes:
        id: The message's.
        queue: Where it was fetched from.
        handler: Its handler's name; "" for a body that is not a wire object.
        output: The handler's result and printed text, as the pool keeps it; "" when it did not come to its end.
        at: Unix time, in virtual seconds, at which it was fetched.
    """

    id: str = ""
    queue: str = ""
    handler: str = ""
    output: str = ""
    at: float = 0.0


class FaultyWorker(QueueWorker):
    """Processes messages one by one, and remembers each as a `Run`.

    Args:
        backend: Where messages come from.
        clock: Its clock.
        plan: The faults.
        registry: The handlers; None = those of `@jobpool.handler`.
        options: As `QueueWorker` takes them.
    """

    def __init__(
        self,
        backend: QueueBackend,
        clock: ManualClock,
        plan: FaultPlan,
        registry: HandlerRegistry | None,
        **options: Any,
    ) -> None:
        super().__init__(backend, registry, **options)
        self._virtual = clock
        self._plan = plan
        self._outage = 0
        self._lease: JobLease | None = None
        self._sabotage: Sabotage | None = None
        self._output = ""
        self._fetched_at = 0.0

    def deliver(self, queue: str) -> Run | None:
        """Process one message; None when there is none to fetch.

        Raises:
            BackendUnavailable: The fetch was not answered.
        """
        self._fail_the_fetch()
        self._lease, self._output, self._fetched_at = None, "", self._virtual.wall()
        try:
            result = self.process_once(queue)
        except BackendUnavailable as error:
            if self._lease is None:
                raise
            result = WorkerResult(Status.LOST, self._lease.attempts, str(error))
        return self._told(queue, result)

    def _fail_the_fetch(self) -> None:
        down = self._plan.take_fetch()
        self._outage += down.calls if down else 0
        if self._outage:
            self._outage -= 1
            raise BackendUnavailable(SILENT)

    def _told(self, queue: str, result: WorkerResult) -> Run | None:
        if result.status is Status.EMPTY or self._lease is None:
            return None
        return Run(
            result.status,
            result.attempts,
            result.error,
            id=self._lease.id,
            queue=queue,
            handler=_handler(self._lease),
            output=self._output,
            at=self._fetched_at,
        )

    # --- the pipeline, with its points -------------------------------------------------------------

    def _run(self, lease: JobLease, handler: AnyHandler | None) -> tuple[Outcome, JobLease]:
        self._lease = lease
        fault = self._plan.take("before_start", lease, Crash, LoseLease)
        if isinstance(fault, Crash):
            return Crashed(fault.cause), lease
        if fault is not None:
            self._lose(lease)
        outcome, lease = super()._run(lease, handler)
        struck = self._sabotage.fault if self._sabotage else None
        fault = struck or self._plan.take("before_settle", lease, Crash, LoseLease)
        if isinstance(fault, Crash):
            self._output = ""
            return Crashed(fault.cause), lease
        if isinstance(fault, LoseLease) and fault is not struck:
            self._lose(lease)
        return outcome, lease

    def _attempt(self, job: JobToRun) -> Attempt:
        assert self._lease is not None
        self._sabotage = None
        if not self._plan.concerns_handler(self._lease):
            attempt = super()._attempt(job)
        else:
            self._sabotage = Sabotage(self._plan, self._lease, self._lose)
            attempt = self._sabotage.run(job, self._registry)
        self._output = attempt.output
        return attempt

    def _conclude(self, outcome: Outcome, lease: JobLease, handler: AnyHandler | None) -> WorkerResult:
        self._lease = lease
        result = super()._conclude(outcome, lease, handler)
        self._plan.take("after_settle", lease, Crash)  # a crash now has nothing left to lose
        return result

    def _settle(self, lease: JobLease, settlement: Settlement, call_id: str) -> Settled:
        def settle() -> Settled:
            return self._backend.settle_many([(lease, settlement)], call_id)[0]

        if isinstance(settlement, Forfeit):
            return settle()  # of a crash, which is the worse of the two
        return self._patiently(lease, self._over_a_bad_line(lease, settle))

    def _over_a_bad_line(self, lease: JobLease, call: Callable[[], Settled]) -> Callable[[], Settled]:
        """Return `call` with its requests, and then its answers, lost as often as the plan says."""
        requests = self._calls("before_settle", lease)
        answers = self._calls("after_settle", lease)

        def attempted() -> Settled:
            nonlocal requests, answers
            if requests:
                requests -= 1
                raise BackendUnavailable(SILENT)
            answer = call()
            if answers:
                answers -= 1
                raise BackendUnavailable(SILENT)
            return answer

        return attempted

    def _calls(self, at: Point, lease: JobLease) -> int:
        down = self._plan.take(at, lease, BrokerDown)
        return down.calls if isinstance(down, BrokerDown) else 0

    def _lose(self, lease: JobLease) -> None:
        """End the lease as the broker would see it: its deadline has come, and the reaper finds it."""
        self._backend.settle_many([(lease, Forfeit("lease expired"))])

    def _nap(self, seconds: float) -> None:
        self._virtual.advance(seconds)


def _handler(lease: JobLease) -> str:
    try:
        return lease.envelope.job
    except MalformedEnvelope:
        return ""
