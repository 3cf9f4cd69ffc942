"""The effect of a crash on a message: counted, then delayed or dead. Decides, and does no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool_backends.beanstalk.records import Record
from jobpool_backends.reaping import NativeReaping

CRASH_LIMIT = "crash-limit"
EXPIRED = "lease expired"

MAX_DELAY_S = 2**32 - 1
"""The longest that beanstalkd takes."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The message as it goes on: its new header, dead past the limit, and whole seconds until it may be fetched."""

    record: Record
    delay: int


def charge(
    record: Record, crashes: int, cause: str, policy: ReapPolicy, now: float, draw: Callable[[float, float], float]
) -> Charge:
    """Charge crashes that were not charged before, at this Unix time. The last of them had this cause.

    `record` has all deliveries counted; `draw` is `random.uniform`.
    """
    long_ago = now - record.crashed_at > policy.window
    total = crashes if long_ago else record.crashes + crashes
    charged = replace(record, crashes=total, crashed_at=now, cause=cause)
    if policy.is_over(total):
        return Charge(replace(charged, reason=CRASH_LIMIT, died_at=now), 0)
    return Charge(charged, whole_seconds(draw(0.0, policy.ceiling(total))))


def whole_seconds(delay: float) -> int:
    """Return a delay as beanstalkd takes it: rounded up."""
    return math.ceil(min(delay, MAX_DELAY_S)) if delay > 0 else 0


class CrashLedger(NativeReaping):
    """The policy of each queue, and the charges that nobody has asked for yet."""

    def note(self, queue: str, charged: Charge) -> None:
        """Record that the charge was made."""
        record = charged.record
        self.add(Reaped(record.id, queue, record.crashes, record.cause, record.is_dead))
