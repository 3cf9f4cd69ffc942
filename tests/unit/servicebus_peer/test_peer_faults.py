"""Each fault that the peer can be asked for, once."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from servicebus_peer import Control, PeerThread, codes, encoding, replies
from servicebus_peer.control import ControlError
from servicebus_peer.errors import CONNECTION_FORCED, DETACH_FORCED, LOCK_LOST, SERVER_BUSY
from support.amqp_client import AmqpClient, Refused, condition_of, message


@pytest.fixture
def sender(client: AmqpClient, queue: str) -> int:
    return client.attach(queue, codes.SENDER)


def receive(client: AmqpClient, queue: str, count: int = 1) -> list[int]:
    """Attach and receive; the numbers of the deliveries."""
    client.flow(client.attach(queue, codes.RECEIVER), count)
    return [client.delivery().number for _ in range(count)]


def peek(client: AmqpClient, node: tuple[int, int]) -> None:
    """Ask for a peek, without waiting."""
    pairs = [
        (encoding.string("from-sequence-number"), encoding.long(0)),
        (encoding.string("message-count"), encoding.int_(1)),
    ]
    client.ask(node, encoding.map_(pairs), operation="com.microsoft:peek-message")


# --- of the network -----------------------------------------------------------------------------------------


def test_dropped_connections_are_reset_and_new_ones_taken(peer: PeerThread, client: AmqpClient, queue: str) -> None:
    assert peer.control.drop_connections() == 1
    with pytest.raises(ConnectionResetError):
        client.next()
    with AmqpClient(peer.port) as another:
        another.attach(queue, codes.SENDER)


def test_closed_connections_are_told_why(peer: PeerThread, client: AmqpClient) -> None:
    assert peer.control.close_connections() == 1
    assert client.expect(codes.CLOSE)[0].value[0] == CONNECTION_FORCED
    with pytest.raises(EOFError):
        client.next()


@pytest.mark.parametrize(
    ("which", "count"),
    [
        ({}, 1),
        ({"management": True}, 3),
        ({"cbs": True}, 3),
        ({"match": "$cbs", "cbs": True}, 2),
        ({"match": "no such"}, 0),
    ],
)
def test_detached_links(peer: PeerThread, client: AmqpClient, queue: str, which: dict[str, Any], count: int) -> None:
    client.attach(queue, codes.SENDER)
    for node in (f"{queue}/$management", "$cbs"):
        client.requests(node)
    assert peer.control.detach_links(**which) == count
    for _ in range(count):
        assert client.expect(codes.DETACH)[2].value[0] == DETACH_FORCED
    assert len(peer.control.links()) == 5 - count


def test_refused_connections(peer: PeerThread, client: AmqpClient, queue: str) -> None:
    peer.control.refuse()
    with pytest.raises(ConnectionRefusedError):
        AmqpClient(peer.port)
    client.attach(queue, codes.SENDER)  # those that are open go on
    peer.control.refuse(False)
    AmqpClient(peer.port).socket.close()


def test_stalled_and_resumed(peer: PeerThread, client: AmqpClient, sender: int) -> None:
    peer.control.stall()
    client.transfer(sender, message())
    assert client.silent(codes.DISPOSITION)
    peer.control.stall(False)
    assert client.outcome().descriptor == codes.ACCEPTED


def test_stalled_and_half_open(peer: PeerThread, client: AmqpClient, sender: int, queue: str) -> None:
    peer.control.stall()
    client.transfer(sender, message())
    peer.control.stall(False, keep=False)
    client.transfer(sender, message())
    assert client.silent(codes.DISPOSITION)
    with AmqpClient(peer.port) as another:
        another.attach(queue, codes.SENDER)
    assert peer.control.counts(queue).empty


@pytest.mark.parametrize("keep", [True, False])
def test_restarted(peer: PeerThread, client: AmqpClient, sender: int, queue: str, keep: bool) -> None:
    for _ in range(2):
        client.sent(sender, message())
    receive(client, queue)
    peer.control.restart(keep_locks=keep)
    with pytest.raises(ConnectionError):
        client.next()
    counts = peer.control.counts(queue)
    assert (counts.locked, counts.ready) == ((1, 1) if keep else (0, 2))
    assert not any(found.delivery_count for found in peer.control.messages(queue))
    with AmqpClient(peer.port) as another:
        receive(another, queue)


# --- of operations ------------------------------------------------------------------------------------------


def test_failed_sends(peer: PeerThread, client: AmqpClient, sender: int, queue: str) -> None:
    peer.control.fail("send", times=2, match=queue)
    assert [condition_of(client.sent(sender, message())) for _ in range(2)] == [SERVER_BUSY] * 2
    assert client.sent(sender, message()).descriptor == codes.ACCEPTED
    assert peer.control.counts(queue).ready == 1


def test_failed_attaches(peer: PeerThread, client: AmqpClient, queue: str) -> None:
    peer.control.fail("attach", "amqp:internal-error", match="$management")
    client.attach(queue, codes.SENDER)
    with pytest.raises(Refused, match="internal-error"):
        client.attach(f"{queue}/$management", codes.SENDER)
    client.attach(f"{queue}/$management", codes.SENDER)


def end_locks(control: Control, queue: str) -> None:
    assert control.expire_locks(queue) == 1


@pytest.mark.parametrize(
    ("fault", "condition", "locked", "lost"),
    [(lambda control, _: control.fail("settle"), SERVER_BUSY, 1, 0), (end_locks, LOCK_LOST, 0, 1)],
    ids=["failed", "ended locks"],
)
def test_refused_settlements(
    peer: PeerThread, client: AmqpClient, sender: int, queue: str, fault: Any, condition: str, locked: int, lost: int
) -> None:
    client.sent(sender, message())
    [number] = receive(client, queue)
    fault(peer.control, queue)
    client.settle(number, replies.ACCEPTED)
    assert condition_of(client.outcome()) == condition
    counts = peer.control.counts(queue)
    assert (counts.locked, counts.tally.get("lost_locks", 0)) == (locked, lost)


def test_failed_requests(peer: PeerThread, client: AmqpClient, queue: str) -> None:
    node = client.requests(f"{queue}/$management")
    peer.control.fail("management", match="peek", status=500)
    for status in (500, 204):
        peek(client, node)
        assert client.answer().properties["statusCode"] == status


def test_lost_replies_to_what_was_done(peer: PeerThread, client: AmqpClient, sender: int, queue: str) -> None:
    peer.control.lose_replies("send")
    client.transfer(sender, message())
    assert client.silent(codes.DISPOSITION)
    assert peer.control.counts(queue).ready == 1

    [number] = receive(client, queue)
    peer.control.lose_replies("settle")
    client.settle(number, replies.ACCEPTED)
    assert client.silent(codes.DISPOSITION)
    assert peer.control.counts(queue).empty

    node = client.requests(f"{queue}/$management")
    peer.control.lose_replies("management")
    for _ in range(2):
        peek(client, node)
    client.answer()
    assert client.silent()


@pytest.mark.parametrize("limit", ["credit", "fault"])
def test_management_replies_end_with_the_credit_or_sooner(
    peer: PeerThread, client: AmqpClient, queue: str, limit: str
) -> None:
    if limit == "fault":
        peer.control.limit_management_replies(2)
    node = client.requests(f"{queue}/$management", credit=2 if limit == "credit" else 100)
    for _ in range(3):
        peek(client, node)
    assert [client.answer().properties["statusCode"] for _ in range(2)] == [204, 204]
    assert client.silent()
    peer.control.limit_management_replies(None)
    client.flow(node[1], 1, seen=2)
    client.answer()


def test_unsettled_deliveries_hold_others_back(peer: PeerThread, client: AmqpClient, sender: int, queue: str) -> None:
    for _ in range(3):
        client.sent(sender, message())
    peer.control.limit_unsettled(2)
    client.flow(client.attach(queue, codes.RECEIVER), 3)
    first, _ = client.delivery(), client.delivery()
    assert client.silent()
    client.settle(first.number, replies.ACCEPTED)
    client.delivery()


# --- asking for them ----------------------------------------------------------------------------------------


def test_healed_of_everything(peer: PeerThread, queue: str) -> None:
    control = peer.control
    control.stall()
    control.refuse()
    control.fail("attach", times=9)
    control.lose_replies("send", 9)
    control.limit_unsettled(0)
    control.heal()
    with AmqpClient(peer.port) as client:
        assert client.sent(client.attach(queue, codes.SENDER), message()).descriptor == codes.ACCEPTED
        receive(client, queue)


def test_the_control_can_be_sent_to_another_process(peer: PeerThread, queue: str) -> None:
    control: Control = pickle.loads(pickle.dumps(peer.control))
    assert queue in control.queues()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda control: control.counts("none"), "could not be found"),
        (lambda control: control.create_queue("q") or control.create_queue("q"), "there is a queue 'q' already"),
        (lambda control: control.create_queue("q", colour="red"), "colour"),
        (lambda control: control._ask("dance"), "no attribute 'dance'"),
        (lambda control: control._ask("counts", nam="jobs"), "nam"),
    ],
)
def test_orders_that_make_no_sense(peer: PeerThread, ask: object, why: str) -> None:
    with pytest.raises(ControlError, match=why):
        ask(peer.control)  # type: ignore[operator]


def test_the_peers_time(peer: PeerThread) -> None:
    before = peer.control.now()
    peer.control.turn(100.0)
    peer.control.set_clock(-50.0)
    assert before + 50 <= peer.control.now() < before + 60
