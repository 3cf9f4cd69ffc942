"""Dead letters: the buried jobs of a tube, and the walk over them.

beanstalkd shows only the first of a tube's buried jobs. To see all, they are rotated: the first is reserved by its
number and buried again after the last, until the first comes up again. So the order stays. Each step is one round trip.
Others may do the same meanwhile: a job that another administrator holds during a step is passed over.

While reserved, a job belongs to the connection. If that breaks, the job is ready, with its dead mark: the next client
to reserve it buries it again. A job of another program has no mark; it goes to a pool, which rejects it.
"""

from __future__ import annotations

from dataclasses import dataclass

import greenstalk

from jobpool.broker.values import Message, MessageFilter, State
from jobpool.clock import Clock
from jobpool.errors import MalformedEnvelope
from jobpool.message.envelope import JobEnvelope, decode
from jobpool_backends.beanstalk.answers import ask_counters, ask_tube_stats, job_of, none_if_missing, number
from jobpool_backends.beanstalk.connection import Answer, Connection
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_backends.shared import matches, micros

MAX_WALK_STEPS = 100_000
"""With more dead letters in a queue the next walk continues after them."""

MAX_ORDERED_LETTERS = 1000
"""A walk over no more than these goes on to its end for the sake of their order, even if it has found enough."""

FOREIGN_REASON = "buried"
"""Reason of a dead letter that another program buried."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        job: The server's number; it grows with the time of death.
        priority: The server's.
        message: Its handler is "" if the body is not an envelope.
    """

    job: int
    record: Record
    priority: int
    message: Message

    def burial(self) -> list[bytes]:
        """Return the commands that bury it, after all others. They do nothing if another client holds it by now."""
        return [b"reserve-job %d" % self.job, b"bury %d %d" % (self.job, self.priority)]

    def matches(self, where: MessageFilter, now: float) -> bool:
        """Return whether a filter means this one."""
        message = self.message
        age = micros(now) - micros(message.died_at or 0.0)
        return matches(message, where, age, message.last_error, message.cause)


def read_letter(connection: Connection, queue: str, job: greenstalk.Job[bytes], clock: Clock) -> Letter:
    """Return a buried job as a dead letter. A job without an envelope costs a round trip."""
    record, body = from_bytes(job.body, job.id)
    handler, priority, enqueued_at = "", 0, record.enqueued_at
    envelope = _read_envelope(body) if record.ours else None
    if envelope is not None:
        handler, priority = envelope.job, envelope.priority
    else:
        [counters] = ask_counters(connection, [job.id])
        priority = counters.priority if counters else 0
        if not record.ours:
            enqueued_at = clock.wall() - (counters.age if counters else 0)
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
        reason=record.reason if record.is_dead else FOREIGN_REASON,
        last_error=record.last_error,
        cause=record.cause,
        died_at=enqueued_at if record.died_at is None else record.died_at,
        cursor=str(job.id),
    )
    return Letter(job.id, record, priority, message)


def _read_envelope(body: bytes) -> JobEnvelope | None:
    try:
        return decode(body, attempts=0)
    except MalformedEnvelope:
        return None


class Walk:
    """One walk through the dead letters of a queue, each shown once. `letter` is at hand; None: the walk is over."""

    def __init__(self, connection: Connection, queue: str, clock: Clock) -> None:
        self.letter: Letter | None = None
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
            none_if_missing(self._connection, answer)
        self._steps -= 1
        job = job_of(self._connection, peeked)
        if self._steps <= 0:
            job = None
        self.letter = read_letter(self._connection, self._queue, job, self._clock) if job else None

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
        [stats] = ask_tube_stats(self._connection, [self._tube])
        return number(stats, "current-jobs-buried")


def _rotation(letter: Letter) -> list[bytes]:
    """Return the commands that put the letter after the last, and peek at the new first one."""
    return [*letter.burial(), b"peek-buried"]
