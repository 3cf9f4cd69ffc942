"""Taking certain messages out of a sub-queue of dead letters, where the broker gives only whatever comes next.

Other messages stay locked until all wanted ones have been found, so that they do not come again, and are given back
then. Their locks must outlive the search, so the search is bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from jobpool.errors import Unsupported
from jobpool_backends.servicebus.credit import take
from jobpool_backends.servicebus.dispositions import settle
from jobpool_backends.servicebus.trouble import LOST
from jobpool_backends.servicebus.verdicts import COMPLETE, RELEASE, Disposition

RECEIVE_MESSAGES = 250
"""Messages received at once."""

MAX_LOCKED_MESSAGES = 2000
"""Dead letters that are kept locked; the broker gives about 5,000 to one connection."""

RECEIVE_TIMEOUT_S = 1.0
"""Seconds to wait for messages that were there a moment ago. Others may be at work on them."""

Messages = Sequence[ServiceBusReceivedMessage]
Before = Callable[[Messages], Awaitable[None]]
"""A step for wanted messages, which are locked, before they are removed."""


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
