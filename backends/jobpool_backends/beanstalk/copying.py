"""Messages that go on as a copy: the new header, and the jobs to put.

No I/O, but to ask once for the server's limit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.message.settlement import Abandon, Forfeit, Move, Nack, Release, Settlement
from jobpool_backends.beanstalk.connection import Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.dying import Copy
from jobpool_backends.beanstalk.enqueue import Enqueuer
from jobpool_backends.beanstalk.reap import EXPIRED, Charge, CrashLedger, charge, whole_seconds
from jobpool_backends.beanstalk.records import Record, to_bytes


@dataclass(frozen=True, slots=True, eq=False)
class CopiedSettlement:
    """A settlement by copies.

    Attributes:
        copies: Jobs to put before the original is ended.
        end: The command that ends it.
        charged: Of a forfeit.
        stands: True if one of the copies is the message itself: then the settlement stands once they are put. Else the
            copies are follow-ups, and the settlement is unknown until the original is ended.
    """

    copies: list[Copy]
    end: bytes
    charged: Charge | None = None
    stands: bool = True


class Copier:
    """A maker of copies.

    Args:
        connections: To the server.
        enqueuer: Makes jobs of messages.
        ledger: The crash policies.
        clock: Its wall clock dates deaths and crashes.
    """

    def __init__(self, connections: Connections, enqueuer: Enqueuer, ledger: CrashLedger, clock: Clock) -> None:
        self._connections = connections
        self._enqueuer = enqueuer
        self._ledger = ledger
        self._clock = clock
        self._draw = random.Random().uniform

    def work(self, held: Held, settlement: Settlement, brought: Sequence[NewMessage]) -> CopiedSettlement:
        """Return the copies that a settlement puts. Raises InvalidJob when the server takes no job of that size."""
        record = replace(held.record, deliveries=held.lease.deliveries)
        match settlement:
            case Nack(delay, error, cause):
                retried = _failed(replace(record, attempts=record.attempts + 1), error, cause)
                return self._work(held, retried, whole_seconds(delay))
            case Abandon(reason, error, cause):
                failures = record.attempts + settlement.attempts
                dead = replace(
                    _failed(record, error, cause), attempts=failures, reason=reason, died_at=self._clock.wall()
                )
                return self._work(held, dead, brought=self._enqueuer.copies(brought))
            case Release(delay):
                return self._work(held, replace(record, begun=True), whole_seconds(delay))
            case Forfeit(cause):
                return self._forfeit(held, record, cause)
            case Move():
                return CopiedSettlement(
                    [self._move(held, _moved(message, record)) for message in brought], _delete(held)
                )
            case _:
                return CopiedSettlement(self._enqueuer.copies(brought), _delete(held), stands=False)

    def _forfeit(self, held: Held, record: Record, cause: str) -> CopiedSettlement:
        policy = self._ledger.policy(held.lease.queue)
        charged = charge(record, 1, cause or EXPIRED, policy, self._clock.wall(), self._draw)
        return replace(self._work(held, charged.record, charged.delay), charged=charged)

    def _work(self, held: Held, record: Record, delay: int = 0, brought: Sequence[Copy] = ()) -> CopiedSettlement:
        """Let the message go on with this header; to die, a job of another program is buried as it is."""
        copy = self._copy(held, record, delay)
        if record.is_dead and len(copy.packed) > self._connections.max_job_size():
            return CopiedSettlement(list(brought), b"bury %d %d" % (held.job, held.priority), stands=False)
        return CopiedSettlement([copy, *brought], _delete(held))

    def _move(self, held: Held, message: NewMessage) -> Copy:
        """Return the copy of a moved message: it keeps its enqueue time and the length of its lease."""
        [copy] = self._enqueuer.copies([message], since=held.record.enqueued_at)
        return replace(copy, ttr=held.ttr)

    def _copy(self, held: Held, record: Record, delay: int) -> Copy:
        tube = self._connections.address.tube(held.lease.queue)
        packed = to_bytes(record, held.lease.body, self._connections.max_job_size())
        return Copy(tube, held.priority, delay, held.ttr, packed, record.is_dead)


def _delete(held: Held) -> bytes:
    return b"delete %d" % held.job


def _failed(record: Record, error: str | None, cause: str | None) -> Record:
    """Return the record with the error and cause that are given; None keeps the old ones."""
    return replace(
        record,
        last_error=error if error is not None else record.last_error,
        cause=cause if cause is not None else record.cause,
    )


def _moved(message: NewMessage, record: Record) -> NewMessage:
    return replace(
        message,
        last_error=message.last_error if message.last_error is not None else record.last_error,
        cause=message.cause if message.cause is not None else record.cause,
    )
