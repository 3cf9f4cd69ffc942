"""Jobs that tell of a dead letter: copies of failed payloads (`DeadLetterQueue`), and those that bring a `DeadJob`.

A copy is an ordinary job for the same handler name, in a queue of its own. Its payload says where it comes from under
`_dlq_metadata`. A `DeadJob` goes to the app's `on_death` hooks, in the queue where the job died. The dead letter itself
stays where it is; nothing here replaces it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jobpool.errors import InvalidJob, JobpoolError
from jobpool.message.capped_text import cap_text
from jobpool.message.death import Death
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import TRACEPARENT, JobEnvelope
from jobpool.message.names import check_queue
from jobpool.message.producer import Enqueues
from jobpool.message.settlement import CANCELLED

if TYPE_CHECKING:
    from jobpool.message.lease import JobLease
    from jobpool.message.settlement import Abandon

METADATA = "_dlq_metadata"  # the key in a copy's payload
NEVER_COPIED = frozenset({"rejected", CANCELLED})
"""Reasons that forward nothing and run no hooks: such a body is not verified; a person knows of the cancel."""
ON_DEATH = "jobpool.on_death"  # the handler of jobs that bring a `DeadJob` to an app's hooks
MAX_ERROR_BYTES = 64 * 1024  # of the error in a `DeadJob`
MIN_ERROR_BYTES = 1024  # of one that is left with the bare facts

logger = logging.getLogger("jobpool.deadletters")


class DeadLetterQueue:
    """A forwarder of failed payloads to one queue, by a `Jobs` or an open backend, which stays its owner's.

    Raises `InvalidJob`: `queue` is not a queue name.
    """

    def __init__(self, jobs: Enqueues, queue: str) -> None:
        self._jobs = jobs
        self.queue = check_queue(queue)

    def store(
        self,
        payload: Any,
        handler: str,
        reason: str,
        attempts: int,
        *,
        original_queue: str = "default",
        identifier: str | None = None,
    ) -> bool:
        """Enqueue a copy of `payload` for `handler`.

        An object gets the key `_dlq_metadata` with `reason`, `timestamp` (now, RFC 3339), `attempts` and
        `original_queue`. Any other value becomes the `payload` of an object beside it.

        Args:
            payload: Any JSON value; it is copied.
            handler: Name of the handler that will meet the copy, if one works on that queue.
            attempts: Failed runs, 0 or more.
            original_queue: The queue where it failed; without it, the queue of jobs that name none. A failure in the
                queue of copies itself is never stored again.
            identifier: The copy's id; the same id twice stores one copy.

        Returns:
            True if it is stored. False when it comes from this queue, or when the broker does not answer or refuses
            the copy: for its size, say. Then the log has the reason. Broker trouble is never raised.

        Raises `InvalidJob`: a value is invalid for a job; nothing was sent. Blocks for one round trip.
        """
        if original_queue == self.queue:
            return False
        now = datetime.now(UTC)
        copy = copy_of(payload, handler, reason, attempts, self.queue, original_queue, identifier, now)
        try:
            self._jobs.enqueue(copy)
        except JobpoolError as error:
            logger.warning("a payload that failed in %s is not forwarded to %s: %s", original_queue, self.queue, error)
            return False
        return True


def copy_of(
    payload: Any,
    handler: str,
    reason: str,
    attempts: int,
    queue: str,
    original_queue: str,
    identifier: str | None,
    now: datetime,
) -> JobDefinition:
    """Return the job that carries the copy to `queue`. Raises as `DeadLetterQueue.store`."""
    if type(attempts) is not int or attempts < 0:
        raise InvalidJob(f"attempts must be a whole number, 0 or more, not {attempts!r}")
    metadata = {
        "reason": reason,
        "timestamp": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "attempts": attempts,
        "original_queue": check_queue(original_queue),
    }
    base = payload if isinstance(payload, dict) else {"payload": payload}
    return JobDefinition(handler, {**base, METADATA: metadata}, queue=queue, identifier=identifier)


def copy_of_abandoned(lease: JobLease, settlement: Abandon, queue: str, now: datetime) -> JobDefinition | None:
    """Return the copy that goes to `queue` in one step with `settlement`; None = none does.

    The body of a lease that may be copied was verified before it was handed out.
    """
    if lease.queue == queue or settlement.reason in NEVER_COPIED:
        return None
    envelope, attempts = lease.envelope, lease.attempts + settlement.attempts
    ident = copy_id(queue, lease.id, lease.deliveries, lease.enqueued_at)
    return copy_of(envelope.full_payload, envelope.job, settlement.reason, attempts, queue, lease.queue, ident, now)


def copy_id(queue: str, ident: str, deliveries: int, enqueued_at: float) -> str:
    """Return an id for this death: the same for each try to forward it, another after a retry and a new death.

    `enqueued_at`: a producer may use an id of its own again once the message is gone.
    """
    return hashlib.sha256(f"{queue}\0{ident}\0{deliveries}\0{enqueued_at}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that ended for good, as its app's `on_death` hooks get it. Its dead letter is kept under the same id.

    Attributes:
        reason: `failed`, `unrecoverable`, `timeout`, `memory-limit`, `crash-limit`, `expired`, `unknown-handler` or
            `handler-not-allowed`.
        error: The last traceback or sentence, at most 64 KiB; None = there is none, as after a crash.
        cause: How its process ended, in one line: `killed by SIGSEGV (itself), …`; "" = it did not.
        stack: The handler's frames when its process was killed; "" = not known.
        output: The last that the killed attempt printed.
        attempts: Failed attempts, the last one included.
        crashes: Deliveries that ended with no verdict.
        payload: As its handler got it; None if it was left out.
        payload_left_out: The record would be too large for a job with it; `jobpool inspect ID` shows it. Where that is
            not enough, `stack`, `output`, `meta` and most of `error` are left out too.
        meta: The producer's own values, `traceparent` for one.
    """

    id: str
    handler: str
    name: str
    queue: str
    reason: str
    error: str | None = None
    cause: str = ""
    stack: str = ""
    output: str = ""
    attempts: int = 0
    crashes: int = 0
    payload: Any = None
    payload_left_out: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_payload(cls, payload: Any) -> DeadJob:
        """Return the record of a job for `ON_DEATH`, less fields of a newer version. Raises `TypeError` for others."""
        if not isinstance(payload, dict):
            raise TypeError(f"the record of a dead job is an object, not {type(payload).__name__}")
        return cls(**{each.name: payload[each.name] for each in fields(cls) if each.name in payload})


