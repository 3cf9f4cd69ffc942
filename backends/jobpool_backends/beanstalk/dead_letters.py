"""Dead letters: the buried jobs of a tube, and the walk over them.

beanstalkd shows only the first of a tube's buried jobs. To see all, they are rotated: the first is reserved by its
number and buried again after the last, until the first comes up again. So the order stays. Each step is one round trip.
Others may do the same meanwhile: a job that another administrator holds during a step is passed over.

While reserved, a job belongs to the connection. If that breaks, the job is ready, with its dead mark: the next client
to reserve it buries it again. A job of another program has no mark; it goes to a pool, which rejects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import greenstalk

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.errors import MalformedEnvelope
from jobpool.message.envelope import JobEnvelope, decode
from jobpool_backends.beanstalk.answers import counters_of, job_of, number, stats_of, told
from jobpool_backends.beanstalk.connection import Answer, Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_backends.shared import contains, micros

MAX_WALK_STEPS = 100_000
"""With more dead letters in a queue the next walk continues after them."""

MAX_ORDERED_LETTERS = 1000
"""Up to which a walk that has found what it wanted goes on to its end, for the sake of their order."""

FOREIGN_REASON = "buried"


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        job: The server's number; it grows with the time of death.
        handler: "" if the body is not an envelope.
        enqueued_at: Unix time.
    """

    job: int
    queue: str
    record: Record
    body: bytes
    handler: str
    priority: int
    enqueued_at: float

    @property
    def reason(self) -> str | None:
        """Reason of its death; of a letter that another program buried, a word of ours."""
        return self.record.reason if self.record.is_dead else FOREIGN_REASON

    @property
    def died_at(self) -> float:
        """Unix time; of another program's, since when it is there."""
        return self.enqueued_at if self.record.died_at is None else self.record.died_at

    def message(self) -> Message:
        """Return the message as an administrator sees it."""
        record = self.record
        return Message(
            id=record.id,
            queue=self.queue,
            state=State.DEAD,
            handler=self.handler,
            priority=min(self.priority, 255),
            attempts=record.attempts,
            crashes=record.crashes,
            deliveries=record.deliveries,
            enqueued_at=self.enqueued_at,
            available_at=self.enqueued_at,
            body=self.body,
            reason=self.reason,
            last_error=record.last_error,
            cause=record.cause,
            died_at=self.died_at,
            cursor=str(self.job),
        )

    def burial(self) -> list[bytes]:
        """Return the commands that bury it, after all others. They do nothing if another client holds it by now."""
        return [b"reserve-job %d" % self.job, b"bury %d %d" % (self.job, self.priority)]

    def matches(self, where: MessageFilter, now: float) -> bool:
        """Return whether a person means this one; its state was looked at already."""
        age = micros(now) - micros(self.died_at)
        return (
            (where.queue is None or self.queue == where.queue)
            and (where.handler is None or self.handler == where.handler)
            and (where.reason is None or self.reason == where.reason)
            and (where.older_than is None or age >= micros(where.older_than))
            and (where.newer_than is None or age <= micros(where.newer_than))
            and (not where.ids or self.record.id in where.ids)
            and (where.text is None or contains(where.text, self.body, self.record.last_error, self.record.cause))
        )


class Walk:
    """One walk through the dead letters of a queue, each shown once. `letter` is at hand; None: the walk is over."""

    def __init__(self, connection: Connection, queue: str, reader: Reader) -> None:
        self.letter: Letter | None = None
        self._connection = connection
        self._queue = queue
        self._reader = reader
        self._kept: set[int] = set()
        self._again = False
        self._steps = MAX_WALK_STEPS + 1
        connection.use(reader.connections.address.tube(queue))
        self.skip()

    def keep(self) -> None:
        """Leave the letter at hand, behind the last, and go on."""
        assert self.letter is not None
        self._kept.add(self.letter.job)
        self._go_on(_rotation(self.letter))

    def skip(self) -> None:
        """Go on when the letter at hand was taken away."""
        self._go_on([b"peek-buried"])

    def end(self) -> None:
        """End the walk before it is over. Where there are few letters, their order is made what it was."""
        if self.letter is not None and self._kept and self._count() <= MAX_ORDERED_LETTERS:
            while self.letter is not None:
                self.keep()
        self.letter = None

    def _go_on(self, commands: list[bytes]) -> None:
        """Send the commands, and have what the last of them peeks at at hand."""
        self._show(self._connection.burst(commands))
        while self.letter is not None and self.letter.job in self._kept:
            if self._is_over():
                self.letter = None
            else:
                self._show(self._connection.burst(_rotation(self.letter)))

    def _show(self, answers: list[Answer]) -> None:
        *others, peeked = answers
        for answer in others:  # a server that cannot bury is in no state to be walked through
            told(self._reader.connections, answer)
        self._steps -= 1
        job = job_of(self._reader.connections, peeked)
        self.letter = self._reader.letter(self._connection, self._queue, job) if job and self._steps > 0 else None

    def _is_over(self) -> bool:
        """Return whether all have been shown, when one comes up again.

        Others may have come in between, or have been in somebody's hands: then the walk goes once more round.
        """
        if not self._again:
            unseen = self._count() - len(self._kept)
            self._steps = min(self._steps, len(self._kept) + unseen)
            self._again = unseen > 0
        return not self._again

    def _count(self) -> int:
        tube = self._reader.connections.address.tube(self._queue)
        [answer] = self._connection.burst([b"stats-tube %b" % tube.encode()])
        return number(stats_of(self._reader.connections, answer), "current-jobs-buried")


class Reader:
    """A reader of dead letters. `wall` tells Unix time."""

    def __init__(self, connections: Connections, wall: Callable[[], float]) -> None:
        self.connections = connections
        self._wall = wall

    def letter(self, connection: Connection, queue: str, job: greenstalk.Job[bytes]) -> Letter:
        """Return a buried job as a dead letter. A job without an envelope costs a round trip more."""
        record, body = from_bytes(job.body, job.id)
        envelope = _envelope(body) if record.ours else None
        if envelope is not None:
            return Letter(job.id, queue, record, body, envelope.job, envelope.priority, record.enqueued_at)
        [counters] = counters_of(self.connections, connection, [job.id])
        age, priority = (counters.age, counters.priority) if counters else (0, 0)
        since = record.enqueued_at if record.ours else self._wall() - age
        return Letter(job.id, queue, record, body, "", priority, since)


def _rotation(letter: Letter) -> list[bytes]:
    """Return the commands that put the letter after the last, and peek at the new first one."""
    return [*letter.burial(), b"peek-buried"]


def _envelope(body: bytes) -> JobEnvelope | None:
    try:
        return decode(body, attempts=0)
    except MalformedEnvelope:
        return None
