"""A client of AMQP 1.0 that is told each step: what the SDK hides, a test of the peer wants to see.

It blocks, with a limit, and uses the peer's own codec; that the codec is right, the tests with the real SDK show.
"""

from __future__ import annotations

import itertools
import socket
import uuid
from collections import deque
from typing import Any, NamedTuple, Self

from servicebus_peer import codes
from servicebus_peer import encoding as e
from servicebus_peer.decoding import Described
from servicebus_peer.framing import AMQP_HEADER, SASL_FRAME, SASL_HEADER, Frame, FrameReader, Header, frame
from servicebus_peer.requests import Request, parsed

LIMIT = 5.0
"""Seconds for an answer."""


class Delivery(NamedTuple):
    """What came on a link."""

    handle: int
    number: int
    tag: bytes
    settled: bool
    payload: bytes


class AmqpClient:
    """One connection with one session, on channel 0; a context manager that closes its socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self._reader = FrameReader()
        self._frames: deque[Frame | Header] = deque()
        self._handles = itertools.count()
        self._deliveries = itertools.count()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # --- frames -------------------------------------------------------------------------------------

    def send(self, code: int, *fields: bytes, payload: bytes = b"") -> None:
        self.socket.sendall(frame(0, e.composite(code, fields) + payload))

    def next(self, limit: float = LIMIT) -> Frame:
        """The next frame. Raises `TimeoutError`, `ConnectionError`, or `EOFError` when the peer has hung up."""
        found = self._next(limit)
        assert isinstance(found, Frame), found
        return found

    def expect(self, code: int, limit: float = LIMIT) -> list[Any]:
        """The fields of the next frame with this performative; others before it, flows say, are left out."""
        while True:
            found = self.next(limit)
            if found.code == code:
                assert isinstance(found.fields, list)
                return found.fields

    def silent(self, code: int = codes.TRANSFER, limit: float = 0.05) -> bool:
        """Whether no frame with this performative comes, for so long; others may."""
        try:
            found = self.expect(code, limit)
        except TimeoutError:
            return True
        raise AssertionError(f"not silent: {found}")

    # --- links --------------------------------------------------------------------------------------

    def attach(self, address: str, role: bool) -> int:
        """Attach a link; its handle. Raises `Refused`."""
        handle = next(self._handles)
        source, target = (address, "me") if role is codes.RECEIVER else ("me", address)
        self.send(
            codes.ATTACH,
            e.string(f"link {handle}"),
            e.uint(handle),
            e.boolean(role),
            e.ubyte(2),
            e.ubyte(1),
            e.composite(codes.SOURCE, [e.string(source)]),
            e.composite(codes.TARGET, [e.string(target)]),
            e.NULL,
            e.NULL,
            e.uint(0),
        )
        if self.expect(codes.ATTACH)[5] is None:
            raise Refused(*_error(self.expect(codes.DETACH)[2]))
        return handle

    def flow(self, handle: int, credit: int, *, seen: int = 0) -> None:
        """Give credit; `seen`: deliveries that came on this link."""
        self.send(
            codes.FLOW,
            e.uint(1),
            e.uint(1000),
            e.uint(0),
            e.uint(1000),
            e.uint(handle),
            e.uint(seen),
            e.uint(credit),
            e.NULL,
            e.FALSE,
            e.FALSE,
        )

    def transfer(self, handle: int, payload: bytes) -> int:
        """Send one delivery, in one frame; its number."""
        number = next(self._deliveries)
        head = (e.uint(handle), e.uint(number), e.binary(b"%d" % number), e.uint(0), e.FALSE, e.FALSE)
        self.send(codes.TRANSFER, *head, payload=payload)
        return number

    def sent(self, handle: int, payload: bytes) -> Described:
        """Send one delivery; its outcome."""
        self.transfer(handle, payload)
        return self.outcome()

    def outcome(self, limit: float = LIMIT) -> Described:
        """Of the next disposition."""
        state = self.expect(codes.DISPOSITION, limit)[4]
        assert isinstance(state, Described)
        return state

    def delivery(self, limit: float = LIMIT) -> Delivery:
        """The next one, put together."""
        payload = b""
        while True:
            found = self.next(limit)
            if found.code != codes.TRANSFER:
                continue
            assert isinstance(found.fields, list)
            payload += found.payload
            if not found.fields[5]:
                handle, number, tag, _, settled = found.fields[:5]
                return Delivery(handle, number, tag, settled, payload)

    def settle(self, first: int, state: bytes, last: int | None = None, *, settled: bool = False) -> None:
        self.send(
            codes.DISPOSITION,
            e.TRUE,
            e.uint(first),
            e.NULL if last is None else e.uint(last),
            e.boolean(settled),
            state,
        )

    # --- requests -----------------------------------------------------------------------------------

    def requests(self, node: str, credit: int = 100) -> tuple[int, int]:
        """Attach the pair of links to a node that answers; their handles: to it, and from it."""
        pair = self.attach(node, codes.SENDER), self.attach(node, codes.RECEIVER)
        self.flow(pair[1], credit)
        return pair

    def ask(self, pair: tuple[int, int], value: bytes, **properties: str) -> None:
        """Send a request."""
        head = [e.string(str(uuid.uuid4())), e.NULL, e.NULL, e.NULL, e.string("me")]
        words = e.map_((e.string(name), e.string(text)) for name, text in properties.items())
        self.transfer(
            pair[0],
            e.composite(codes.PROPERTIES, head)
            + e.described(codes.APPLICATION_PROPERTIES, words)
            + e.described(codes.AMQP_VALUE, value),
        )

    def answer(self, limit: float = LIMIT) -> Request:
        """The next reply."""
        return parsed(self.delivery(limit).payload)

    # --- inside -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.socket.sendall(SASL_HEADER)
        assert self._next(LIMIT) == Header(SASL_HEADER)
        assert self.next().code == codes.SASL_MECHANISMS
        self.socket.sendall(frame(0, e.composite(codes.SASL_INIT, [e.symbol("ANONYMOUS")]), SASL_FRAME))
        assert self.expect(codes.SASL_OUTCOME)[0] == 0
        self.socket.sendall(AMQP_HEADER)
        self.send(codes.OPEN, e.string("test"), e.NULL, e.uint(65_536), e.NULL, e.NULL)
        self.send(codes.BEGIN, e.NULL, e.uint(0), e.uint(1000), e.uint(1000))
        assert self._next(LIMIT) == Header(AMQP_HEADER)
        assert self.next().code == codes.OPEN
        assert self.next().code == codes.BEGIN

    def _next(self, limit: float) -> Frame | Header:
        self.socket.settimeout(limit)
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError("the peer has hung up")
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()


class Refused(Exception):
    """A link was refused, with this condition and description."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.condition = condition


def message(body: bytes = b"x", *, message_id: str | None = None, **annotations: bytes) -> bytes:
    """An encoded message; annotations x-opt-… by their names with underscores, encoded."""
    marks = e.map_((e.symbol("x-opt-" + name.replace("_", "-")), value) for name, value in annotations.items())
    ident = e.NULL if message_id is None else e.string(message_id)
    return (
        e.described(codes.MESSAGE_ANNOTATIONS, marks)
        + e.composite(codes.PROPERTIES, [ident])
        + e.described(codes.DATA, e.binary(body))
    )


def condition_of(outcome: Described) -> str:
    """Of an outcome "rejected"."""
    assert outcome.descriptor == codes.REJECTED
    assert isinstance(outcome.value, list)
    return _error(outcome.value[0])[0]


def _error(value: Any) -> tuple[str, str]:
    assert isinstance(value, Described)
    assert value.descriptor == codes.ERROR
    assert isinstance(value.value, list)
    return value.value[0], value.value[1]
