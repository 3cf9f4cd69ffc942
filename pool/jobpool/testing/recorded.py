"""A context made by hand, to call a handler's function as any other function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobpool.message.context import JobContext
from jobpool.message.definition import DEFAULT_PRIORITY, JobDefinition
from jobpool.message.envelope import JobEnvelope


class RecordedContext(JobContext):
    """A context that keeps what the handler said.

    Attributes:
        reports: Each `ctx.progress`: fraction and text.
        enqueued: The follow-ups of `ctx.enqueue`, which are sent nowhere.
        acks: The connections that were given to `ctx.ack`.
    """

    __slots__ = ("acks", "enqueued", "reports")

    def __init__(self, envelope: JobEnvelope, **facts: Any) -> None:
        self.reports: list[tuple[float, str]] = []
        self.enqueued: list[JobDefinition] = []
        self.acks: list[object] = []
        told = {"progress": lambda *report: self.reports.append(report), "follow_up": self.enqueued.append}
        super().__init__(envelope, SimpleNamespace(**told, ack=self.acks.append), **facts)


def context(
    payload: Any = None,
    *,
    handler: str = "test",
    name: str | None = None,
    queue: str = "default",
    identifier: str = "0000000000000000",
    attempt: int = 1,
    max_retries: int | None = None,
    meta: dict[str, Any] | None = None,
    fence: int = 1,
    crashes: int = 0,
    deadline: float | None = None,
    previous: Any = None,
    batch: str | None = None,
) -> RecordedContext:
    """Make the context of a job that no broker knows. `payload`: any JSON value; None = {}. `attempt`: >= 1.

    The handler itself gets its arguments from the test: `charge(context(attempt=2), order="17")`. The rest are the
    facts that `JobContext` tells. `batch`: the id of the one that the job is a member of.
    """
    payload = {} if payload is None else payload
    history = max_retries, attempt - 1, name, identifier
    known = dict(meta or {})
    if previous is not None:
        known["_previous"] = [previous]
    if batch is not None:
        known["_batch"] = batch
    facts = JobEnvelope(handler, payload, queue, DEFAULT_PRIORITY, *history, meta=known)
    return RecordedContext(facts, fence=fence, crashes=crashes, deadline=deadline, max_retries=max_retries)
