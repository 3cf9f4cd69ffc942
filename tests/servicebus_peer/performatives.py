"""The performatives that a client sends, as values: AMQP 2.7. Fields that this peer has no use for are left out."""

from __future__ import annotations

from typing import NamedTuple

from servicebus_peer import codes
from servicebus_peer.decoding import Described
from servicebus_peer.fields import Fields, composite
from servicebus_peer.framing import MAX_FRAME_SIZE


class Open(NamedTuple):
    max_frame_size: int
    idle_time_out: int
    """Milliseconds; 0 = the client waits for ever."""

    @classmethod
    def read(cls, fields: object) -> Open:
        of = Fields(fields)
        return cls(of.get(2, MAX_FRAME_SIZE), of.get(4, 0))


class Begin(NamedTuple):
    next_outgoing_id: int
    incoming_window: int

    @classmethod
    def read(cls, fields: object) -> Begin:
        of = Fields(fields)
        return cls(of.need(1, int), of.get(2, 1))


class Attach(NamedTuple):
    name: str
    handle: int
    role: bool
    sender_settle_mode: int
    receiver_settle_mode: int
    source: str
    target: str

    @classmethod
    def read(cls, fields: object) -> Attach:
        of = Fields(fields)
        source, target = of.find(5, Described), of.find(6, Described)
        return cls(
            of.need(0, str),
            of.need(1, int),
            of.need(2, bool),
            of.get(3, 2),
            of.get(4, 0),
            _address(source, codes.SOURCE),
            _address(target, codes.TARGET),
        )

    @property
    def address(self) -> str:
        """The node that the client wants to send to or to receive from."""
        return self.source if self.role is codes.RECEIVER else self.target


def _address(terminus: Described | None, code: int) -> str:
    return composite(terminus, code).get(0, "") if terminus else ""


class Flow(NamedTuple):
    next_incoming_id: int | None
    incoming_window: int
    handle: int | None
    delivery_count: int | None
    link_credit: int | None
    drain: bool
    echo: bool

    @classmethod
    def read(cls, fields: object) -> Flow:
        of = Fields(fields)
        return cls(
            of.find(0, int),
            of.get(1, 0),
            of.find(4, int),
            of.find(5, int),
            of.find(6, int),
            of.get(8, False),
            of.get(9, False),
        )


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None
    message_format: int
    settled: bool
    more: bool

    @classmethod
    def read(cls, fields: object) -> Transfer:
        of = Fields(fields)
        return cls(
            of.need(0, int),
            of.find(1, int),
            of.get(3, 0),
            of.get(4, False),
            of.get(5, False),
        )


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int
    settled: bool
    state: Described | None

    @classmethod
    def read(cls, fields: object) -> Disposition:
        of = Fields(fields)
        first = of.need(1, int)
        return cls(of.need(0, bool), first, of.get(2, first), of.get(3, False), of.find(4, Described))


class Detach(NamedTuple):
    handle: int
    closed: bool

    @classmethod
    def read(cls, fields: object) -> Detach:
        of = Fields(fields)
        return cls(of.need(0, int), of.get(1, False))
