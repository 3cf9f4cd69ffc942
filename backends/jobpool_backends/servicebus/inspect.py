"""The administrator's view: counts, lists, single messages; all by peeking, because the broker has no other view for
us.

Lists are in the order of the first enqueue. The broker's own order is another: a copy, such as a nack sends, has a new
number, and dead letters are numbered apart. So a whole queue is looked through for one page: some thousand messages a
second.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from jobpool.broker.values import Message, MessageFilter, QueueStats, State
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool_backends.servicebus.leases import HeldLeases
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.peeking import peek, peek_first
from jobpool_backends.servicebus.sights import Found, Now, matches, see
from jobpool_backends.shared import check_page, check_positive, read_cursor

MAX_STATS_MESSAGES = 500
"""Messages of a queue, and dead letters, that `stats` looks at."""

LIVE = frozenset({State.WAITING, State.DELAYED, State.LEASED})


class Inspector:
    """The view of queues."""

    def __init__(self, namespace: Namespace, leases: HeldLeases, clock: Clock) -> None:
        self._namespace = namespace
        self._leases = leases
        self._clock = clock

    # --- counts ------------------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        now = Now.of(self._clock)
        live, dead = peek_first(self._namespace, queue, MAX_STATS_MESSAGES)
        held = self._leases.of(queue)
        return tally([see(queue, peeked, held, now, dead=False).message for peeked in live], len(dead), now.wall)

    def queues(self) -> list[str]:
        return [
            queue for queue in self._namespace.named_queues() if next(self.search(MessageFilter(queue=queue)), None)
        ]

    def count(self, where: MessageFilter, cap: int) -> int:
        check_positive(cap, "cap")
        return sum(1 for _ in islice(self.search(where), cap))

    # --- messages ----------------------------------------------------------------------------------

    def page(self, where: MessageFilter, after: str | None, limit: int) -> list[Message]:
        behind = read_cursor(after)
        check_page(limit)
        return [sight.message for sight in oldest(self.search(where), limit, behind)]

    def inspect(self, ident: str) -> Message | None:
        found = next(self.search(MessageFilter(ids=(ident,))), None)
        return found.message if found else None

    def search(self, where: MessageFilter) -> Iterator[Found]:
        """Yield the messages that the filter finds, in no order: of each queue first the live ones, then its dead
        letters.

        A queue that was not named by the filter and cannot be looked into is left out, unless that is all of them.
        """
        if where.queue is not None:
            yield from self._search(where.queue, where)
            return
        troubles: list[ConfigurationError] = []
        queues = self._namespace.named_queues()
        for queue in queues:
            try:
                yield from self._search(queue, where)
            except ConfigurationError as error:
                troubles.append(error)
        if troubles and len(troubles) == len(queues):
            raise troubles[0]

    def _search(self, queue: str, where: MessageFilter) -> Iterator[Found]:
        now = Now.of(self._clock)
        for dead in sides(where):
            for sight in self._see(queue, now, dead=dead):
                if matches(sight.message, where, now.wall):
                    yield sight

    def _see(self, queue: str, now: Now, *, dead: bool) -> Iterator[Found]:
        held = self._leases.of(queue)
        return (see(queue, peeked, held, now, dead=dead) for peeked in peek(self._namespace, queue, dead=dead))


def oldest(found: Iterable[Found], limit: int, behind: int = 0) -> list[Found]:
    """Return the first `limit` in the order of their enqueue after this place. Keeps no more than that many."""
    return heapq.nsmallest(limit, (sight for sight in found if sight.place > behind), key=lambda sight: sight.place)


def sides(where: MessageFilter) -> list[bool]:
    """Return where to look for what a filter means: False is the queue, True its dead letters."""
    states = set(where.states or State)
    live = bool(states & LIVE) and where.reason is None
    return [dead for dead, wanted in ((False, live), (True, State.DEAD in states)) if wanted]


def tally(live: list[Message], dead: int, now: float) -> QueueStats:
    """Return the counts. Where there was more to see, `cap` is the smallest count that may be too small."""
    counts = Counter(message.state for message in live)
    unsure = [count for count in counts.values() if len(live) >= MAX_STATS_MESSAGES]
    if dead >= MAX_STATS_MESSAGES:
        unsure.append(dead)
    waiting = [message.enqueued_at for message in live if message.state is State.WAITING]
    return QueueStats(
        waiting=counts[State.WAITING],
        delayed=counts[State.DELAYED],
        leased=counts[State.LEASED],
        dead=dead,
        oldest=max(0.0, now - min(waiting)) if waiting else None,
        cap=min(unsure, default=None),
    )
