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
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageNotFoundError

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.enqueue import send
from jobpool_backends.servicebus.inspect import Found, Inspector, oldest, raised
from jobpool_backends.servicebus.internals import COMPLETE, RELEASE, Disposition, settle, take
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import QueueClient
from jobpool_backends.servicebus.records import copy_id, read
from jobpool_backends.servicebus.trouble import LOST
from jobpool_backends.shared import TOUCHABLE, check_positive

T = TypeVar("T")

BULK_STEP_LIMIT_S = 60.0
"""Seconds for one step: a thousand messages take one."""

RECEIVE_MESSAGES = 250
"""Messages received at once."""

MAX_LOCKED_MESSAGES = 2000
"""Dead letters that are kept locked; the broker gives about 5,000 to one connection."""

RECEIVE_TIMEOUT_S = 1.0
"""Seconds to wait for messages that were there a moment ago. Others may be at work on them."""

Messages = Sequence[ServiceBusReceivedMessage]
Before = Callable[[Messages], Awaitable[None]]
"""A step for wanted messages, which are locked, before they are removed."""


class BulkChanger:
    """The bulk changes of queues."""

    def __init__(self, namespace: Namespace, inspector: Inspector) -> None:
        self._namespace = namespace
        self._inspector = inspector

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Change the matching messages. Raises `Unsupported` for a filter by which this broker cannot delete."""
        check_positive(limit, "limit")
        changed = 0
        for state in touched(where, verb):
            if changed < limit:
                changed += self._bulk(replace(where, states=(state,)), state, verb, limit - changed)
        return changed

    def _bulk(self, where: MessageFilter, state: State, verb: Verb, limit: int) -> int:
        found = by_queue(oldest(self._inspector.search(where), limit))
        return sum(self._change(queue, some, state, verb) for queue, some in found.items())

    def _change(self, queue: str, some: list[Found], state: State, verb: Verb) -> int:
        match state:
            case State.DEAD:
                return self._sift(queue, some, verb)
            case State.DELAYED:
                return self._cancel(queue, some)
            case _:
                return self._take(queue, len(some))

    # --- dead letters --------------------------------------------------------------------------------

    def _sift(self, queue: str, some: list[Found], verb: Verb) -> int:
        client = self._namespace.queue(queue)
        before = nothing if verb is Verb.DELETE else _Raising(client, afresh=verb is Verb.RETRY).send
        search = DeadLetterSearch({sight.sequence for sight in some}, before)
        self._ask(client.dead, search.run)
        return search.done

    # --- living ones ---------------------------------------------------------------------------------

    def _cancel(self, queue: str, some: list[Found]) -> int:
        numbers = iter([sight.sequence for sight in some])
        cancelled = 0
        while piece := list(islice(numbers, RECEIVE_MESSAGES)):
            cancelled += self._ask(self._namespace.queue(queue).sending, canceller(piece))
        return cancelled

    def _take(self, queue: str, count: int) -> int:
        """Delete `count` of the waiting messages, whichever come."""
        return self._namespace.call(
            delete(self._namespace.queue(queue), count, time.monotonic() + BULK_STEP_LIMIT_S), BULK_STEP_LIMIT_S
        )

    def _ask(self, channel: Channel[Any], step: Callable[[Any], Awaitable[T]]) -> T:
        return self._namespace.call(channel.run(step, time.monotonic() + BULK_STEP_LIMIT_S), BULK_STEP_LIMIT_S)


class _Raising:
    """The raising of dead letters of one queue by copies. Remembers those sent, should they be met again."""

    def __init__(self, client: QueueClient, *, afresh: bool) -> None:
        self._client = client
        self._afresh = afresh
        self._sent: set[int] = set()

    async def send(self, meant: Messages) -> None:
        fresh = [message for message in meant if message.sequence_number not in self._sent]
        if fresh:
            await send(self._client, [self._copy(message) for message in sorted(fresh, key=_age)])
        self._sent.update(message.sequence_number or 0 for message in fresh)

    def _copy(self, message: ServiceBusReceivedMessage) -> ServiceBusMessage:
        record = raised(read(message), message, afresh=self._afresh)
        return record.message(message_id=copy_id(record.id, "d", message.sequence_number or 0))


def touched(where: MessageFilter, verb: Verb) -> list[State]:
    """Return the states in which the verb may meet what the filter means.

    Raises `Unsupported` when waiting messages would have to be chosen one by one to be deleted.
    """
    states = [state for state in TOUCHABLE[verb] if not where.states or state in where.states]
    if where.reason is not None:  # only a dead letter has one
        states = [state for state in states if state is State.DEAD]
    whole = where == MessageFilter(queue=where.queue, states=where.states)
    if State.WAITING in states and not whole:
        raise Unsupported(
            "servicebus:// deletes waiting messages only all of a queue (Capabilities.deletes_live), never single ones:"
            " leave the filter out, or add `state:dead` or `state:delayed` to it"
        )
    return states


def by_queue(found: Sequence[Found]) -> dict[str, list[Found]]:
    queues: dict[str, list[Found]] = {}
    for sight in found:
        queues.setdefault(sight.message.queue, []).append(sight)
    return queues


async def delete(client: QueueClient, count: int, deadline: float) -> int:
    """Fetch and complete what waits, until `count` or none is left; how many it were."""
    deleted = 0
    while deleted < count and (some := await client.take(min(RECEIVE_MESSAGES, count - deleted), deadline)):
        for receiver in {delivery.receiver for delivery in some}:
            dispositions = [(delivery, COMPLETE) for delivery in some if delivery.receiver is receiver]
            answers = await receiver.settle(dispositions, deadline)
            deleted += answers.count(None)
    return deleted


async def nothing(_: Messages) -> None:
    """Do nothing with dead letters before they are deleted."""


def canceller(numbers: list[int]) -> Callable[[ServiceBusSender], Awaitable[int]]:
    """Return a canceller of delayed messages, which says how many were still there. The broker cancels all, or none."""

    async def cancel(sender: ServiceBusSender) -> int:
        try:
            await sender.cancel_scheduled_messages(numbers)
        except MessageNotFoundError:
            if len(numbers) == 1:
                return 0
            return sum([await canceller([number])(sender) for number in numbers])
        return len(numbers)

    return cancel


def _age(message: ServiceBusReceivedMessage) -> int:
    return read(message).enqueued_at


class DeadLetterSearch:
    """One search. It can be run again with another receiver when one fails.

    Args:
        wanted: The broker's numbers of what is meant.
        before: See `Before`.

    Attributes:
        done: How many were found and removed.
    """

    def __init__(self, wanted: set[int], before: Before) -> None:
        self._wanted = wanted
        self._before = before
        self.done = 0

    async def run(self, receiver: ServiceBusReceiver) -> None:
        """Look until all is found, or nothing comes any more.

        Raises `Unsupported` when too many others come before them; what was found first is done.
        """
        others: list[ServiceBusReceivedMessage] = []
        try:
            while self._wanted and (some := await take(receiver, RECEIVE_MESSAGES, RECEIVE_TIMEOUT_S)):
                meant = [message for message in some if message.sequence_number in self._wanted]
                others += [message for message in some if message.sequence_number not in self._wanted]
                await self._remove(receiver, meant)
                self._check(len(others))
        finally:
            await give_back(receiver, others)

    async def _remove(self, receiver: ServiceBusReceiver, meant: Messages) -> None:
        if meant:
            await self._before(meant)
            self.done += await remove(receiver, meant)
            self._wanted.difference_update(message.sequence_number or 0 for message in meant)

    def _check(self, others: int) -> None:
        if self._wanted and others >= MAX_LOCKED_MESSAGES:
            raise Unsupported(
                f"servicebus:// finds dead letters only among the first {MAX_LOCKED_MESSAGES:,} of a queue, and"
                f" {len(self._wanted):,} of those meant come later: raise or purge what comes before them first"
            )


async def remove(receiver: ServiceBusReceiver, messages: Messages) -> int:
    """Complete messages, and return how many. Messages whose lock was lost are left out.

    Raises errors that leave a doubt.
    """
    answers = await settle(receiver, _each(messages, COMPLETE))
    for answer in answers:
        if answer is not None and not isinstance(answer, LOST):
            raise answer
    return answers.count(None)


async def give_back(receiver: ServiceBusReceiver, messages: Messages) -> None:
    """Unlock messages. Messages of a broken connection come back when their locks end."""
    if messages:
        with contextlib.suppress(Exception):
            await settle(receiver, _each(messages, RELEASE))


def _each(messages: Messages, disposition: Disposition) -> list[tuple[ServiceBusReceivedMessage, Disposition]]:
    return [(message, disposition) for message in messages]
