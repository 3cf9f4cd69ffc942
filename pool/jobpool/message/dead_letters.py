"""`DeadLetterQueue`: copies of failed payloads in a queue of their own, for people who look after failures there.

A copy is an ordinary job for the same handler name, whose payload says where it comes from under `_dlq_metadata`. The
dead letter itself stays where it is; nothing here replaces it.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime
from typing import Any

from jobpool.errors import InvalidJob, JobpoolError
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.names import check_queue
from jobpool.message.producer import Enqueues
from jobpool.message.settlement import Abandon

METADATA = "_dlq_metadata"  # the key in a copy's payload
NEVER_COPIED = frozenset({"rejected"})  # reasons that forward nothing: nobody has verified such a body

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
    ident = copy_id(queue, lease.id, lease.deliveries)
    return copy_of(envelope.payload, envelope.job, settlement.reason, attempts, queue, lease.queue, ident, now)


def copy_id(queue: str, ident: str, deliveries: int) -> str:
    """Return an id for this death: the same for each try to forward it, another after a retry and a new death."""
    return hashlib.sha256(f"{queue}\0{ident}\0{deliveries}".encode()).hexdigest()[:16]
