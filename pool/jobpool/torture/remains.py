"""What is left at the end of a run, of messages and of descriptors; and how the queue is emptied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from jobpool.backend import Message, MessageFilter, QueueBackend, State, Verb

PAGE = 500

LIVE = (State.WAITING, State.DELAYED, State.LEASED)

NOT_DELETED = 100
"""Looks after which a queue that does not become empty is left as it is."""

TOLERATED = {"socket": 8}
OTHERS_TOLERATED = 2
"""Descriptors of one kind that a master may have more than before: a master opens a connection when a call finds all
others in use, and keeps a few of them. What leaks with every fault is more than that soon."""


def kept(backend: QueueBackend, queue: str) -> list[Message]:
    """All messages that the broker shows of the queue: dead ones, and live ones where it can list them.

    Raises `BackendUnavailable`. Blocks for a round trip a page.
    """
    states = () if backend.capabilities.lists_live else (State.DEAD,)
    return list(_pages(backend, MessageFilter(queue=queue, states=states)))


def _pages(backend: QueueBackend, where: MessageFilter) -> Iterator[Message]:
    after: str | None = None
    while page := backend.list_messages(where, after=after, limit=PAGE):
        yield from page
        after = page[-1].cursor


def stuck(backend: QueueBackend, queue: str) -> list[str]:
    """The messages that are not done, each with its state and counters; counts alone where it cannot list them."""
    if not backend.capabilities.lists_live:
        stats = backend.stats(queue)
        counts = {state.value: getattr(stats, state.value) for state in LIVE}
        return [f"{count} {state}" for state, count in counts.items() if count]
    return [
        f"{message.id}: {message.state.value}, {message.handler}, attempts {message.attempts},"
        f" crashes {message.crashes}, deliveries {message.deliveries}"
        for message in _pages(backend, MessageFilter(queue=queue, states=LIVE))
    ]


def reasons(messages: Iterable[Message]) -> dict[str, int]:
    """How many dead letters there are of each reason."""
    return dict(Counter(message.reason or "" for message in messages if message.state is State.DEAD).most_common())


def described(message: Message) -> dict[str, Any]:
    """JSON-able, without the body, which may be long."""
    fields = {name: value for name, value in asdict(message).items() if name not in ("body", "cursor")}
    return fields | {"bytes": len(message.body)}


def purge(backend: QueueBackend, queue: str) -> None:
    """Delete all messages of the queue that nobody holds. Raises `BackendUnavailable`. Blocks for a few round trips."""
    for _ in range(NOT_DELETED):
        if not backend.bulk(MessageFilter(queue=queue), Verb.DELETE, limit=1000):
            return


def grown(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> list[str]:
    """Which masters have more descriptors than before, and of what kind."""
    found = []
    for pool, counts in now.items():
        more = counts - before.get(pool, Counter())
        told = {kind: count for kind, count in more.items() if count > TOLERATED.get(kind, OTHERS_TOLERATED)}
        if pool in before and told:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(told.items()))
            found.append(f"{pool}: {kinds} more than the {before[pool].total()} before")
    return found
