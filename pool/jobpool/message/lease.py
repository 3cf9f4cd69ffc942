"""A lease: the right to settle one message until a deadline."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from jobpool.message.envelope import JobEnvelope, decode
from jobpool.message.guards import Guards
from jobpool.message.printable import hides


@hides("_envelope")
class JobLease(Struct, frozen=True, eq=False):
    """The lease that `fetch` hands out. Its holder may settle the message until `expires_at`.

    That is in seconds on this machine's CLOCK_BOOTTIME, taken from before the request was sent. At `now == expires_at`
    the lease has ended.
    """

    id: str  # 16 hex characters, or the producer's own
    queue: str  # from which it was fetched
    body: bytes  # exactly as it was enqueued; `OVERSIZED` for one that is too large and stays at the broker
    token: object  # the backend's own handle (a row id, a lock token)
    owner_token: str  # 32 hex characters, fresh for every delivery; proof of this lease and no other
    expires_at: float
    backend: str  # the scheme of the backend that leased it
    attempts: int = 0  # failures that the handler is responsible for, as the backend counts them
    crashes: int = 0  # deliveries that ended with no verdict
    deliveries: int = 1  # all leases so far, this one included; strictly increasing: a fencing token
    enqueued_at: float = 0.0  # Unix time, on the broker's clock
    begun: bool = False  # a run of it was begun and given back, or it was raised from the dead letters
    guards: Guards | None = None  # the grants of the broker's key store; None = nothing was asked for
    _envelope: JobEnvelope | None = None

    @property
    def envelope(self) -> JobEnvelope:
        """The decoded body, with `attempts` as the backend counts them; decoded once.

        Raises `MalformedEnvelope`: the body is not a wire object, or is too large or too deep.
        """
        if self._envelope is None:
            force_setattr(self, "_envelope", decode(self.body, attempts=self.attempts))
        return self._envelope  # type: ignore[return-value]

    @property
    def expires(self) -> float | None:
        """Unix time from which on it is not started; None = it may be started at any time. Raises as `envelope`.

        None too once it was begun: a failed attempt, a crash or a snooze does not make it expire. A person who raises
        a dead letter lifts its expiry.
        """
        return None if self.begun or self.attempts or self.crashes else self.envelope.expires

    def guarded(self, guards: Guards) -> JobLease:
        return replace(self, guards=guards)
