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
from jobpool_backends.servicebus.holdings import Holdings
from jobpool_backends.servicebus.hub import Hub
from jobpool_backends.servicebus.peeking import peek, peek_first
from jobpool_backends.servicebus.sights import Moment, Sight, matches, see

STATS_CAP = 500
"""Messages of a queue, and dead letters, that `stats` looks at."""

LIVE = frozenset({State.WAITING, State.DELAYED, State.LEASED})


class Looker:
    """The view of queues."""

    def __init__(self, hub: Hub, holdings: Holdings, clock: Clock) -> None:
        self._hub = hub
        self._holdings = holdings
        self._clock = clock

    # --- counts ------------------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        now = Moment.of(self._clock)
        live, dead = peek_first(self._hub, queue, STATS_CAP)
        held = self._holdings.of(queue)
        return tally([see(queue, peeked, held, now, dead=False).message for peeked in live], len(dead), now.wall)

    def queues(self) -> list[str]:
        return [queue for queue in self._hub.told() if next(self.search(MessageFilter(queue=queue)), None)]

    def count(self, where: MessageFilter, cap: int) -> int:
        return sum(1 for _ in islice(self.search(where), cap))

    # --- messages ----------------------------------------------------------------------------------

    def page(self, where: MessageFilter, after: int, limit: int) -> list[Message]:
        return [sight.message for sight in oldest(self.search(where), limit, after)]

    def inspect(self, ident: str) -> Message | None:
        found = next(self.search(MessageFilter(ids=(ident,))), None)
        return found.message if found else None

    def search(self, where: MessageFilter) -> Iterator[Sight]:
        """Yield the messages that the filter finds, in no order: of each queue first the live ones, then its dead
        letters.

        A queue that was not named by the filter and cannot be looked into is left out, unless that is all of them.
        """
        if where.queue is not None:
            yield from self._search(where.queue, where)
            return
        troubles: list[ConfigurationError] = []
        queues = self._hub.told()
        for queue in queues:
            try:
                yield from self._search(queue, where)
            except ConfigurationError as error:
                troubles.append(error)
        if troubles and len(troubles) == len(queues):
            raise troubles[0]

    def _search(self, queue: str, where: MessageFilter) -> Iterator[Sight]:
        now = Moment.of(self._clock)
        for dead in sides(where):
            for sight in self._see(queue, now, dead=dead):
                if matches(sight.message, where, now.wall):
                    yield sight

    def _see(self, queue: str, now: Moment, *, dead: bool) -> Iterator[Sight]:
        held = self._holdings.of(queue)
        return (see(queue, peeked, held, now, dead=dead) for peeked in peek(self._hub, queue, dead=dead))


def oldest(found: Iterable[Sight], limit: int, behind: int = 0) -> list[Sight]:
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
    unsure = [count for count in counts.values() if len(live) >= STATS_CAP]
    if dead >= STATS_CAP:
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
