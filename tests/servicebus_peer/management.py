"""The node <queue>/$management: requests in, replies out."""

from __future__ import annotations

from servicebus_peer import encoding as e
from servicebus_peer import errors
from servicebus_peer.errors import AmqpError
from servicebus_peer.faults import Faults
from servicebus_peer.operations import OPERATIONS
from servicebus_peer.requests import Request, reply
from servicebus_peer.store import Store

NODE = "/$management"


def answer(store: Store, faults: Faults, request: Request) -> bytes:
    """Do what is asked; the reply to it, whether it was done or not."""
    try:
        faults.check("management", request.operation)
        body = _done(store, request)
    except AmqpError as error:
        return _refusal(request, error)
    if body is None:
        return reply(request, _status(204, "No content"))
    return reply(request, _status(200, "OK"), body)


def _done(store: Store, request: Request) -> bytes | None:
    operation = OPERATIONS.get(request.operation)
    if operation is None:
        raise AmqpError(errors.NOT_IMPLEMENTED, f"this peer has no operation {request.operation!r}", 501)
    assert isinstance(request.value, dict)
    return operation(store, request.value)


def _refusal(request: Request, error: AmqpError) -> bytes:
    condition = e.string("errorCondition") + e.symbol(error.condition)
    return reply(request, [*_status(error.status, error.description), condition])


def _status(code: int, description: str) -> list[bytes]:
    return [
        e.string("statusCode") + e.int_(code),
        e.string("statusDescription") + e.string(description),
    ]
