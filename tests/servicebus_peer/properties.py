"""What a queue is made with."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,258}[A-Za-z0-9])?")


@dataclass(frozen=True)
class QueueProperties:
    """Properties of a queue; source: "Service Bus quotas" and the properties page of a queue.

    Attributes:
        lock_duration: Seconds a peek-lock holds, above 0, at most 300 as at the service (whose least is 5).
        max_delivery_count: Failed deliveries after which a message is dead-lettered, 1 to 2000.
        max_message_size: Bytes of a message, and of a batch; 262,144 in the Standard tier.
    """

    lock_duration: float = 60.0
    max_delivery_count: int = 10
    max_message_size: int = 262_144

    def __post_init__(self) -> None:
        _check(0 < self.lock_duration <= 300, "lock_duration is above 0 and at most 300 seconds", self.lock_duration)
        _check(1 <= self.max_delivery_count <= 2000, "max_delivery_count is 1 to 2000", self.max_delivery_count)
        _check(self.max_message_size >= 1024, "max_message_size is 1024 bytes or more", self.max_message_size)


def checked_name(name: str) -> str:
    """`name`, if a queue can have it: up to 260 letters, digits, periods, hyphens, underscores and slashes."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a queue name: 1 to 260 letters, digits and . - _ / between two of them")
    return name


def _check(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{rule}, not {value!r}")
