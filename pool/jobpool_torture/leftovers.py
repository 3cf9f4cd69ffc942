"""The messages that are left at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, State

PAGE_MESSAGES = 500

LIVE = (State.WAITING, State.DELAYED, State.LEASED)


def kept(backend: QueueBackend, queue: str) -> list[Message]:
    """Return all messages that the broker shows of the queue: dead ones, and live ones where it can list them.

    Raises `BackendUnavailable`. Blocks for a round trip a page.
    """
    states = () if backend.capabilities.lists_live else (State.DEAD,)
    return list(pages(backend, MessageFilter(queue=queue, states=states)))


def pages(backend: QueueBackend, where: MessageFilter) -> Iterator[Message]:
    """Yield all messages that the filter finds. Raises `BackendUnavailable`. Blocks for a round trip a page."""
    after: str | None = None
    while page := backend.list_messages(where, after=after, limit=PAGE_MESSAGES):
        yield from page
        after = page[-1].cursor


def stuck(backend: QueueBackend, queue: str) -> list[str]:
    """Return the messages that are not done, each with its state and counters; counts alone where it cannot list
    them.
    """
    if not backend.capabilities.lists_live:
        stats = backend.stats(queue)
        counts = {state.value: getattr(stats, state.value) for state in LIVE}
        return [f"{count} {state}" for state, count in counts.items() if count]
    return [
        f"{message.id}: {message.state.value}, {message.handler}, attempts {message.attempts},"
        f" crashes {message.crashes}, deliveries {message.deliveries}"
        for message in pages(backend, MessageFilter(queue=queue, states=LIVE))
    ]


def reasons(messages: Iterable[Message]) -> dict[str, int]:
    """Return how many dead letters there are of each reason."""
    return dict(Counter(message.reason or "" for message in messages if message.state is State.DEAD).most_common())


def described(message: Message) -> dict[str, Any]:
    """Return JSON values, without the body, which may be long."""
    fields = {name: value for name, value in asdict(message).items() if name not in ("body", "cursor")}
    return fields | {"bytes": len(message.body)}
