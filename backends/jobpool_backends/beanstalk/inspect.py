"""The administrator's view: counts, queues, dead letters.

beanstalkd counts the jobs of a tube, and shows the first that is ready, delayed or buried. So live messages are counted
and not listed. Dead letters, which are buried jobs, are rotated: the first is reserved by its number and buried again
after the last. When it comes up again, all were seen, and the order stays. Each step is one round trip. Others may do
the same meanwhile: a job that another administrator holds during a step is passed over. The places of letters shown
before are remembered, so asking for one again costs one round trip.

While reserved, a job belongs to the connection. If that breaks, the job is ready, with its dead mark: the next client
to reserve it buries it again. A job of another program has no mark; it goes to a pool, which rejects it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import greenstalk
from msgspec import Struct

from jobpool.broker import parts
from jobpool.broker.values import Message, MessageFilter, QueueStats, State
from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope, Unsupported
from jobpool.message.envelope import MAX_BODY_BYTES, decode
from jobpool.message.names import is_queue
from jobpool_backends.beanstalk.connection import Connection, number
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.records import from_bytes
from jobpool_backends.shared import is_meant

MAX_REMEMBERED_PLACES = 10_000
MAX_WALK_STEPS = 100_000  # with more dead letters in a queue the next walk continues after them
# A walk over no more than these goes on to its end for the sake of their order, even if it has found enough.
MAX_ORDERED_LETTERS = 1000
FOREIGN_REASON = "buried"  # reason of a dead letter that another program buried


class DeadLetter(Struct, frozen=True):
    """One dead letter."""

    job: int  # the server's number; it grows with the time of death
    priority: int  # the server's
    message: Message  # its handler is "" if the body is not an envelope

    def burial(self) -> list[bytes]:
        """Return the commands that bury it, after all others. They do nothing if another client holds it by now."""
        return [b"reserve-job %d" % self.job, b"bury %d %d" % (self.job, self.priority)]


def read_dead_letter(connection: Connection, queue: str, job: greenstalk.Job[bytes], clock: Clock) -> DeadLetter:
    """Return a buried job as a dead letter. A job without an envelope costs a round trip."""
    record, body = from_bytes(job.body, job.id)
    handler, enqueued_at = "", record.enqueued_at
    envelope = None
    if record.ours:
        with suppress(MalformedEnvelope):
            envelope = decode(body, attempts=0)
    if envelope is not None:
        handler, priority = envelope.job, envelope.priority
    else:
        [counters] = connection.counters([job.id])
        priority = counters.priority if counters else 0
        if not record.ours:
            enqueued_at = clock.wall() - (counters.age if counters else 0)
    reason, error = record.reason, record.last_error
    if not record.is_dead:  # without a header, or room for one, nobody can say more
        is_rejected = len(body) > MAX_BODY_BYTES
        reason = "rejected" if is_rejected else FOREIGN_REASON
        error = f"the body has {len(body)} bytes; at most {MAX_BODY_BYTES}" if is_rejected else error
    message = Message(
        id=record.id,
        queue=queue,
        state=State.DEAD,
        handler=handler,
        priority=min(priority, 255),
        attempts=record.attempts,
        crashes=record.crashes,
        deliveries=record.deliveries,
        enqueued_at=enqueued_at,
        available_at=enqueued_at,
        body=body,
        reason=reason,
        last_error=error,
        cause=record.cause,
        died_at=enqueued_at if record.died_at is None else record.died_at,
        cursor=str(job.id),
    )
    return DeadLetter(job.id, priority, message)


class Walk:
    """One walk through the dead letters of a queue, each shown once. `letter` is at hand; None: the walk is over."""

    def __init__(self, connection: Connection, queue: str, clock: Clock) -> None:
        self.letter: DeadLetter | None = None
        self._connection = connection
        self._queue = queue
        self._clock = clock
        self._tube = connection.address.tube(queue)
        self._kept: set[int] = set()
        self._again = False
        self._steps = MAX_WALK_STEPS + 1
        connection.use(self._tube)
        self.skip()

    def keep(self) -> None:
        """Leave the letter at hand, behind the last, and go on."""
        assert self.letter is not None
        self._kept.add(self.letter.job)
        self._go_on(self.letter.burial())

    def skip(self) -> None:
        """Go on when the letter at hand was taken away."""
        self._go_on([])

    def end(self) -> None:
        """End the walk before it is over. Where there are few letters, their order is made what it was."""
        if self.letter is not None and self._kept and self._count() <= MAX_ORDERED_LETTERS:
            while self.letter is not None:
                self.keep()
        self.letter = None

    def _go_on(self, commands: list[bytes]) -> None:
        """Send the commands, and take in hand the first letter after them that was not shown yet."""
        self._show(commands)
        while self.letter is not None and self.letter.job in self._kept:
            if self._is_over():
                self.letter = None
            else:
                self._show(self.letter.burial())

    def _show(self, commands: list[bytes]) -> None:
        *others, peeked = self._connection.burst([*commands, b"peek-buried"])
        for answer in others:  # a server that cannot bury is in no state to be walked through
            self._connection.found(answer)
        self._steps -= 1
        job = self._connection.job(peeked) if self._steps > 0 else None
        self.letter = read_dead_letter(self._connection, self._queue, job, self._clock) if job else None

    def _is_over(self) -> bool:
        """Return whether all have been shown, when one comes up again. If others came in, it goes once more round."""
        if not self._again:
            unseen = self._count() - len(self._kept)
            self._steps = min(self._steps, len(self._kept) + unseen)
            self._again = unseen > 0
        return not self._again

    def _count(self) -> int:
        return number(self._connection.stats([self._tube])[0], "current-jobs-buried")


class Inspector(parts.Inspector):
    """The view of queues. Nothing is left reserved."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._clock = connections.clock
        self._places: dict[str, tuple[str, int]] = {}

    # --- counts --------------------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        with self._connections.spare() as connection:
            [counts] = self._counts(connection, [queue])
            return replace(counts, oldest=self._age_of_next(connection, queue)) if counts.waiting else counts

    def queues(self) -> list[str]:
        with self._connections.spare() as connection:
            return [name for name, counts in self._each(connection, None) if counts.pending or counts.dead]

    def count(self, where: MessageFilter, cap: int) -> int:
        """Return how many dead letters match, up to `cap`."""
        require_dead(where)
        with self._connections.spare() as connection:
            if where == MessageFilter(queue=where.queue, states=where.states):
                return min(cap, sum(counts.dead for _, counts in self._each(connection, where.queue)))
            return min(cap, sum(1 for _ in self._matching(connection, where)))

    def _each(self, connection: Connection, queue: str | None) -> list[tuple[str, QueueStats]]:
        """Return the counts of each queue, or of one."""
        found = map(self._connections.address.queue, connection.tubes()) if queue is None else [queue]
        names = sorted(filter(is_queue, found))
        return list(zip(names, self._counts(connection, names), strict=True))

    def _counts(self, connection: Connection, queues: Collection[str]) -> list[QueueStats]:
        """Return counts of queues. Jobs that are reserved for a waiter are waiting, too."""
        told = connection.stats(map(self._connections.address.tube, queues))
        result = []
        for queue, stats in zip(queues, told, strict=True):
            states = ("ready", "delayed", "reserved", "buried")
            ready, delayed, reserved, buried = (number(stats, f"current-jobs-{state}") for state in states)
            prefetched = min(reserved, self._connections.prefetched(queue))
            result.append(QueueStats(ready + prefetched, delayed, reserved - prefetched, buried))
        return result

    def _age_of_next(self, connection: Connection, queue: str) -> float | None:
        """Return seconds since the enqueue of the message that is next, which is the oldest of the most urgent."""
        connection.use(self._connections.address.tube(queue))
        job = connection.job(connection.burst([b"peek-ready"])[0])
        if job is None:
            return None
        record, _ = from_bytes(job.body, job.id)
        if record.ours:
            return max(0.0, self._clock.wall() - record.enqueued_at)
        [counters] = connection.counters([job.id])
        return float(counters.age) if counters else None

    # --- dead letters --------------------------------------------------------------------------------

    def page(self, where: MessageFilter, after: int, limit: int, _largest: int = 0) -> list[Message]:
        """Return up to `limit` dead letters after the cursor `after`, the first that died first."""
        require_dead(where)
        with self._connections.spare() as connection:
            found = (letter for letter in self._matching(connection, where) if letter.job > after)
            letters = heapq.nsmallest(limit, found, key=lambda letter: letter.job)
        if len(self._places) > MAX_REMEMBERED_PLACES:
            self._places.clear()
        self._places.update((letter.message.id, (letter.message.queue, letter.job)) for letter in letters)
        return [letter.message for letter in letters]

    def _matching(self, connection: Connection, where: MessageFilter) -> Iterator[DeadLetter]:
        """Yield the matching letters, in any order; with ids, only those, until all of them are found."""
        now = self._clock.wall()
        known = [letter for letter in self.known(connection, where.ids) if is_meant(letter.message, where, now)]
        yield from known
        wanted = set(where.ids).difference(letter.message.id for letter in known)
        if where.ids and not wanted:
            return
        shown = {letter.job for letter in known}
        for queue in self.with_letters(connection, where.queue):
            now = self._clock.wall()
            walk = Walk(connection, queue, self._clock)
            while (letter := walk.letter) is not None:
                walk.keep()
                if letter.job not in shown and is_meant(letter.message, where, now):
                    yield letter
                    wanted.discard(letter.message.id)
                    if where.ids and not wanted:
                        walk.end()

    def with_letters(self, connection: Connection, queue: str | None) -> list[str]:
        """Return the queues, or the one of this name, that have dead letters."""
        return [name for name, counts in self._each(connection, queue) if counts.dead]

    def known(self, connection: Connection, idents: Sequence[str]) -> list[DeadLetter]:
        """Return the letters with these ids whose places are remembered, and that are still there."""
        places = [place for ident in idents if (place := self._places.get(ident)) is not None]
        found = connection.burst([b"peek %d" % job for _, job in places])
        counted = connection.counters([job for _, job in places])
        return [
            read_dead_letter(connection, queue, job, self._clock)
            for (queue, _), answer, counters in zip(places, found, counted, strict=True)
            if counters and counters.state == "buried" and (job := connection.job(answer)) is not None
        ]


def foreign_queues(connection: Connection) -> list[str]:
    """Return the queues whose first jobs are all of other programs, sorted. Blocks for two round trips a tube."""
    foreign, found = [], map(connection.address.queue, connection.tubes())
    for queue in sorted(filter(is_queue, found)):
        connection.use(connection.address.tube(queue))
        peeked = map(connection.job, connection.burst([b"peek-ready", b"peek-delayed", b"peek-buried"]))
        jobs = [job for job in peeked if job is not None]
        if jobs and not any(from_bytes(job.body, job.id)[0].ours for job in jobs):
            foreign.append(queue)
    return foreign


def require_dead(where: MessageFilter) -> None:
    """Raise `Unsupported` when only live messages are meant."""
    if where.states and State.DEAD not in where.states:
        raise Unsupported(
            "beanstalkd shows no messages that are alive (Capabilities.lists_live): look at their numbers in the"
            " queue's stats; dead letters can be listed"
        )
