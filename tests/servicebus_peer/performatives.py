"""The performatives that a client sends, as values: AMQP 2.7. Fields that this peer has no use for are left out."""

from __future__ import annotations

from typing import NamedTuple

from servicebus_peer import codes
from servicebus_peer.decoding import Described
from servicebus_peer.fields import UINT, Fields, composite


class Open(NamedTuple):
    max_frame_size: int
    idle_time_out: int
    """Milliseconds; 0 = the client waits for ever."""

    @classmethod
    def read(cls, fields: object) -> Open:
        of = Fields(fields, "open")
        of.need(0, str)  # container-id
        return cls(max(of.number(2, UINT), 512), of.number(4, 0))


class Begin(NamedTuple):
    next_outgoing_id: int
    incoming_window: int

    @classmethod
    def read(cls, fields: object) -> Begin:
        of = Fields(fields, "begin")
        return cls(of.need_number(1), of.number(2, 1))


class Attach(NamedTuple):
    name: str
    handle: int
    role: bool
    sender_settle_mode: int
    receiver_settle_mode: int
    source: str
    target: str
    filters: frozenset[str]

    @classmethod
    def read(cls, fields: object) -> Attach:
        of = Fields(fields, "attach")
        source, target = of.find(5, Described), of.find(6, Described)
        return cls(
            of.need(0, str),
            of.need_number(1),
            of.need(2, bool),
            of.number(3, 2, most=2),
            of.number(4, 0, most=1),
            _address(source, codes.SOURCE),
            _address(target, codes.TARGET),
            _filters(source),
        )

    @property
    def address(self) -> str:
        """The node that the client wants to send to or to receive from."""
        return self.source if self.role is codes.RECEIVER else self.target


def _address(terminus: Described | None, code: int) -> str:
    return composite(terminus, code, "source or target").get(0, str, "") if terminus else ""


def _filters(source: Described | None) -> frozenset[str]:
    found = composite(source, codes.SOURCE, "source").find(7, dict) if source else None
    return frozenset(str(name) for name in found or {})


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
        of = Fields(fields, "flow")
        return cls(
            of.find_number(0),
            of.number(1, 0),
            of.find_number(4),
            of.find_number(5),
            of.find_number(6),
            of.get(8, bool, False),
            of.get(9, bool, False),
        )


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None
    message_format: int
    settled: bool
    more: bool
    aborted: bool

    @classmethod
    def read(cls, fields: object) -> Transfer:
        of = Fields(fields, "transfer")
        return cls(
            of.need_number(0),
            of.find_number(1),
            of.number(3, 0),
            of.get(4, bool, False),
            of.get(5, bool, False),
            of.get(9, bool, False),
        )


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int
    settled: bool
    state: Described | None

    @classmethod
    def read(cls, fields: object) -> Disposition:
        of = Fields(fields, "disposition")
        first = of.need_number(1)
        return cls(of.need(0, bool), first, of.number(2, first), of.get(3, bool, False), of.find(4, Described))


class Detach(NamedTuple):
    handle: int
    closed: bool

    @classmethod
    def read(cls, fields: object) -> Detach:
        of = Fields(fields, "detach")
        return cls(of.need_number(0), of.get(1, bool, False))
