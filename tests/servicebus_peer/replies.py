"""The performatives that this peer sends, as bytes: AMQP 2.7 and 3.4, with all fields; see `encoding.composite`."""

from __future__ import annotations

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.framing import MAX_FRAME_SIZE
from servicebus_peer.performatives import Attach

CHANNEL_MAX = 255
HANDLE_MAX = 255
IDLE_TIMEOUT_MS = 120_000
"""Time without a frame after which a client may give this peer up."""
SESSION_WINDOW = 5000
"""Transfers; the client is told of a new one before half of it is used."""


def error(condition: str, description: str) -> bytes:
    return e.composite(codes.ERROR, [e.symbol(condition), e.string(description), e.NULL])


def maybe_error(condition: str | None, description: str) -> bytes:
    return e.NULL if condition is None else error(condition, description)


def open_(container: str) -> bytes:
    return e.composite(
        codes.OPEN,
        [
            e.string(container),
            e.NULL,
            e.uint(MAX_FRAME_SIZE),
            e.ushort(CHANNEL_MAX),
            e.uint(IDLE_TIMEOUT_MS),
            *[e.NULL] * 4,
            e.map_([(e.symbol("product"), e.string("servicebus test peer"))]),
        ],
    )


def begin(remote_channel: int, next_outgoing_id: int) -> bytes:
    return e.composite(
        codes.BEGIN,
        [
            e.ushort(remote_channel),
            e.uint(next_outgoing_id),
            e.uint(SESSION_WINDOW),
            e.uint(SESSION_WINDOW),
            e.uint(HANDLE_MAX),
            *[e.NULL] * 3,
        ],
    )


def attach(asked: Attach, max_message_size: int) -> bytes:
    """The other end of the link that was asked for."""
    source = e.composite(codes.SOURCE, [e.string(asked.source), *[e.NULL] * 10])
    target = e.composite(codes.TARGET, [e.string(asked.target), *[e.NULL] * 6])
    return _attach(asked, source, target, max_message_size)


def refusal(asked: Attach) -> bytes:
    """An attach without termini, which a detach with the reason follows (AMQP 2.6.3)."""
    return _attach(asked, e.NULL, e.NULL, 0)


def _attach(asked: Attach, source: bytes, target: bytes, max_message_size: int) -> bytes:
    role = not asked.role
    return e.composite(
        codes.ATTACH,
        [
            e.string(asked.name),
            e.uint(asked.handle),
            e.boolean(role),
            e.ubyte(asked.sender_settle_mode),
            e.ubyte(asked.receiver_settle_mode),
            source,
            target,
            e.NULL,
            e.NULL,
            e.uint(0) if role is codes.SENDER else e.NULL,  # initial-delivery-count, mandatory for senders
            e.ulong(max_message_size),
            *[e.NULL] * 3,
        ],
    )


def flow(session: list[bytes], link: list[bytes] | None = None) -> bytes:
    """`session`: the first four fields; `link`: the seven that speak of one link, if any."""
    return e.composite(codes.FLOW, session + ([e.NULL] * 7 if link is None else link))


def transfer(handle: int, delivery_id: int, tag: bytes, settled: bool, more: bool) -> bytes:
    return e.composite(
        codes.TRANSFER,
        [
            e.uint(handle),
            e.uint(delivery_id),
            e.binary(tag),
            e.uint(0),
            e.boolean(settled),
            e.boolean(more),
            *[e.NULL] * 2,
            *[e.FALSE] * 3,
        ],
    )


def disposition(role: bool, delivery_id: int, state: bytes) -> bytes:
    """One delivery is settled."""
    number = e.uint(delivery_id)
    return e.composite(codes.DISPOSITION, [e.boolean(role), number, number, e.TRUE, state, e.FALSE])


def detach(handle: int, closed: bool, why: bytes = e.NULL) -> bytes:
    return e.composite(codes.DETACH, [e.uint(handle), e.boolean(closed), why])


def end() -> bytes:
    return e.composite(codes.END, [e.NULL])


def close(why: bytes = e.NULL) -> bytes:
    return e.composite(codes.CLOSE, [why])


ACCEPTED = e.composite(codes.ACCEPTED, [])
RELEASED = e.composite(codes.RELEASED, [])
MODIFIED = e.composite(codes.MODIFIED, [e.TRUE, e.FALSE, e.NULL])
REJECTED = e.composite(codes.REJECTED, [e.NULL])


def rejected(condition: str, description: str) -> bytes:
    return e.composite(codes.REJECTED, [error(condition, description)])
