"""The unmodified SDK on the peer: what it does with a real namespace, it does here.

To open a handler of the SDK takes half a second and to close it up to one. So the tests share a few; each starts with
an empty queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusSubQueue,
)
from azure.servicebus import exceptions as wrong
from azure.servicebus.aio import ServiceBusClient
from servicebus_peer import Control, PeerThread
from servicebus_peer.settings import KEY
from support.waiting import wait_until

LOCK = 60.0
WAIT = 5.0
"""Seconds for a message that is there."""

Scenario = Coroutine[Any, Any, None]


class Sdk:
    """The SDK's aio client on a loop that stands still between the tests, and handlers on the queue "jobs"."""

    def __init__(self, peer: PeerThread) -> None:
        self.peer = peer
        self._runner = asyncio.Runner()
        self._runner.get_loop().set_exception_handler(lambda _loop, _context: None)
        self.client = ServiceBusClient.from_connection_string(
            peer.connection_string, retry_total=1, retry_backoff_factor=0.05, try_timeout=5
        )
        quick: dict[str, Any] = {"socket_timeout": 0.05, "timeout": 2}
        self.sender = self.client.get_queue_sender("jobs", **quick)
        self.receiver = self.client.get_queue_receiver("jobs", **quick)
        self.other = self.client.get_queue_receiver("jobs", **quick)
        self.dead = self.client.get_queue_receiver("jobs", sub_queue=ServiceBusSubQueue.DEAD_LETTER, **quick)
        self._all: list[Any] = [self.sender, self.receiver, self.other, self.dead]

    def open(self) -> None:
        self.run(each(handler.__aenter__ for handler in self._all))

    def close(self) -> None:
        self.run(each(handler.close for handler in self._all))
        self.run(self.client.close())
        self._runner.close()

    def run(self, scenario: Scenario) -> None:
        async def limited() -> None:
            await asyncio.wait_for(scenario, 60)

        self._runner.run(limited())

    # --- verbs --------------------------------------------------------------------------------------

    async def send(self, *bodies: str, **properties: Any) -> None:
        await self.sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])

    async def receive(self, count: int = 1, receiver: Any = None) -> list[Any]:
        """Exactly so many: credit that is left over would take what the next test sends."""
        found: list[Any] = []
        async with asyncio.timeout(WAIT * 2):
            while len(found) < count:
                found += await (receiver or self.receiver).receive_messages(
                    max_message_count=count - len(found), max_wait_time=WAIT
                )
        return found


async def each(makers: Any) -> None:
    """All at once."""
    await asyncio.gather(*[make() for make in makers])


@pytest.fixture(scope="module")
def opened() -> Iterator[Sdk]:
    with PeerThread() as peer:
        peer.control.create_queue("jobs", lock_duration=LOCK, max_delivery_count=3)
        sdk = Sdk(peer)
        sdk.open()
        yield sdk
        sdk.close()
        wait_until(lambda: peer.control.connections() == 0, what="the SDK hangs up")


@pytest.fixture
def sdk(opened: Sdk) -> Iterator[Sdk]:
    yield opened
    opened.peer.control.heal()
    for name in ("jobs", "jobs/$DeadLetterQueue"):
        opened.peer.control.purge(name)


@pytest.fixture
def control(sdk: Sdk) -> Control:
    return sdk.peer.control


def scenario(steps: Callable[[Sdk, Control], Awaitable[None]]) -> Callable[[Sdk, Control], None]:
    """A test that is a coroutine."""

    def test(sdk: Sdk, control: Control) -> None:
        sdk.run(steps(sdk, control))  # type: ignore[arg-type]

    test.__name__ = test.__qualname__ = steps.__name__
    return test


def body(received: Any) -> str:
    return b"".join(received.body).decode()


def after(control: Control, seconds: float) -> datetime:
    """By the peer's clock, which the tests before have turned."""
    return datetime.fromtimestamp(control.now() + seconds, UTC)


# --- sending and receiving --------------------------------------------------------------------------------


@scenario
async def test_a_message_arrives_as_it_was_sent(sdk: Sdk, control: Control) -> None:
    given = {"number": 1, "text": "v", "float": 1.5, "bytes": b"raw", "truth": True}
    await sdk.send(
        "hello",
        message_id="id",
        correlation_id="c",
        content_type="application/json",
        subject="s",
        reply_to="r",
        application_properties=given,
    )
    [seen] = control.messages("jobs")
    assert (seen.body, seen.message_id, seen.properties["text"]) == (b"hello", "id", "v")

    [got] = await sdk.receive()

    assert (body(got), got.message_id, got.correlation_id, got.subject, got.reply_to) == ("hello", "id", "c", "s", "r")
    assert got.content_type == "application/json"
    assert got.application_properties == {
        b"number": 1,
        b"text": b"v",
        b"float": 1.5,
        b"bytes": b"raw",
        b"truth": True,
    }
    assert (got.delivery_count, got.state) == (0, ServiceBusMessageState.ACTIVE)
    assert got.sequence_number == seen.sequence_number
    assert abs(got.enqueued_time_utc.timestamp() - seen.enqueued) < 0.01
    assert str(got.lock_token) == control.messages("jobs")[0].lock_token
    await sdk.receiver.complete_message(got)
    assert control.counts("jobs").empty


@scenario
async def test_a_batch_arrives_in_its_order(sdk: Sdk, control: Control) -> None:
    await sdk.send(*map(str, range(50)))
    got = await sdk.receive(50)
    assert [body(each) for each in got] == [str(number) for number in range(50)]
    for each in got:
        await sdk.receiver.complete_message(each)
    assert control.counts("jobs").empty


