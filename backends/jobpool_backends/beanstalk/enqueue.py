"""Putting copies, dead ones too.

A header cannot be changed, so a dead letter is a copy; and only reserved jobs can be buried. So the copy is put with a
long delay, reserved by its number, and buried. A crash in between leaves a job with a dead mark that is due some day:
the next client to meet it buries it.

Messages on their way in: one put for each, all of a call in one write a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import greenstalk

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.connection import Answer, Connection, put_command
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.reap import whole_seconds
from jobpool_backends.beanstalk.records import HEADER_ROOM, new_bytes

UNBURIED_DELAY_S = 30
"""Seconds for which a dead letter that was not buried stays out of the way."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A job to put. `delay` and `ttr` in whole seconds; a dead one has no delay of its own."""

    tube: str
    priority: int
    delay: int
    ttr: int
    packed: bytes
    dead: bool = False


def put_copies(connection: Connection, copies: Sequence[Copy], answers: dict[int, Answer]) -> None:
    """Put these jobs, and bury the dead ones.

    Args:
        connection: Its lock is taken.
        copies: Of any tubes.
        answers: Takes the answer to each put, its refusal as a value, by the copy's place. After a break those that
            came before it are there.

    One round trip, two more for dead ones, and one for each tube after the first.
    """
    by_tube: dict[str, list[int]] = {}
    for place, copy in enumerate(copies):
        by_tube.setdefault(copy.tube, []).append(place)
    for tube, places in by_tube.items():
        connection.use(tube)
        told: list[Answer] = []
        try:
            connection.burst([_put(copies[place]) for place in places], told)
        finally:
            answers |= zip(places, told, strict=False)
    _bury(connection, [(copy, number_of(answers[place])) for place, copy in enumerate(copies) if copy.dead])


def number_of(answer: Answer) -> int | None:
    """Return the server's number of what was put; None when it was refused.

    A server that is out of memory buries what it has put: that is a refusal too, and the caller says so.
    """
    return int(answer[1]) if isinstance(answer, tuple) and answer[0] == b"INSERTED" else None


def _put(copy: Copy) -> bytes:
    return put_command(copy.priority, UNBURIED_DELAY_S if copy.dead else copy.delay, copy.ttr, copy.packed)


def _bury(connection: Connection, put: Sequence[tuple[Copy, int | None]]) -> None:
    """Bury the jobs that were put. One that cannot be reserved is held by another client, which buries it too."""
    numbers = [(copy, number) for copy, number in put if number is not None]
    reserved = connection.burst([b"reserve-job %d" % number for _, number in numbers])
    connection.burst(
        [
            b"bury %d %d" % (number, copy.priority)
            for (copy, number), answer in zip(numbers, reserved, strict=True)
            if isinstance(answer, greenstalk.Job)
        ]
    )


class Enqueuer:
    """The adder of messages.

    Args:
        connections: To the server.
        clock: Its wall clock tells what is due, and dates enqueues.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def add(self, messages: Sequence[NewMessage]) -> None:
        """Put these messages, in their order.

        Raises:
            InvalidJob: One is larger than the server takes; nothing was put.
            BackendUnavailable: The text says how many are there for certain.
        """
        copies = self.copies(messages)
        answers: dict[int, Answer] = {}
        try:
            with self._connections.spare() as connection:
                put_copies(connection, copies, answers)
        except BackendUnavailable as error:
            raise _partly(error, _number_put(answers), len(messages)) from error
        self._check(answers, len(messages))

    def copies(self, messages: Sequence[NewMessage], since: float | None = None) -> list[Copy]:
        """Return the jobs to put for these messages, enqueued at this Unix time, or now. Raises as `add`."""
        largest = self._connections.max_job_size()
        if any(len(message.body) + HEADER_ROOM > largest for message in messages):
            largest = self._connections.max_job_size(anew=True)  # somebody may have raised -z meanwhile
        now = self._clock.wall()
        return [self._copy(message, now, now if since is None else since, largest) for message in messages]

    def _copy(self, message: NewMessage, now: float, since: float, largest: int) -> Copy:
        if len(message.body) + HEADER_ROOM > largest:
            raise InvalidJob(
                f"the body of job {message.id} for {message.handler!r} has {len(message.body)} bytes, and"
                f" {self._connections.address.title} takes {max(0, largest - HEADER_ROOM)} at most: make its payload smaller,"
                " or start the server with a larger -z"
            )
        address = self._connections.address
        delay = 0 if message.due is None else whole_seconds(round(message.due - now, 6))
        packed = new_bytes(message, since, now, largest)
        return Copy(address.tube(message.queue), message.priority, delay, address.ttr, packed)

    def _check(self, answers: Mapping[int, Answer], total: int) -> None:
        """Raise where any was refused."""
        refused = [answer for answer in answers.values() if number_of(answer) is None]
        if refused:
            raise _partly(self._connections.put_refusal(refused[0]), _number_put(answers), total)


def _number_put(answers: Mapping[int, Answer]) -> int:
    return sum(number_of(answer) is not None for answer in answers.values())


def _partly(error: JobpoolError, done: int, total: int) -> JobpoolError:
    """Return the error, with how many of a call's jobs are there all the same."""
    return error if total == 1 else type(error)(f"{error}; of {total} jobs {done} are enqueued for certain")
