"""Clients that do not speak AMQP: they are hung up on, and the peer serves the others as before."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from servicebus_peer import PeerThread, codes, encoding
from servicebus_peer.broker import Broker
from servicebus_peer.errors import DecodeError
from servicebus_peer.framing import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from servicebus_peer.performatives import Attach, Begin, Detach, Disposition, Flow, Open, Transfer
from support.amqp_client import AmqpClient, message

LIMIT = 5.0
GARBAGE = 60
"""Mutilated conversations."""


@pytest.fixture(autouse=True)
def _alive(peer: PeerThread, queue: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test the peer works, nobody is left connected, and it has found no bug in itself."""
    yield
    with AmqpClient(peer.port) as client:
        assert client.sent(client.attach(queue, codes.SENDER), message()).descriptor == codes.ACCEPTED
    assert not [record for record in caplog.get_records("call") if record.name.startswith("servicebus_peer")]


def answer(port: int, *pieces: bytes) -> bytes:
    """All that the peer says to these bytes, until it hangs up."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65536):
                said += data
        except ConnectionError:
            pass
    return said


LOGGED_IN = SASL_HEADER + frame(0, encoding.composite(codes.SASL_INIT, [encoding.symbol("ANONYMOUS")]), SASL_FRAME)
OPENED = LOGGED_IN + AMQP_HEADER + frame(0, encoding.composite(codes.OPEN, [encoding.string("x")]))
BEGUN = OPENED + frame(
    0, encoding.composite(codes.BEGIN, [encoding.NULL, encoding.uint(0), encoding.uint(9), encoding.uint(9)])
)


def performative(code: int, *fields: bytes) -> bytes:
    return frame(0, encoding.composite(code, fields))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x02\x01\x00\x00",
        SASL_HEADER + SASL_HEADER,
        SASL_HEADER + frame(0, encoding.composite(codes.SASL_INIT, [encoding.symbol("GUESS")]), SASL_FRAME),
        SASL_HEADER + frame(0, encoding.composite(codes.SASL_INIT, []), SASL_FRAME),
        LOGGED_IN + AMQP_HEADER + performative(codes.BEGIN),
    ],
)
def test_before_it_is_open_it_hangs_up(peer: PeerThread, data: bytes) -> None:
    said = answer(peer.port, data)
    assert b"amqp:" not in said  # there is no place for a reason yet


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\x00\x00\x00\x09\x00\x00\x00\x00\x40",
        b"\x00\x00\x00\x09\xff\x00\x00\x00\x40",
        frame(0, b"\x40"),
        frame(0, b"\x00\x40\x45"),
        frame(0, encoding.described(0x99, encoding.EMPTY_LIST)),
        frame(0, encoding.described(codes.ATTACH, encoding.map_([]))),
        frame(7, encoding.composite(codes.FLOW, [encoding.NULL])),
        performative(codes.BEGIN, encoding.NULL, encoding.uint(0)),
        performative(codes.OPEN, encoding.string("again")),
        performative(codes.ATTACH),
        performative(codes.ATTACH, encoding.uint(1), encoding.string("x"), encoding.TRUE),
        performative(codes.ATTACH, encoding.string("x"), encoding.ulong(1 << 40), encoding.TRUE),
        performative(codes.ATTACH, encoding.string("x"), encoding.uint(0), encoding.TRUE, encoding.ubyte(77)),
        performative(codes.TRANSFER, encoding.string("x")),
        performative(codes.DISPOSITION, encoding.TRUE),
        performative(codes.FLOW, encoding.long(-1)),
        performative(codes.DETACH),
        frame(0, b"\x00" * 3000),
    ],
)
def test_an_open_connection_is_closed_with_a_reason(peer: PeerThread, data: bytes) -> None:
    said = answer(peer.port, BEGUN, data)
    assert b"amqp:decode-error" in said or b"amqp:connection:framing-error" in said


def test_deliveries_without_credit_end_the_link(peer: PeerThread, queue: str, client: AmqpClient) -> None:
    link = client.attach(queue, codes.SENDER)
    peer.call(_withdraw)
    client.transfer(link, message())
    assert client.expect(codes.DETACH)[2].value[0] == "amqp:link:transfer-limit-exceeded"


def _withdraw(broker: Broker) -> None:
    """All credit; no client can know."""
    for link in broker.links():
        link.credit = 0


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"\x00",
        encoding.composite(codes.OPEN, []),
        encoding.described(codes.HEADER, encoding.map_([])),
        encoding.described(codes.MESSAGE_ANNOTATIONS, encoding.EMPTY_LIST),
        encoding.described(codes.APPLICATION_PROPERTIES, encoding.map_([(encoding.list_([]), encoding.NULL)])),
        encoding.described(codes.APPLICATION_PROPERTIES, b"\xc1\x02\x01\x40"),
        encoding.described(codes.DATA, b"\xb0\xff\xff\xff\xff"),
        b"\x00" * 500,
    ],
)
def test_what_is_no_message_is_rejected(client: AmqpClient, queue: str, payload: bytes) -> None:
    link = client.attach(queue, codes.SENDER)
    assert client.sent(link, payload).descriptor == codes.REJECTED
    node = client.requests(f"{queue}/$management")
    assert client.sent(node[0], payload).descriptor in (codes.REJECTED, codes.ACCEPTED)


def test_credit_without_end_and_acknowledgements_of_nothing(client: AmqpClient, queue: str) -> None:
    link = client.attach(queue, codes.RECEIVER)
    client.flow(link, 0xFFFFFFFF, seen=0xFFFFFFF0, echo=True)
    client.expect(codes.FLOW)
    client.settle(0, encoding.composite(codes.ACCEPTED, []), last=0xFFFFFFFF)
    client.flow(link, 1, echo=True)
    client.expect(codes.FLOW)


def test_mutilated_conversations(peer: PeerThread, queue: str) -> None:
    """Bytes changed, left out, or cut off, anywhere in what a client says."""
    chance = random.Random(4)
    whole = BEGUN + b"".join(
        [
            performative(
                codes.ATTACH,
                encoding.string("x"),
                encoding.uint(0),
                encoding.FALSE,
                encoding.NULL,
                encoding.NULL,
                encoding.composite(codes.SOURCE, [encoding.string("me")]),
                encoding.composite(codes.TARGET, [encoding.string(queue)]),
            ),
            frame(0, encoding.composite(codes.TRANSFER, [encoding.uint(0), encoding.uint(0)]) + message()),
            performative(codes.DISPOSITION, encoding.TRUE, encoding.uint(0)),
            performative(codes.CLOSE),
        ]
    )
    for _ in range(GARBAGE):
        at = chance.randrange(8, len(whole))
        cut = chance.choice((0, 1, 5, len(whole)))
        broken = whole[:at] + chance.randbytes(chance.randrange(3)) + whole[at + cut :]
        with socket.create_connection(("127.0.0.1", peer.port), LIMIT) as connection:
            connection.sendall(broken)
            connection.shutdown(socket.SHUT_WR)  # a cut one would be waited for
            connection.settimeout(LIMIT)
            try:
                while connection.recv(65536):
                    pass
            except ConnectionError:
                continue


@pytest.mark.parametrize("kind", [Open, Begin, Attach, Flow, Transfer, Disposition, Detach])
def test_all_fields_of_every_performative_may_be_wrong(kind: type) -> None:
    values: list[object] = [b"bytes", [], {}, -1, 1 << 70, 1.5, True, "text"]
    for wrong in values:
        for fields in ([wrong] * 14, wrong):
            try:
                kind.read(fields)  # type: ignore[attr-defined]
            except DecodeError:
                continue
