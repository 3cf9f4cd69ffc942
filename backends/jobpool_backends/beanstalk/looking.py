"""The administrator's view: counts, queues, dead letters.

beanstalkd counts the jobs of a tube, and shows the first that is ready, delayed or buried. So live messages are counted
and not listed. Dead letters are listed by a walk (dead.py), which costs a round trip for each dead letter of the queue.
The places of letters shown before are remembered, so asking for one again costs one round trip.
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
from jobpool_backends.beanstalk.asking import Stats, about, counters_of, job_of, names_of, number, stats_of
from jobpool_backends.beanstalk.dead import Letter, Reader, Walk
from jobpool_backends.beanstalk.line import Line
from jobpool_backends.beanstalk.lines import Lines
from jobpool_backends.beanstalk.records import from_bytes

REMEMBERED = 10_000
"""Dead letters whose place is remembered."""


class Looker:
    """The view of queues.

    Args:
        lines: To the server; nothing is left reserved on one.
        clock: Its wall clock tells ages.
    """

    def __init__(self, lines: Lines, clock: Clock) -> None:
        self._lines = lines
        self._clock = clock
        self.reader = Reader(lines, clock.wall)
        self._places: dict[str, tuple[str, int]] = {}

    # --- counts --------------------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue."""
        if not is_queue(queue):
            return QueueStats()
        with self._lines.spare() as line:
            [counts] = self._counts(line, [queue])
            return replace(counts, oldest=self._age_of_next(line, queue)) if counts.waiting else counts

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        with self._lines.spare() as line:
            return [name for name, counts in self._each(line) if counts.pending or counts.dead]

    def count(self, where: MessageFilter, cap: int) -> int:
        """Return how many dead letters match, up to `cap`."""
        require_dead(where)
        if where == MessageFilter(queue=where.queue, states=where.states):
            with self._lines.spare() as line:
                return min(cap, sum(counts.dead for _, counts in self._some(line, where.queue)))
        with self._lines.spare() as line:
            return min(cap, sum(1 for _ in self._matching(line, where)))

    def _each(self, line: Line) -> list[tuple[str, QueueStats]]:
        tubes = names_of(self._lines, line.burst([b"list-tubes"])[0])
        names = sorted(name for tube in tubes if (name := self._lines.address.queue(tube)) and is_queue(name))
        return list(zip(names, self._counts(line, names), strict=True))

    def _some(self, line: Line, queue: str | None) -> list[tuple[str, QueueStats]]:
        if queue is None:
            return self._each(line)
        return [(queue, self._counts(line, [queue])[0])] if is_queue(queue) else []

    def _counts(self, line: Line, queues: Collection[str]) -> list[QueueStats]:
        tubes = [self._lines.address.tube(queue) for queue in queues]
        answers = line.burst([b"stats-tube %b" % tube.encode() for tube in tubes])
        told = [_queue_stats(stats_of(self._lines, answer)) for answer in answers]
        return [self._unstashed(queue, counts) for queue, counts in zip(queues, told, strict=True)]

    def _unstashed(self, queue: str, counts: QueueStats) -> QueueStats:
        """Count jobs that were reserved for a waiter and not handed out yet as waiting."""
        stashed = min(counts.leased, self._lines.stashed(queue))
        return replace(counts, waiting=counts.waiting + stashed, leased=counts.leased - stashed) if stashed else counts

    def _age_of_next(self, line: Line, queue: str) -> float | None:
        """Return seconds since the enqueue of the message that is next, which is the oldest of the most urgent."""
        line.use(self._lines.address.tube(queue))
        job = job_of(self._lines, line.burst([b"peek-ready"])[0])
        if job is None:
            return None
        record, _ = from_bytes(job.body, job.id)
        if record.ours:
            return max(0.0, self._clock.wall() - record.enqueued_at)
        [counters] = counters_of(self._lines, line, [job.id])
        return float(counters.age) if counters else None

    # --- dead letters --------------------------------------------------------------------------------

    def page(self, where: MessageFilter, after: int, limit: int) -> list[Message]:
        """Return up to `limit` dead letters after the cursor `after`, the first that died first."""
        require_dead(where)
        found: list[tuple[int, Letter]] = []
        with self._lines.spare() as line:
            for letter in self._matching(line, where):
                if letter.job > after:
                    push = heapq.heappush if len(found) < limit else heapq.heappushpop
                    push(found, (-letter.job, letter))
        letters = [letter for _, letter in sorted(found, key=itemgetter(0), reverse=True)]
        self._remember(letters)
        return [letter.message() for letter in letters]

    def inspect(self, ident: str) -> Message | None:
        """Return the dead letter with this id; of several the first that died."""
        with self._lines.spare() as line:
            found = list(self._matching(line, MessageFilter(ids=(ident,))))
        self._remember(found)
        return min(found, key=lambda letter: letter.job).message() if found else None

    def _matching(self, line: Line, where: MessageFilter) -> Iterator[Letter]:
        """Yield the matching letters, in any order; with ids, only those, until all of them are found."""
        now = self._clock.wall()
        known = [letter for letter in self.known(line, where.ids) if letter.matches(where, now)]
        yield from known
        wanted = set(where.ids).difference(letter.record.id for letter in known)
        if where.ids and not wanted:
            return
        for queue in self.with_letters(line, where.queue):
            yield from self._walk(line, queue, where, wanted, {letter.job for letter in known})

    def _walk(
        self, line: Line, queue: str, where: MessageFilter, wanted: set[str], known: Collection[int]
    ) -> Iterator[Letter]:
        now = self._clock.wall()
        walk = Walk(line, queue, self.reader)
        while (letter := walk.letter) is not None:
            walk.keep()
            if letter.job not in known and letter.matches(where, now):
                yield letter
                wanted.discard(letter.record.id)
                if where.ids and not wanted:
                    walk.end()

    def with_letters(self, line: Line, queue: str | None) -> list[str]:
        """Return the queues, or the one of this name, that have dead letters."""
        return [name for name, counts in self._some(line, queue) if counts.dead]

    def known(self, line: Line, idents: Sequence[str]) -> list[Letter]:
        """Return the letters with these ids whose places are remembered, and that are still there."""
        places = [place for ident in idents if (place := self._places.get(ident)) is not None]
        jobs = [job for _, job in places]
        found = about(line, b"peek", jobs)
        counted = counters_of(self._lines, line, jobs)
        return [
            self.reader.letter(line, queue, job)
            for (queue, _), answer, counters in zip(places, found, counted, strict=True)
            if counters and counters.state == "buried" and (job := job_of(self._lines, answer)) is not None
        ]

    def _remember(self, letters: Iterable[Letter]) -> None:
        if len(self._places) > REMEMBERED:
            self._places.clear()
        self._places.update((letter.record.id, (letter.queue, letter.job)) for letter in letters)


def require_dead(where: MessageFilter) -> None:
    """Raise `Unsupported` when only live messages are meant."""
    if where.states and State.DEAD not in where.states:
        raise Unsupported(
            "beanstalkd shows no messages that are alive (Capabilities.lists_live): look at their numbers in the"
            " queue's stats; dead letters can be listed"
        )


def _queue_stats(stats: Stats) -> QueueStats:
    states = ("ready", "delayed", "reserved", "buried")
    return QueueStats(*(number(stats, f"current-jobs-{state}") for state in states))


def is_queue(name: str) -> bool:
    """Return whether a queue can have this name. Names given by other programs or people may be invalid, or even inject
    a command.
    """
    try:
        check_queue(name)
    except InvalidJob:
        return False
    return True
