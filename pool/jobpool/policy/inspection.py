"""Inspection of a delivery, before a child sees it: envelope bounds, signature, queue, version, expiry, allow-list."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from jobpool.errors import BadSignature, MalformedEnvelope
from jobpool.message.envelope import WIRE_VERSION, verify
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Expired, HandlerNotAllowed, NewerWire, Outcome, Rejected
from jobpool.message.signing import EnvelopeSigner

MAX_COUNTER = 2**32 - 1  # a frame to a child carries no more; a visitor of the broker may have written another one


class Inspected(Struct):
    """A lease whose body was checked: `outcome` is set when it must not be run."""

    lease: JobLease
    outcome: Outcome | None


class LeaseInspector:
    """The inspector of each lease, once. Pure but for the clock that it is given."""

    def __init__(self, signer: EnvelopeSigner, queue_handlers: Mapping[str, list[str]]) -> None:
        self._signer = signer
        self._allowed = {queue: frozenset(names) for queue, names in queue_handlers.items()}

    def inspect(self, lease: JobLease, now: Callable[[], float]) -> Outcome | None:
        """Return why it must not be run, or None. `now`: the broker's Unix time, asked for expiry only."""
        try:
            envelope = lease.envelope
            verify(envelope, self._signer, lease.queue)
        except MalformedEnvelope as error:
            return Rejected(str(error), signature=isinstance(error, BadSignature))
        if not (
            0 <= lease.attempts <= MAX_COUNTER
            and 0 <= lease.crashes <= MAX_COUNTER
            and 0 <= lease.deliveries <= MAX_COUNTER
        ):
            return Rejected(
                f"its counters cannot be true (attempts {lease.attempts}, crashes {lease.crashes}, deliveries"
                f" {lease.deliveries}): somebody has changed it at the broker"
            )
        if envelope.meta:
            if envelope.version > WIRE_VERSION:
                return NewerWire(envelope.version)
            expires = lease.expires
            if expires is not None and now() >= expires:
                return Expired()
        allowed = self._allowed.get(lease.queue) if self._allowed else None
        if allowed is not None and envelope.job not in allowed:
            return HandlerNotAllowed(envelope.job)
        return None
