"""Crashes: who is charged with one, its delay, and messages charged since the last reap.

Service Bus frees an expired lock by itself and counts a delivery, and it also counts one when a message is given back.
So only a forfeit is surely a crash, and charged. A pool that dies with its leases is left to the broker's own limit of
deliveries (MaxDeliveryCount).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool_backends.reaping import NativeReaping
from jobpool_backends.servicebus.records import Record
from jobpool_backends.shared import micros


@dataclass(frozen=True, slots=True)
class Charge:
    """The effect of a crash on a message: its record, its delay (seconds), and whether it is dead."""

    record: Record
    delay: float
    dead: bool


def charge(record: Record, policy: ReapPolicy, cause: str, now: float) -> Charge:
    """Add a crash at Unix time `now`, with the longest possible delay."""
    moment = micros(now)
    long_ago = record.crashed_at is not None and moment - record.crashed_at > micros(policy.window)
    crashes = 1 if long_ago else record.crashes + 1
    charged = replace(record, crashes=crashes, crashed_at=moment, cause=cause)
    return Charge(charged, policy.ceiling(crashes), policy.is_over(crashes))


class Charges(NativeReaping):
    """The policies of the last reaps, and what is to be told at the next one. Safe to share between threads."""

    def charge(self, queue: str, record: Record, cause: str, now: float) -> Charge:
        """Add a crash as `charge`, by the queue's policy, with the delay drawn."""
        charged = charge(record, self.policy(queue), cause, now)
        return replace(charged, delay=random.uniform(0.0, charged.delay))

    def tell(self, queue: str, charged: Charge) -> None:
        """Let the next reap report this charge, which was carried out."""
        record = charged.record
        self.add(Reaped(record.id, queue, record.crashes, record.cause, charged.dead))
