"""Runs a job that has no queue: one attempt in this process, under the alarm, as `QueueWorker` runs its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from jobpool.broker.backend import QueueBackend
from jobpool.client.worker import DEFAULT_TIMEOUT, JobFailedError, run_inline
from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.stopping import signals_kept
from jobpool.errors import JobpoolError
from jobpool.handlers.registry import DEFAULT, HandlerRegistry
from jobpool.message.definition import JobDefinition
from jobpool.message.printable import headline


@dataclass(frozen=True, slots=True)
class Inline:
    """The place where inline jobs run.

    Attributes:
        backend: Where follow-ups go, once the job that asked for them has succeeded.
        registry: The handlers. Its lists of handlers for each queue do not count: an inline job has no queue.
        default_timeout: Seconds for jobs and handlers that set none; 0 = unlimited.
    """

    backend: QueueBackend
    registry: HandlerRegistry = DEFAULT
    default_timeout: float = DEFAULT_TIMEOUT

    def fire(self, name: str, definition: JobDefinition, at: datetime, lateness: float) -> Firing:
        """Run the inline job of schedule `name`. Never raises a handler's errors; `InvalidJob` for the job's own.

        Blocks for the handler, for its timeout at most if it heeds the alarm.
        """
        try:
            with signals_kept():
                attempt = run_inline(definition, self.registry.with_rules(queue_handlers={}), self.default_timeout)
        except JobFailedError as failed:
            why = headline(failed.result.error) or "failed"
            return Firing(name, at, FiringStatus.FAILED, lateness, why=why, took=failed.result.duration_seconds())
        took = attempt.result.duration_seconds()
        if attempt.follow_ups:
            try:
                self.backend.enqueue_many(attempt.follow_ups)
            except JobpoolError as error:
                why = f"its follow-ups were not enqueued: {error}"
                return Firing(name, at, FiringStatus.FAILED, lateness, why=why, took=took)
        return Firing(name, at, FiringStatus.FIRED, lateness, took=took)
