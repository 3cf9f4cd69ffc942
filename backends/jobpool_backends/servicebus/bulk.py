"""Bulk changes by an administrator: raise dead letters, delete.

A dead letter is raised by sending a copy to its queue and then completing it among the dead letters. A failure in
between leaves both, never neither. The broker gives dead letters in its own order: others stay locked until all wanted
ones are found, so that they do not come again. Their locks must outlive the search, so the search is bounded.

Delayed messages are cancelled by their numbers. Waiting ones can only be taken in their order, and so be deleted only
all at once. Leased messages are never touched.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageNotFoundError
from msgspec.structs import replace

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.enqueue import Outgoing, Producer
from jobpool_backends.servicebus.errors import LOST
from jobpool_backends.servicebus.inspect import Inspector, oldest, raised
from jobpool_backends.servicebus.internals import COMPLETE, RELEASE, Messages, receive, settle
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import QueueClient
from jobpool_backends.servicebus.records import copy_id, read
from jobpool_backends.shared import grouped, pieces

Step = TypeVar("Step")
RECEIVE_MESSAGES = 250  # messages received, or cancelled, at once
RECEIVE_TIMEOUT_S = 1.0  # time to wait for messages that were there a moment ago. Others may be at work on them.
MAX_LOCKED_MESSAGES = 2000  # dead letters that are kept locked; the broker gives about 5,000 to one connection
BULK_STEP_LIMIT_S = 60.0


class BulkChanger:
    """The bulk changes of queues."""

    def __init__(self, namespace: Namespace, producer: Producer, inspector: Inspector) -> None:
        self._namespace = namespace
        self._producer = producer
        self._inspector = inspector

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Change the matching messages. Raises `Unsupported` for a filter by which this broker cannot delete."""
        changed = 0
        for state in touched(where):
            if changed < limit:
                found = oldest(self._inspector.search(replace(where, states=(state,))), limit - changed)
                for queue, theirs in grouped(found, lambda each: each.message.queue).items():
                    changed += self._change(queue, [each.sequence for each in theirs], state, verb)
        return changed

    def _change(self, queue: str, numbers: list[int], state: State, verb: Verb) -> int:
        client = self._namespace.queue(queue)
        if state is State.DEAD:
            search = DeadLetterSearch(self._producer, queue, set(numbers), verb)
            self._ask(client.dead, search.run)
            return search.done
        if state is State.DELAYED:
            parts = pieces(numbers, RECEIVE_MESSAGES)
            return sum(self._ask(client.sending, partial(_cancel, numbers=part)) for part in parts)
        limit = time.monotonic() + BULK_STEP_LIMIT_S
        return self._namespace.call(_delete_waiting(client, len(numbers), limit), BULK_STEP_LIMIT_S)

    def _ask(self, channel: Channel[Any], step: Callable[[Any], Awaitable[Step]]) -> Step:
        return self._namespace.call(channel.run(step, time.monotonic() + BULK_STEP_LIMIT_S), BULK_STEP_LIMIT_S)


class DeadLetterSearch:
    """One search for dead letters to be removed, or raised by copies and then removed: `done` of them so far.

    It can be run again with another receiver when one fails. `wanted` are the broker's numbers.
    """

    def __init__(self, producer: Producer, queue: str, wanted: set[int], verb: Verb) -> None:
        self._producer = producer
        self._queue = queue
        self._wanted = wanted
        self._verb = verb
        self._sent: set[int] = set()  # those whose copies were sent, should they be met again
        self.done = 0

    async def run(self, receiver: ServiceBusReceiver) -> None:
        """Look until all is found, or nothing comes any more. Raises `Unsupported` when too many others come before."""
        others: list[ServiceBusReceivedMessage] = []
        try:
            while self._wanted and (some := await receive(receiver, RECEIVE_MESSAGES, RECEIVE_TIMEOUT_S)):
                others += [message for message in some if message.sequence_number not in self._wanted]
                if meant := [message for message in some if message.sequence_number in self._wanted]:
                    others += meant  # until they are removed
                    await self._remove(receiver, meant)
                    del others[-len(meant) :]
                if self._wanted and len(others) >= MAX_LOCKED_MESSAGES:
                    raise Unsupported(
                        f"servicebus:// finds dead letters only among the first {MAX_LOCKED_MESSAGES:,} of a queue, and"
                        f" {len(self._wanted):,} of those meant come later: raise or purge what comes before them first"
                    )
        finally:
            if others:
                with contextlib.suppress(Exception):  # of a broken connection they come back when their locks end
                    await settle(receiver, [(message, RELEASE) for message in others])

    async def _remove(self, receiver: ServiceBusReceiver, meant: Messages) -> None:
        if self._verb is not Verb.DELETE:
            await self._send_copies(meant)
        answers = await settle(receiver, [(message, COMPLETE) for message in meant])
        for answer in answers:
            if answer is not None and not isinstance(answer, LOST):
                raise answer
        self.done += answers.count(None)
        self._wanted.difference_update(message.sequence_number or 0 for message in meant)

    async def _send_copies(self, meant: Messages) -> None:
        fresh = [(read(message), message) for message in meant if message.sequence_number not in self._sent]
        fresh.sort(key=lambda each: each[0].enqueued_at)
        copies = []
        for record, message in fresh:
            alive = raised(record, message, afresh=self._verb is Verb.RETRY)
            ident = copy_id(record.id, "d", message.sequence_number or 0)
            copies.append(Outgoing(self._queue, alive, message_id=ident))
        await self._producer.send(copies)
        self._sent.update(message.sequence_number or 0 for _, message in fresh)


def touched(where: MessageFilter) -> list[State]:
    """Return the states in which these may be. Raises `Unsupported` to choose among waiting messages."""
    states = [state for state in where.states if where.reason is None or state is State.DEAD]  # others have none
    if State.WAITING in states and where != MessageFilter(queue=where.queue, states=where.states):
        raise Unsupported(
            "servicebus:// deletes waiting messages only all of a queue (Capabilities.keeps_records), never single"
            " ones: leave the filter out, or add `state:dead` or `state:delayed` to it"
        )
    return states


async def _delete_waiting(client: QueueClient, count: int, deadline: float) -> int:
    """Fetch and complete what waits, until `count` or none is left; return how many it were."""
    deleted = 0
    while deleted < count and (some := await client.take(min(RECEIVE_MESSAGES, count - deleted), deadline)):
        for receiver in {delivery.receiver for delivery in some}:
            mine = [(delivery, COMPLETE) for delivery in some if delivery.receiver is receiver]
            deleted += (await receiver.settle(mine, deadline)).count(None)
    return deleted


async def _cancel(sender: ServiceBusSender, numbers: Sequence[int]) -> int:
    """Cancel delayed messages, and return how many were still there. The broker cancels all, or none."""
    try:
        await sender.cancel_scheduled_messages(list(numbers))
    except MessageNotFoundError:
        return 0 if len(numbers) == 1 else sum([await _cancel(sender, [number]) for number in numbers])
    return len(numbers)
