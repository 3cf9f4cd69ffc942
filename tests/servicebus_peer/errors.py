"""What goes wrong on the wire, and the conditions it is told by.

Conditions: AMQP 2.8.15-2.8.18 (amqp:…), and the protocol guide, "Errors", for those of Service Bus (com.microsoft:…).
"""

from __future__ import annotations

NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
UNAUTHORIZED = "amqp:unauthorized-access"
CONNECTION_FORCED = "amqp:connection:forced"
DETACH_FORCED = "amqp:link:detach-forced"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
AUTH_FAILED = "com.microsoft:auth-failed"
SERVER_BUSY = "com.microsoft:server-busy"


class AmqpError(Exception):
    """Refused, with an AMQP condition, a description, and the HTTP status that a management reply has for it."""

    def __init__(self, condition: str, description: str = "", status: int = 400) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.status = status


def lock_lost(token: object) -> AmqpError:
    return AmqpError(
        LOCK_LOST,
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        f"queue. Lock token: {token}",
        410,
    )
