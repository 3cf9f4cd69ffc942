"""Runs a job that has no queue: one attempt in this process, under the alarm, as `QueueWorker` runs its own."""

from __future__ import annotations

from dataclasses import dataclass

from jobpool.broker.backend import QueueBackend
from jobpool.client.worker import DEFAULT_TIMEOUT, JobFailedError, run_inline
from jobpool.cron.stopping import signals_kept
from jobpool.errors import JobpoolError
from jobpool.handlers.registry import DEFAULT, HandlerRegistry
from jobpool.message.definition import JobDefinition
from jobpool.message.printable import headline
from jobpool.message.result import ExecutionResult


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

    def run(self, definition: JobDefinition) -> tuple[ExecutionResult | None, str | None]:
        """Run an inline job; return the result, and why it failed; None = it succeeded. Never raises a handler's
        errors.

        Blocks for the handler, for its timeout at most if it heeds the alarm.
        """
        try:
            with signals_kept():
                attempt = run_inline(definition, self.registry.with_rules(queue_handlers={}), self.default_timeout)
        except JobFailedError as failed:
            return failed.result, headline(failed.result.error) or "failed"
        if attempt.follow_ups:
            try:
                self.backend.enqueue_many(attempt.follow_ups)
            except JobpoolError as error:
                return attempt.result, f"its follow-ups were not enqueued: {error}"
        return attempt.result, None
