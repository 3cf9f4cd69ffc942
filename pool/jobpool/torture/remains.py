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

MEMORY = "/memfd:"
"""How a piece of shared memory is named among descriptors."""

SOCKETS_TOLERATED = 8
FILES_TOLERATED = 2
"""Descriptors of one kind that a master may have more than before: it opens a connection when a call finds all others
in use, and keeps a few of them. What leaks with every fault is more than that soon; of other kinds none is allowed."""


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


def difference(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """By pool, how many descriptors of each kind its master has more than before; < 0: fewer. Equal ones left out."""
    kinds = {pool: sorted({*before[pool], *counts}) for pool, counts in now.items() if pool in before}
    changes = {pool: {kind: now[pool][kind] - before[pool][kind] for kind in found} for pool, found in kinds.items()}
    return {pool: {kind: change for kind, change in found.items() if change} for pool, found in changes.items()}


def grown(changes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Which masters have more descriptors than before, and of what kind; what connections explain left out."""
    found = {
        pool: {kind: more for kind, more in kinds.items() if more > _tolerated(kind)} for pool, kinds in changes.items()
    }
    return [f"{pool}: {listed(kinds)}" for pool, kinds in found.items() if kinds]


def listed(kinds: Mapping[str, int]) -> str:
    """The changes of a pool, for people."""
    return ", ".join(f"{change:+d} {kind}" for kind, change in kinds.items()) or "as before"


def _tolerated(kind: str) -> int:
    if kind == "socket":
        return SOCKETS_TOLERATED
    is_file = kind.startswith("/") and not kind.startswith(MEMORY)
    return FILES_TOLERATED if is_file else 0
