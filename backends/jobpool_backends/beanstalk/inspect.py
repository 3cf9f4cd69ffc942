"""The administrator's view: counts, queues, dead letters.

beanstalkd counts the jobs of a tube, and shows the first that is ready, delayed or buried. So live messages are counted
and not listed. Dead letters are listed by a walk, which costs a round trip for each of the queue. The places of letters
shown before are remembered, so asking for one again costs one round trip.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from jobpool.broker.backend import check_queue
from jobpool.broker.values import Message, MessageFilter, QueueStats, State
from jobpool.clock import Clock
from jobpool.errors import InvalidJob, Unsupported
from jobpool_backends.beanstalk.answers import Stats, about, ask_counters, ask_tube_stats, ask_tubes, job_of, number
from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.dead_letters import Letter, Walk, read_letter
from jobpool_backends.beanstalk.records import from_bytes

MAX_REMEMBERED_PLACES = 10_000


class Inspector:
    """The view of queues. Nothing is left reserved."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._places: dict[str, tuple[str, int]] = {}

    # --- counts --------------------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue."""
        if not is_queue(queue):
            return QueueStats()
        with self._connections.spare() as connection:
            [counts] = self._counts(connection, [queue])
            return replace(counts, oldest=self._age_of_next(connection, queue)) if counts.waiting else counts

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        with self._connections.spare() as connection:
            return [name for name, counts in self._each(connection) if counts.pending or counts.dead]

    def count(self, where: MessageFilter, cap: int) -> int:
        """Return how many dead letters match, up to `cap`."""
        require_dead(where)
        if where == MessageFilter(queue=where.queue, states=where.states):
            with self._connections.spare() as connection:
                return min(cap, sum(counts.dead for _, counts in self._some(connection, where.queue)))
        with self._connections.spare() as connection:
            return min(cap, sum(1 for _ in self._matching(connection, where)))

    def _each(self, connection: Connection) -> list[tuple[str, QueueStats]]:
        found = map(self._connections.address.queue, ask_tubes(connection))
        names = sorted(name for name in found if name and is_queue(name))
        return list(zip(names, self._counts(connection, names), strict=True))

    def _some(self, connection: Connection, queue: str | None) -> list[tuple[str, QueueStats]]:
        if queue is None:
            return self._each(connection)
        return [(queue, self._counts(connection, [queue])[0])] if is_queue(queue) else []

    def _counts(self, connection: Connection, queues: Collection[str]) -> list[QueueStats]:
        told = ask_tube_stats(connection, map(self._connections.address.tube, queues))
        return [self._read_counts(queue, stats) for queue, stats in zip(queues, told, strict=True)]

    def _read_counts(self, queue: str, stats: Stats) -> QueueStats:
        """Count as waiting what was reserved for a waiter and not handed out yet, too."""
        states = ("ready", "delayed", "reserved", "buried")
        ready, delayed, reserved, buried = (number(stats, f"current-jobs-{state}") for state in states)
        prefetched = min(reserved, self._connections.prefetched(queue))
        return QueueStats(ready + prefetched, delayed, reserved - prefetched, buried)

    def _age_of_next(self, connection: Connection, queue: str) -> float | None:
        """Return seconds since the enqueue of the message that is next, which is the oldest of the most urgent."""
        connection.use(self._connections.address.tube(queue))
        job = job_of(connection, connection.burst([b"peek-ready"])[0])
        if job is None:
            return None
        record, _ = from_bytes(job.body, job.id)
        if record.ours:
            return max(0.0, self._clock.wall() - record.enqueued_at)
        [counters] = ask_counters(connection, [job.id])
        return float(counters.age) if counters else None

    # --- dead letters --------------------------------------------------------------------------------

    def page(self, where: MessageFilter, after: int, limit: int) -> list[Message]:
        """Return up to `limit` dead letters after the cursor `after`, the first that died first."""
        require_dead(where)
        found: list[tuple[int, Letter]] = []
        with self._connections.spare() as connection:
            for letter in self._matching(connection, where):
                if letter.job > after:
                    push = heapq.heappush if len(found) < limit else heapq.heappushpop
                    push(found, (-letter.job, letter))
        letters = [letter for _, letter in sorted(found, key=itemgetter(0), reverse=True)]
        self._remember(letters)
        return [letter.message for letter in letters]

    def inspect(self, ident: str) -> Message | None:
        """Return the dead letter with this id; of several the first that died."""
        with self._connections.spare() as connection:
            found = list(self._matching(connection, MessageFilter(ids=(ident,))))
        self._remember(found)
        return min(found, key=lambda letter: letter.job).message if found else None

    def _matching(self, connection: Connection, where: MessageFilter) -> Iterator[Letter]:
        """Yield the matching letters, in any order; with ids, only those, until all of them are found."""
        now = self._clock.wall()
        known = [letter for letter in self.known(connection, where.ids) if letter.matches(where, now)]
        yield from known
        wanted = set(where.ids).difference(letter.record.id for letter in known)
        if where.ids and not wanted:
            return
        for queue in self.with_letters(connection, where.queue):
            yield from self._walk(connection, queue, where, wanted, {letter.job for letter in known})

    def _walk(
        self, connection: Connection, queue: str, where: MessageFilter, wanted: set[str], known: Collection[int]
    ) -> Iterator[Letter]:
        now = self._clock.wall()
        walk = Walk(connection, queue, self._clock)
        while (letter := walk.letter) is not None:
            walk.keep()
            if letter.job not in known and letter.matches(where, now):
                yield letter
                wanted.discard(letter.record.id)
                if where.ids and not wanted:
                    walk.end()

    def with_letters(self, connection: Connection, queue: str | None) -> list[str]:
        """Return the queues, or the one of this name, that have dead letters."""
        return [name for name, counts in self._some(connection, queue) if counts.dead]

    def known(self, connection: Connection, idents: Sequence[str]) -> list[Letter]:
        """Return the letters with these ids whose places are remembered, and that are still there."""
        places = [place for ident in idents if (place := self._places.get(ident)) is not None]
        jobs = [job for _, job in places]
        found = about(connection, b"peek", jobs)
        counted = ask_counters(connection, jobs)
        return [
            read_letter(connection, queue, job, self._clock)
            for (queue, _), answer, counters in zip(places, found, counted, strict=True)
            if counters and counters.state == "buried" and (job := job_of(connection, answer)) is not None
        ]

    def _remember(self, letters: Iterable[Letter]) -> None:
        if len(self._places) > MAX_REMEMBERED_PLACES:
            self._places.clear()
        self._places.update((letter.record.id, (letter.message.queue, letter.job)) for letter in letters)


def require_dead(where: MessageFilter) -> None:
    """Raise `Unsupported` when only live messages are meant."""
    if where.states and State.DEAD not in where.states:
        raise Unsupported(
            "beanstalkd shows no messages that are alive (Capabilities.lists_live): look at their numbers in the"
            " queue's stats; dead letters can be listed"
        )


def is_queue(name: str) -> bool:
    """Return whether a queue can have this name: one that another program gave may even inject a command."""
    try:
        check_queue(name)
    except InvalidJob:
        return False
    return True