def hook_job(
    envelope: JobEnvelope,
    check: Callable[[JobDefinition], object],
    *,
    queue: str,
    reason: str,
    error: str | None,
    cause: str | None,
    attempts: int,
    crashes: int,
    deliveries: int,
    enqueued_at: float,
) -> JobDefinition | None:
    """Return the job that brings a death to the hooks, in its queue, ahead of others, under an id of this death.

    None: a death of `ON_DEATH` itself, or nothing was verified. Where `check` raises a `JobpoolError`, it goes without
    the payload, or with the bare facts. Raises that error when these are refused too. `cause`: as `Message.cause`.
    """
    if envelope.job == ON_DEATH or reason in NEVER_COPIED:
        return None
    job, death = envelope, Death.from_text(cause) if cause else Death("")
    error = error and cap_text(error, MAX_ERROR_BYTES)
    how = death.headline if death.how else ""
    ended = (queue, reason, error, how, death.stack, death.output, attempts, crashes)
    whole = DeadJob(job.identifier, job.job, job.name or job.job, *ended, job.full_payload, meta=job.user_meta)
    smaller = replace(whole, payload=None, payload_left_out=True)
    ident = copy_id(ON_DEATH, whole.id, deliveries, enqueued_at)
    for dead in (whole, smaller):
        with suppress(JobpoolError):
            return _job_of(dead, ident, check)
    return _job_of(_facts_of(smaller), ident, check)


def _facts_of(dead: DeadJob) -> DeadJob:
    error = dead.error and cap_text(dead.error, MIN_ERROR_BYTES)
    return replace(dead, error=error, stack="", output="", meta={})


def _job_of(dead: DeadJob, ident: str, check: Callable[[JobDefinition], object]) -> JobDefinition:
    """Return the job that brings this record, checked."""
    trace = {name: dead.meta[name] for name in (TRACEPARENT,) if name in dead.meta}
    job = JobDefinition(ON_DEATH, dead, priority=0, queue=dead.queue, identifier=ident, meta=trace)
    check(job)
    return job


def hook_job_of_abandoned(
    lease: JobLease, settlement: Abandon, check: Callable[[JobDefinition], object]
) -> JobDefinition | None:
    """Return the job for the `on_death` hooks that goes out in one step with `settlement`; None = none does."""
    if settlement.reason in NEVER_COPIED:  # before its body is read, which may be rubbish
        return None
    return hook_job(
        lease.envelope,
        check,
        queue=lease.queue,
        reason=settlement.reason,
        error=settlement.error,
        cause=settlement.cause,
        attempts=lease.attempts + settlement.attempts,
        crashes=lease.crashes,
        deliveries=lease.deliveries,
        enqueued_at=lease.enqueued_at,
    )
