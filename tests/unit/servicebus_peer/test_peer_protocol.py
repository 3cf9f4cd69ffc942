"""The peer on the wire, step by step: links, credit, windows, settlement, requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import uuid
from typing import Any
from urllib.parse import quote_plus

import pytest
from servicebus_peer import PeerThread, Settings, codes, encoding, replies
from servicebus_peer.cbs import Authorization
from servicebus_peer.decoding import decode
from servicebus_peer.errors import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    LOCK_LOST,
    MESSAGE_NOT_FOUND,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    UNAUTHORIZED,
    AmqpError,
)
from servicebus_peer.links import CREDIT
from servicebus_peer.replies import SESSION_WINDOW
from servicebus_peer.requests import Request
from servicebus_peer.sections import body_of
from support.amqp_client import AmqpClient, Refused, annotations_of, condition_of, message
from support.waiting import wait_until

DEAD = "/$DeadLetterQueue"


def put(client: AmqpClient, queue: str, *bodies: bytes) -> None:
    """Send messages, each accepted."""
    handle = client.attach(queue, codes.SENDER)
    for body in bodies:
        assert client.sent(handle, message(body)).descriptor == codes.ACCEPTED


# --- links and credit -------------------------------------------------------------------------------------


def test_no_delivery_without_credit_and_none_beyond_it(client: AmqpClient, queue: str) -> None:
    put(client, queue, b"a", b"b", b"c")
    link = client.attach(queue, codes.RECEIVER)
    assert client.silent()
    client.flow(link, 2)
    assert [body_of(client.delivery().payload) for _ in range(2)] == [b"a", b"b"]
    assert client.silent()
    client.flow(link, 1, seen=2)
    assert body_of(client.delivery().payload) == b"c"


def test_unused_credit_is_remembered_in_order_of_arrival(peer: PeerThread, queue: str) -> None:
    with AmqpClient(peer.port) as first, AmqpClient(peer.port) as second, AmqpClient(peer.port) as sender:
        for each in (first, second):
            each.flow(each.attach(queue, codes.RECEIVER), 1, echo=True)
            each.expect(codes.FLOW)
        put(sender, queue, b"a", b"b")
        assert body_of(first.delivery().payload) == b"a"
        assert body_of(second.delivery().payload) == b"b"


def test_drain_uses_what_it_can_and_ends_the_rest(client: AmqpClient, queue: str) -> None:
    put(client, queue, b"a")
    link = client.attach(queue, codes.RECEIVER)
    client.flow(link, 10, drain=True)
    assert body_of(client.delivery().payload) == b"a"
    fields = client.expect(codes.FLOW)
    assert fields[5:9:3] == [10, True]  # delivery-count has run up to the credit
    assert fields[6] == 0
    put(client, queue, b"b")
    assert client.silent()


def test_the_session_window_holds_deliveries_back(peer: PeerThread, queue: str) -> None:
    with AmqpClient(peer.port, window=2) as client:
        put(client, queue, b"a", b"b", b"c")
        client.flow(client.attach(queue, codes.RECEIVER), 10)
        assert [body_of(client.delivery().payload) for _ in range(2)] == [b"a", b"b"]
        assert client.silent()
        client.send(codes.FLOW, encoding.uint(3), encoding.uint(2), encoding.uint(0), encoding.uint(100))
        assert body_of(client.delivery().payload) == b"c"


def test_a_large_message_goes_in_frames_both_ways(peer: PeerThread, queue: str) -> None:
    body = bytes(range(256)) * 700
    with AmqpClient(peer.port, max_frame_size=4096) as client:
        put(client, queue, body)
        client.flow(client.attach(queue, codes.RECEIVER), 1)
        found = client.delivery()
    assert body_of(found.payload) == body


def test_a_sender_is_given_credit_and_window_anew(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    link = client.attach(queue, codes.SENDER)
    assert client.expect(codes.FLOW)[6] == CREDIT
    for _ in range(SESSION_WINDOW // 2 + 1):
        client.transfer(link, message(), settled=True)
    client.transfer(link, message())
    flows: list[Any] = []
    while (found := client.next()).code != codes.DISPOSITION:
        assert found.code == codes.FLOW, "a delivery that was sent settled is not answered"
        flows.append(found.fields)
    times = (SESSION_WINDOW // 2 + 2) // (CREDIT // 2 + 1)
    assert [fields[6] for fields in flows if fields[4] is not None] == [CREDIT] * times
    assert [fields[1] for fields in flows if fields[4] is None] == [SESSION_WINDOW]
    assert peer.control.counts(queue).ready == SESSION_WINDOW // 2 + 2


def test_a_message_that_is_too_large_is_rejected_and_one_far_too_large_ends_the_link(
    client: AmqpClient, queue: str, peer: PeerThread
) -> None:
    link = client.attach(queue, codes.SENDER)
    assert condition_of(client.sent(link, message(b"x" * 262_144))) == MESSAGE_SIZE_EXCEEDED
    client.transfer(link, message(b"x" * 400_000))
    assert client.expect(codes.DETACH)[2].value[0] == MESSAGE_SIZE_EXCEEDED
    assert peer.control.counts(queue).empty


def test_a_batch_is_taken_whole_or_not_at_all(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    link = client.attach(queue, codes.SENDER)
    parts = [encoding.described(codes.DATA, encoding.binary(message(body))) for body in (b"a", b"b")]
    assert client.sent(link, b"".join(parts), message_format=codes.BATCH).descriptor == codes.ACCEPTED
    assert [found.body for found in peer.control.messages(queue)] == [b"a", b"b"]

    large = encoding.described(codes.DATA, encoding.binary(message(b"x" * 100_000)))
    assert condition_of(client.sent(link, large * 3, message_format=codes.BATCH)) == MESSAGE_SIZE_EXCEEDED

    broken = b"".join([*parts, encoding.described(codes.DATA, encoding.binary(b"no message"))])
    assert condition_of(client.sent(link, broken, message_format=codes.BATCH)) == "amqp:decode-error"
    assert peer.control.counts(queue).ready == 2


def test_receive_and_delete(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER, settled=True), 1)
    found = client.delivery()
    assert (found.settled, body_of(found.payload)) == (True, b"a")
    assert peer.control.counts(queue).empty


@pytest.mark.parametrize(
    ("address", "role", "condition"),
    [
        ("none", codes.SENDER, NOT_FOUND),
        ("none", codes.RECEIVER, NOT_FOUND),
        ("none/$management", codes.SENDER, NOT_FOUND),
        ("none" + DEAD, codes.RECEIVER, NOT_FOUND),
        ("{queue}" + DEAD, codes.SENDER, NOT_ALLOWED),
    ],
)
def test_links_that_are_refused(client: AmqpClient, queue: str, address: str, role: bool, condition: str) -> None:
    with pytest.raises(Refused) as caught:
        client.attach(address.replace("{queue}", queue), role)
    assert caught.value.condition == condition
    client.attach(queue, codes.SENDER)  # the connection is as good as before


def test_a_disabled_queue(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    link = client.attach(queue, codes.SENDER)
    peer.control.set_status(queue, "SendDisabled")
    assert condition_of(client.sent(link, message())) == ENTITY_DISABLED
    client.attach(queue, codes.RECEIVER)
    with pytest.raises(Refused, match=ENTITY_DISABLED):
        client.attach(queue, codes.SENDER)


def test_handles(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    client.attach(queue, codes.SENDER)
    client.rewind(0)
    with pytest.raises(Refused, match="handle-in-use"):
        client.attach(queue, codes.SENDER)
    client.rewind(256)
    with pytest.raises(Refused, match="handle-in-use"):
        client.attach(queue, codes.SENDER)
    peer.control.detach_links(queue)
    client.expect(codes.DETACH)
    client.rewind(0)
    client.attach(queue, codes.SENDER)


def test_deleting_a_queue_detaches_its_links(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    client.attach(queue, codes.RECEIVER)
    peer.control.delete_queue(queue)
    assert client.expect(codes.DETACH)[2].value[0] == NOT_FOUND
    assert queue not in peer.control.queues()


def test_a_client_that_asks_for_it_is_sent_signs_of_life(peer: PeerThread) -> None:
    with AmqpClient(peer.port, idle=200) as client:
        client.socket.settimeout(5)
        assert client.socket.recv(8) == b"\x00\x00\x00\x08\x02\x00\x00\x00"


def test_close_and_end_are_answered(client: AmqpClient) -> None:
    client.send(codes.END)
    client.expect(codes.END)
    client.send(codes.CLOSE)
    client.expect(codes.CLOSE)
    with pytest.raises(EOFError):
        client.next()


# --- deliveries and what becomes of them --------------------------------------------------------------------


def test_the_delivery_tag_is_the_lock_token(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    found = client.delivery()
    [seen] = peer.control.messages(queue)
    assert seen.lock_token == str(uuid.UUID(bytes_le=found.tag))
    assert annotations_of(found.payload)["x-opt-locked-until"] == round((seen.locked_until or 0) * 1000)


OUTCOMES = {
    "accepted": (replies.ACCEPTED, "empty", 0),
    "released": (replies.RELEASED, "ready", 0),
    "modified": (replies.modified(False, False), "ready", 0),
    "modified, delivery failed": (replies.modified(True, False), "ready", 1),
    "modified, undeliverable here": (replies.modified(False, True), "deferred", 0),
    "rejected": (replies.REJECTED, "dead", 0),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcomes_are_echoed(client: AmqpClient, queue: str, peer: PeerThread, name: str) -> None:
    state, where, failed = OUTCOMES[name]
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER), 1)

    client.settle(client.delivery().number, state)

    assert client.outcome().descriptor == decode(state)[0].descriptor  # type: ignore[attr-defined]
    counts = peer.control.counts(queue)
    assert (counts.empty, counts.ready, counts.deferred, counts.dead) == (
        where in ("empty", "dead"),
        where == "ready",
        where == "deferred",
        where == "dead",
    )
    assert [found.delivery_count for found in peer.control.messages(queue)] in ([], [failed])


def test_rejected_with_a_reason(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    info = encoding.map_(
        [
            (encoding.symbol("DeadLetterReason"), encoding.string("boom")),
            (encoding.symbol("DeadLetterErrorDescription"), encoding.string("so")),
        ]
    )
    error = encoding.composite(codes.ERROR, [encoding.symbol("com.microsoft:dead-letter"), encoding.NULL, info])
    client.settle(client.delivery().number, encoding.composite(codes.REJECTED, [error]))
    assert client.outcome().value == [None]
    [letter] = peer.control.messages(queue + DEAD)
    assert letter.dead_letter_reason == "boom"
    assert letter.properties["DeadLetterErrorDescription"] == "so"


def test_many_are_settled_by_one_disposition_however_wide(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, *[b"x"] * 5)
    client.flow(client.attach(queue, codes.RECEIVER), 5)
    numbers = [client.delivery().number for _ in range(5)]
    client.settle(numbers[1], replies.ACCEPTED, last=numbers[3])
    assert [client.outcome().descriptor for _ in range(3)] == [codes.ACCEPTED] * 3
    assert [found.sequence_number for found in peer.control.messages(queue)] == [1, 5]
    client.settle(numbers[0], replies.ACCEPTED, last=numbers[0] + 0x7FFFFFFF)
    assert [client.outcome().descriptor for _ in range(2)] == [codes.ACCEPTED] * 2
    assert peer.control.counts(queue).empty


def test_what_the_client_has_settled_already_is_not_answered(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    client.settle(client.delivery().number, replies.ACCEPTED, settled=True)
    assert client.silent(codes.DISPOSITION)
    assert peer.control.counts(queue).empty


def test_a_lock_that_has_ended_is_told_by_the_outcome(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    put(client, queue, b"a")
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    found = client.delivery()
    peer.control.turn(30)
    client.settle(found.number, replies.ACCEPTED)
    assert condition_of(client.outcome()) == LOCK_LOST
    assert peer.control.counts(queue).ready == 1


def test_what_a_detached_link_was_sent_stays_locked_and_is_settled_through_management(
    client: AmqpClient, queue: str, peer: PeerThread
) -> None:
    put(client, queue, b"a")
    link = client.attach(queue, codes.RECEIVER)
    client.flow(link, 1)
    found = client.delivery()
    client.send(codes.DETACH, encoding.uint(link), encoding.TRUE)
    client.expect(codes.DETACH)
    client.settle(found.number, replies.ACCEPTED)
    node = client.requests(f"{queue}/$management")
    assert peer.control.counts(queue).locked == 1
    assert status(disposition(client, node, "completed", found.tag)) == 200
    assert peer.control.counts(queue).empty


def test_by_the_machines_clock_locks_and_schedules_end_too(client: AmqpClient, peer: PeerThread) -> None:
    peer.control.create_queue("hasty", lock_duration=0.05)
    put(client, "hasty", b"a")
    client.flow(client.attach("hasty", codes.RECEIVER), 2)
    first, second = client.delivery(), client.delivery()
    assert (first.payload != second.payload, body_of(second.payload)) == (True, b"a")
    sender = client.attach("hasty", codes.SENDER)
    due = encoding.timestamp(int((peer.control.now() + 0.05) * 1000))
    client.sent(sender, message(b"b", scheduled_enqueue_time=due))
    wait_until(lambda: peer.control.counts("hasty").scheduled == 0, 5.0)
    peer.control.delete_queue("hasty")


def test_what_is_due_sooner_is_not_late(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    taken(client, queue)  # something is due in 30 s
    due = encoding.timestamp(int((peer.control.now() + 0.05) * 1000))
    client.sent(client.attach(queue, codes.SENDER), message(b"soon", scheduled_enqueue_time=due))
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    assert body_of(client.delivery().payload) == b"soon"


def test_a_turned_clock_goes_on_from_there(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    taken(client, queue)
    peer.control.turn(29.95)
    assert peer.control.counts(queue).locked == 1
    client.flow(client.attach(queue, codes.RECEIVER), 1)
    assert body_of(client.delivery().payload) == b"x"


# --- $management ------------------------------------------------------------------------------------------


def status(reply: Any) -> int:
    return int(reply.properties["statusCode"])


def disposition(client: AmqpClient, node: tuple[int, int], word: str, *tags: bytes, **more: str) -> Any:
    tokens = encoding.array_of_uuids([uuid.UUID(bytes_le=tag) for tag in tags])
    pairs = [(encoding.string(name.replace("_", "-")), encoding.string(text)) for name, text in more.items()]
    return client.manage(
        node,
        "update-disposition",
        (encoding.string("disposition-status"), encoding.string(word)),
        (encoding.string("lock-tokens"), tokens),
        *pairs,
    )


def taken(client: AmqpClient, queue: str, count: int = 1) -> list[bytes]:
    """Send and receive so many; their tags."""
    put(client, queue, *[b"x"] * count)
    client.flow(client.attach(queue, codes.RECEIVER), count)
    return [client.delivery().tag for _ in range(count)]


@pytest.mark.parametrize(
    ("word", "where"), [("completed", "empty"), ("abandoned", "ready"), ("defered", "deferred"), ("suspended", "dead")]
)
def test_update_disposition(client: AmqpClient, queue: str, peer: PeerThread, word: str, where: str) -> None:
    tags = taken(client, queue, 2)
    node = client.requests(f"{queue}/$management")
    reason = {"deadletter_reason": "why", "deadletter_description": "so"}
    assert status(disposition(client, node, word, *tags, **reason)) == 200
    counts = peer.control.counts(queue)
    found = {"ready": counts.ready, "deferred": counts.deferred, "dead": counts.dead, "empty": 2 * (counts.active == 0)}
    assert found[where] == 2
    assert {m.dead_letter_reason for m in peer.control.messages(queue + DEAD)} == (
        {"why"} if where == "dead" else set()
    )


def test_update_disposition_is_for_all_or_none(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    [tag] = taken(client, queue)
    node = client.requests(f"{queue}/$management")
    answer = disposition(client, node, "completed", tag, uuid.uuid4().bytes)
    assert (status(answer), answer.properties["errorCondition"]) == (410, LOCK_LOST)
    assert peer.control.counts(queue).locked == 1


def test_renew_lock(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    [tag] = taken(client, queue)
    node = client.requests(f"{queue}/$management")
    tokens = (encoding.string("lock-tokens"), encoding.array_of_uuids([uuid.UUID(bytes_le=tag)]))
    peer.control.turn(20)
    answer = client.manage(node, "renew-lock", tokens)
    [seen] = peer.control.messages(queue)
    assert answer.value == {"expirations": [round((seen.locked_until or 0) * 1000)]}
    peer.control.turn(20)
    assert peer.control.counts(queue).locked == 1
    peer.control.turn(10)
    late = client.manage(node, "renew-lock", tokens)
    assert (status(late), late.properties["errorCondition"]) == (410, LOCK_LOST)


def test_peek_also_on_the_sub_queue(client: AmqpClient, queue: str) -> None:
    tags = taken(client, queue, 2)
    node = client.requests(f"{queue}/$management")
    disposition(client, node, "suspended", tags[0])
    dead = client.requests(f"{queue}{DEAD}/$management")
    for pair, count in ((node, 1), (dead, 1)):
        found = peek(client, pair, 0, 10)
        assert len(found) == count
        assert not any("x-opt-locked-until" in annotations_of(each) for each in found)
    assert peek(client, node, 99, 10) == []


def peek(client: AmqpClient, node: tuple[int, int], first: int, most: int) -> list[bytes]:
    answer = client.manage(
        node,
        "peek-message",
        (encoding.string("from-sequence-number"), encoding.long(first)),
        (encoding.string("message-count"), encoding.int_(most)),
    )
    assert status(answer) == (200 if answer.value else 204)
    assert answer.value is None or isinstance(answer.value, dict)
    return [entry["message"] for entry in (answer.value or {}).get("messages", [])]


def test_schedule_and_cancel(client: AmqpClient, queue: str, peer: PeerThread) -> None:
    node = client.requests(f"{queue}/$management")
    due = encoding.timestamp(int((peer.control.now() + 60) * 1000))
    entry = encoding.map_([(encoding.string("message"), encoding.binary(message(scheduled_enqueue_time=due)))])
    answer = client.manage(node, "schedule-message", (encoding.string("messages"), encoding.list_([entry, entry])))
    assert answer.value == {"sequence-numbers": [1, 2]}
    numbers = (encoding.string("sequence-numbers"), encoding.array_of_longs([2]))
    assert status(client.manage(node, "cancel-scheduled-message", numbers)) == 200
    again = client.manage(node, "cancel-scheduled-message", numbers)
    assert (status(again), again.properties["errorCondition"]) == (404, MESSAGE_NOT_FOUND)
    peer.control.turn(60)
    assert peer.control.counts(queue).ready == 1


def test_peek_of_less_than_nothing_is_nothing(client: AmqpClient, queue: str) -> None:
    put(client, queue, b"a")
    node = client.requests(f"{queue}/$management")
    assert peek(client, node, -5, -5) == []
    assert len(peek(client, node, -5, 5)) == 1


@pytest.mark.parametrize("deletes", [False, True])
def test_receive_by_sequence_number(client: AmqpClient, queue: str, peer: PeerThread, deletes: bool) -> None:
    [tag] = taken(client, queue)
    node = client.requests(f"{queue}/$management")
    disposition(client, node, "defered", tag)
    answer = client.manage(
        node,
        "receive-by-sequence-number",
        (encoding.string("sequence-numbers"), encoding.array_of_longs([1])),
        (encoding.string("receiver-settle-mode"), encoding.uint(0 if deletes else 1)),
    )
    assert isinstance(answer.value, dict)
    [found] = answer.value["messages"]
    assert body_of(found["message"]) == b"x"
    assert [str(found["lock-token"])] == [m.lock_token for m in peer.control.messages(queue)] or deletes
    assert peer.control.counts(queue).locked == (0 if deletes else 1)


@pytest.mark.parametrize(
    ("operation", "pairs", "code", "condition"),
    [
        ("renew-session-lock", [], 501, NOT_IMPLEMENTED),
        ("renew-lock", [], 400, ARGUMENT_ERROR),
        ("renew-lock", [("lock-tokens", encoding.list_([encoding.uint(1)]))], 400, ARGUMENT_ERROR),
        ("peek-message", [("from-sequence-number", encoding.TRUE)], 400, ARGUMENT_ERROR),
        ("schedule-message", [("messages", encoding.list_([encoding.NULL]))], 400, ARGUMENT_ERROR),
        (
            "update-disposition",
            [("disposition-status", encoding.string("eaten")), ("lock-tokens", encoding.list_([]))],
            400,
            ARGUMENT_ERROR,
        ),
    ],
)
def test_requests_that_are_refused(
    client: AmqpClient, queue: str, operation: str, pairs: list[tuple[str, bytes]], code: int, condition: str
) -> None:
    node = client.requests(f"{queue}/$management")
    answer = client.manage(node, operation, *[(encoding.string(name), value) for name, value in pairs])
    assert (status(answer), answer.properties["errorCondition"]) == (code, condition)


# --- tokens -----------------------------------------------------------------------------------------------

KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


def signed(resource: str, *, key: str = KEY, name: str = KEY_NAME, lasts: float = 60) -> str:
    target, ends = quote_plus(resource), str(int(time.time() + lasts))
    digest = hmac.new(key.encode(), f"{target}\n{ends}".encode(), hashlib.sha256).digest()
    return f"SharedAccessSignature sr={target}&sig={quote_plus(base64.b64encode(digest))}&se={ends}&skn={name}"


def put_token(client: AmqpClient, token: str, audience: str) -> int:
    node = client.requests("$cbs")
    client.ask(node, encoding.string(token), operation="put-token", type="jwt", name=audience)
    code = client.answer().properties["status-code"]
    assert isinstance(code, int)
    return code


def test_without_a_token_nothing_and_with_one_what_lies_in_its_audience() -> None:
    with PeerThread() as strict:
        for name in ("jobs", "jobs2"):
            strict.control.create_queue(name)
        with AmqpClient(strict.port) as client:
            with pytest.raises(Refused, match=UNAUTHORIZED):
                client.attach("jobs", codes.SENDER)
            assert put_token(client, signed("sb://host/jobs"), "amqps://host/jobs") == 202
            for address in ("jobs", "JOBS", "jobs/$management", "jobs" + DEAD):
                client.attach(address, codes.RECEIVER)
            with pytest.raises(Refused, match=UNAUTHORIZED):
                client.attach("jobs2", codes.SENDER)
        for token in (
            signed("sb://host/jobs", key="wrong"),
            signed("sb://host/jobs", name="another"),
            signed("sb://host/jobs", lasts=-1),
            signed("sb://host/jobs").replace("se=", "se=1"),
            "SharedAccessSignature nothing",
        ):
            with AmqpClient(strict.port) as client:
                assert put_token(client, token, "amqps://host/jobs") == 401
                with pytest.raises(Refused, match=UNAUTHORIZED):
                    client.attach("jobs", codes.SENDER)


def test_a_token_ends() -> None:
    clock = [time.time()]
    entitled = Authorization(Settings(), lambda: clock[0])
    words: dict[object, object] = {"operation": "put-token", "type": "jwt", "name": "amqps://host/jobs"}
    entitled.put_token(Request(None, words, signed("sb://host/jobs", lasts=60)))
    clock[0] += 58
    entitled.require("jobs")
    clock[0] += 2
    with pytest.raises(AmqpError, match="Unauthorized"):
        entitled.require("jobs")
