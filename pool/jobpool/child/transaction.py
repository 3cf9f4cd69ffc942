"""A handler that acks its message in a database transaction of its own: from the ticket that came with the attempt.

The ticket names the backend's function for it, which is imported only when a handler calls `ctx.ack`. It is the only
code of a broker that a child ever runs, on the handler's own connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

import orjson

from jobpool.broker.values import NewMessage, Ticket
from jobpool.child.attempt import OwnAck
from jobpool.message.definition import JobDefinition

Packer = Callable[[Sequence[JobDefinition]], list[NewMessage]]
"""Signs jobs: the master, asked over the channel, or a backend of this process."""


def own_ack(ticket: bytes | Ticket, pack: Packer) -> OwnAck:
    """Return the function behind `ctx.ack`: it acks on the connection it is given, and enqueues the follow-ups there.

    Args:
        ticket: From `QueueBackend.ticket`, as it is or as JSON.
        pack: Signs the follow-ups.
    """

    def ack(connection: object, follow_ups: Sequence[JobDefinition]) -> Callable[[], bool]:
        read: Ticket = orjson.loads(ticket) if isinstance(ticket, bytes) else ticket
        messages = pack(follow_ups) if follow_ups else []
        function: Callable[..., Callable[[], bool]] = resolve_name(str(read["ack"]))
        return function(connection, read, messages)

    return ack
