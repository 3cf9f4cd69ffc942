"""Messages on their way in: one put for each, all of a call in one write a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobpool.broker.values import NewMessage
from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.dying import Copy, number_of, put_copies
from jobpool_backends.beanstalk.protocol import Answer
from jobpool_backends.beanstalk.reap import whole_seconds
from jobpool_backends.beanstalk.records import HEADER_ROOM, new_bytes


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