@scenario
async def test_sizes(sdk: Sdk, control: Control) -> None:
    await sdk.send("z" * 200_000)
    with pytest.raises(wrong.MessageSizeExceededError):
        await sdk.sender.send_messages(ServiceBusMessage("z" * 300_000))
    [got] = await sdk.receive()
    assert len(body(got)) == 200_000
    await sdk.receiver.complete_message(got)
    assert control.counts("jobs").empty


@scenario
async def test_an_empty_queue_is_waited_for_and_unused_credit_is_kept(sdk: Sdk, control: Control) -> None:
    assert await sdk.other.receive_messages(max_message_count=1, max_wait_time=0.2) == []
    await sdk.send("late")
    assert control.counts("jobs").locked == 1
    [got] = await sdk.receive(receiver=sdk.other)
    await sdk.other.complete_message(got)
    assert control.counts("jobs").empty


# --- settling ---------------------------------------------------------------------------------------------


@scenario
async def test_settled_and_renewed_on_another_receiver(sdk: Sdk, control: Control) -> None:
    await sdk.send("a", "b", "c", "d")
    before = control.counts("jobs").tally
    completed, abandoned, dead, renewed = await sdk.receive(4)
    await sdk.other.complete_message(completed)
    await sdk.other.abandon_message(abandoned)
    await sdk.other.dead_letter_message(dead, reason="why")
    await sdk.other.renew_message_lock(renewed)
    done = control.counts("jobs").tally
    for name in ("completed", "abandoned", "dead_lettered", "renewed"):
        assert done[name] == before[name] + 1


# --- time -------------------------------------------------------------------------------------------------


@scenario
async def test_a_lock_runs_out_unless_it_is_renewed(sdk: Sdk, control: Control) -> None:
    await sdk.send("a")
    [got] = await sdk.receive()
    control.turn(LOCK * 0.6)
    until = got.locked_until_utc
    await sdk.receiver.renew_message_lock(got)
    assert (got.locked_until_utc - until).total_seconds() >= LOCK * 0.6 - 0.1
    control.turn(LOCK * 0.6)
    assert control.counts("jobs").locked == 1
    control.turn(LOCK)
    for settle in (sdk.receiver.complete_message, sdk.receiver.renew_message_lock):
        with pytest.raises(wrong.MessageLockLostError):
            await settle(got)
    [again] = await sdk.receive()
    assert again.delivery_count == 1
    await sdk.receiver.complete_message(again)
    assert control.counts("jobs").empty


@scenario
async def test_scheduled_and_cancelled(sdk: Sdk, control: Control) -> None:
    await sdk.send("one", "two", scheduled_enqueue_time_utc=after(control, 100))
    await sdk.send("three", scheduled_enqueue_time_utc=after(control, 50))
    [two] = [each.sequence_number for each in control.messages("jobs") if each.body == b"two"]
    await sdk.sender.cancel_scheduled_messages(two)
    with pytest.raises(wrong.MessageNotFoundError):
        await sdk.sender.cancel_scheduled_messages(two)
    assert control.counts("jobs").scheduled == 2
    for seconds, text in ((50, "three"), (50, "one")):
        control.turn(seconds)
        [got] = await sdk.receive()
        assert body(got) == text
        await sdk.receiver.complete_message(got)
    assert control.counts("jobs").empty


@scenario
async def test_peeked_in_every_state(sdk: Sdk, control: Control) -> None:
    await sdk.send("locked", "ready")
    await sdk.send("scheduled", scheduled_enqueue_time_utc=after(control, 100))
    await sdk.receive()
    found = await sdk.other.peek_messages(10, sequence_number=1)
    state = ServiceBusMessageState
    assert [(body(each), each.state) for each in found] == [
        ("locked", state.ACTIVE),
        ("ready", state.ACTIVE),
        ("scheduled", state.SCHEDULED),
    ]
    numbers = [each.sequence_number or 0 for each in found]
    assert numbers == sorted(numbers)


# --- faults: the SDK comes back by itself ---------------------------------------------------------------------


@scenario
async def test_it_survives_a_restart(sdk: Sdk, control: Control) -> None:
    await sdk.send("1")
    [first] = await sdk.receive()
    control.restart()
    await sdk.send("2")
    [second] = await sdk.receive()
    assert body(second) == "2"
    await sdk.receiver.complete_message(first)  # through $management: the lock has outlived the link
    await sdk.receiver.complete_message(second)
    assert control.counts("jobs").empty


@scenario
async def test_it_tries_again_when_the_service_is_busy(sdk: Sdk, control: Control) -> None:
    control.fail("send")
    await sdk.send("1")
    assert control.counts("jobs").ready == 1


@scenario
async def test_management_replies_that_end_are_an_error(sdk: Sdk, control: Control) -> None:
    await sdk.send("1")
    [got] = await sdk.receive()
    control.limit_management_replies(0)
    with pytest.raises(wrong.ServiceBusError):
        await sdk.other.renew_message_lock(got, timeout=0.5)
    control.limit_management_replies(None)
    assert control.counts("jobs").locked == 1


@scenario
async def test_what_is_refused(sdk: Sdk, control: Control) -> None:
    control.create_queue("asleep")
    control.set_status("asleep", "Disabled")

    async def refused(queue: str, key: str, error: type[Exception]) -> None:
        text = sdk.peer.connection_string.replace(KEY, key)
        async with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            with pytest.raises(error):
                await client.get_queue_sender(queue, socket_timeout=0.05).__aenter__()

    await asyncio.gather(
        refused("none", KEY, wrong.MessagingEntityNotFoundError),
        refused("asleep", KEY, wrong.MessagingEntityDisabledError),
        refused("jobs", "wrong", wrong.ServiceBusAuthenticationError),
    )
