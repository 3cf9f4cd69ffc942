"""Putting copies, dead ones too.

A header cannot be changed, so a dead letter is a copy; and only reserved jobs can be buried. So the copy is put with a
long delay, reserved by its number, and buried. A crash in between leaves a job with a dead mark that is due some day:
the next client to meet it buries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import greenstalk

from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.protocol import Answer, put_command

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
