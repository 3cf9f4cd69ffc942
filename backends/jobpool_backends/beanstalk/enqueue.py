"""Messages on their way in, and copies: one put for each, all of a call in one write a queue.

A header cannot be changed, so a dead letter is a copy; and only reserved jobs can be buried. So the copy is put with a
delay, reserved by its number, and buried. A crash in between leaves a job with a dead mark that is due some day: the
next client to meet it buries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import greenstalk
from msgspec import Struct

from jobpool.broker.values import NewMessage
from jobpool.errors import BackendUnavailable, InvalidJob, JobpoolError
from jobpool_backends.beanstalk.connection import Answer, Connection, number_of, put_command
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.records import HEADER_ROOM, new_bytes, whole_seconds
from jobpool_backends.shared import grouped

UNBURIED_DELAY_S = 30  # for which a dead letter that was not buried stays out of the way


class Copy(Struct, frozen=True):
    """A job to put. `delay` and `ttr` in whole seconds; a dead one has no delay of its own."""

    tube: str
    priority: int
    delay: int
    ttr: int
    packed: bytes
    dead: bool = False


def put_copies(connection: Connection, copies: Sequence[Copy], answers: dict[int, Answer]) -> None:
    """Put these jobs, of any tubes, and bury the dead ones. Called with the connection's lock taken.

    `answers` takes the answer to each put, its refusal as a value, by the copy's place. After a break those that came
    before it are there. One round trip, two more for dead ones, and one for each tube after the first.
    """
    for tube, places in grouped(range(len(copies)), lambda place: copies[place].tube).items():
        connection.use(tube)
        told: list[Answer] = []
        theirs = [(copy, UNBURIED_DELAY_S if copy.dead else copy.delay) for copy in map(copies.__getitem__, places)]
        try:
            connection.burst([put_command(copy.priority, delay, copy.ttr, copy.packed) for copy, delay in theirs], told)
        finally:
            answers |= zip(places, told, strict=False)
    dead = [
        (n, copy) for place, copy in enumerate(copies) if copy.dead and (n := number_of(answers[place])) is not None
    ]
    # One that cannot be reserved is held by another client, which buries it too.
    reserved = connection.burst([b"reserve-job %d" % number for number, _ in dead])
    mine = (one for one, answer in zip(dead, reserved, strict=True) if isinstance(answer, greenstalk.Job))
    connection.burst([b"bury %d %d" % (number, copy.priority) for number, copy in mine])


def add(connections: Connections, messages: Sequence[NewMessage]) -> None:
    """Put these messages. Raises InvalidJob: nothing was put; or BackendUnavailable, with how many were put."""
    copies = new_copies(connections, messages)
    answers: dict[int, Answer] = {}
    is_sent = False
    try:
        with connections.spare() as connection:
            is_sent = True
            put_copies(connection, copies, answers)
    except BackendUnavailable as error:
        if is_sent and len(messages) == 1:
            raise type(error)(f"{error}; the job may be enqueued all the same") from None
        raise _partly(error, answers, len(messages)) from None
    refused = [answer for answer in answers.values() if number_of(answer) is None]
    if refused:
        raise _partly(connections.put_refusal(refused[0]), answers, len(messages))


def new_copies(connections: Connections, messages: Sequence[NewMessage], since: float | None = None) -> list[Copy]:
    """Return the jobs to put for these messages, enqueued at this Unix time, or now. Raises as `add`."""
    address = connections.address
    largest = connections.max_job_size()
    if any(len(message.body) + HEADER_ROOM > largest for message in messages):
        largest = connections.max_job_size(anew=True)  # an operator may have raised -z meanwhile
    now = connections.clock.wall()
    copies = []
    for message in messages:
        if len(message.body) + HEADER_ROOM > largest:
            raise InvalidJob(
                f"the body of job {message.id} for {message.handler!r} has {len(message.body)} bytes, and"
                f" {address.title} takes {max(0, largest - HEADER_ROOM)} at most: make its payload smaller, or start"
                " the server with a larger -z"
            )
        delay = 0 if message.due is None else whole_seconds(round(message.due - now, 6))
        packed = new_bytes(message, now if since is None else since, now, largest)
        copies.append(Copy(address.tube(message.queue), message.priority, delay, address.ttr, packed))
    return copies


def _partly(error: JobpoolError, answers: Mapping[int, Answer], total: int) -> JobpoolError:
    """Return the error, with how many of a call's jobs are there all the same."""
    done = sum(number_of(answer) is not None for answer in answers.values())
    return error if total == 1 else type(error)(f"{error}; of the last {total} jobs {done} are enqueued for certain")
