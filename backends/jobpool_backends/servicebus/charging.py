"""Crashes: who is charged with one, how long it waits then, and who was charged since the last reap.

Service Bus frees an expired lock by itself and counts a delivery, and it counts one too when a message is given back.
So only what a pool forfeits is a crash for sure, and charged; a pool that dies with its leases is left to the broker's
own limit of deliveries (MaxDeliveryCount).
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, replace

from jobpool.backend import Reaped, ReapPolicy
from jobpool_backends.servicebus.records import Record
from jobpool_backends.shared import micros

MOST = 1000
"""Messages that one reap tells of."""

KEPT = 10_000
"""Messages a queue that are kept to be told; when nobody reaps, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a crash makes of a message: its record, when it may be fetched again (seconds), and whether it is dead."""

    record: Record
    delay: float
    dead: bool


def charge(record: Record, policy: ReapPolicy, cause: str, now: float) -> Charge:
    """One crash more, at Unix time `now`. The delay is the longest of those that may be drawn."""
    moment = micros(now)
    long_ago = record.crashed_at is not None and moment - record.crashed_at > micros(policy.window)
    crashes = 1 if long_ago else record.crashes + 1
    charged = replace(record, crashes=crashes, crashed_at=moment, cause=cause)
    return Charge(charged, policy.ceiling(crashes), policy.is_over(crashes))


class Charges:
    """The policies of the last reaps, and what is to be told at the next one. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._policies: dict[str, ReapPolicy] = {}
        self._told: dict[str, deque[Reaped]] = defaultdict(lambda: deque(maxlen=KEPT))

    def charge(self, queue: str, record: Record, cause: str, now: float) -> Charge:
        """As `charge`, by the queue's policy, with the delay drawn."""
        charged = charge(record, self._policies.get(queue, ReapPolicy()), cause, now)
        return replace(charged, delay=random.uniform(0.0, charged.delay))

    def tell(self, queue: str, charged: Charge) -> None:
        """It has come about: the next reap tells of it."""
        record = charged.record
        with self._lock:
            self._told[queue].append(Reaped(record.id, queue, record.crashes, record.cause, charged.dead))

    def reap(self, queue: str, policy: ReapPolicy) -> list[Reaped]:
        """Remember the policy, and tell of those that were charged since the last call."""
        with self._lock:
            self._policies[queue] = policy
            told = self._told[queue]
            return [told.popleft() for _ in range(min(MOST, len(told)))]
