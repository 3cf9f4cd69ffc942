"""What a queue is made with."""

from __future__ import annotations

from dataclasses import dataclass


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
