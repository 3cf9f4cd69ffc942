"""One verb, done to dead letters one after the other; those to be raised a piece at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby

import greenstalk

from jobpool.broker.values import Verb
from jobpool_backends.beanstalk.answers import about, counters_of, told
from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.counters import Counters
from jobpool_backends.beanstalk.dead_letters import Letter
from jobpool_backends.beanstalk.protocol import Answer, put_command
from jobpool_backends.beanstalk.records import Record, from_bytes, to_bytes

LETTERS_RAISED_AT_ONCE = 100
"""Messages that are raised at once."""

BYTES_RAISED_AT_ONCE = 4 * 2**20
"""The same, in bytes: more, but for the last message of a piece, is never in memory."""

Job = greenstalk.Job[bytes]


class LetterChanges:
    """The state of one call.

    Attributes:
        changed: How many letters so far; those that `finish` is still to raise among them.
    """

    def __init__(self, connections: Connections, connection: Connection, verb: Verb, limit: int) -> None:
        self.changed = 0
        self._connections = connections
        self._connection = connection
        self._verb = verb
        self._limit = limit
        self._taken: list[tuple[Letter, Job]] = []
        self._bytes = 0

    @property
    def is_done(self) -> bool:
        """True if the limit of changes is reached."""
        return self.changed >= self._limit

    def change(self, letter: Letter) -> None:
        """Delete the letter, or reserve it so that it can be raised; nothing when somebody else has it by now."""
        command = b"delete" if self._verb is Verb.DELETE else b"reserve-job"
        answer = told(self._connections, about(self._connection, command, [letter.job])[0])
        self.changed += answer is not None
        if isinstance(answer, greenstalk.Job):
            self._taken.append((letter, answer))
            self._bytes += len(answer.body)
            if len(self._taken) >= LETTERS_RAISED_AT_ONCE or self._bytes >= BYTES_RAISED_AT_ONCE:
                self.finish()

    def finish(self) -> None:
        """Raise what was reserved. Where the server takes no copy of some, those are buried again, and it raises."""
        taken, self._taken, self._bytes = self._taken, [], 0
        refused = [
            answer
            for queue, group in groupby(taken, key=lambda pair: pair[0].queue)
            for answer in self._raise(queue, [job for _, job in group])
        ]
        if refused:
            raise self._connections.put_refusal(refused[0])

    def give_up(self) -> None:
        """Bury again what was reserved: something else is in the way."""
        taken, self._taken = self._taken, []
        self._connection.burst([b"bury %d %d" % (letter.job, letter.priority) for letter, _ in taken])

    def _raise(self, queue: str, jobs: Sequence[Job]) -> list[Answer]:
        """Put copies, and only then delete what they are copies of; the answers that are refusals."""
        connection = self._connection
        connection.use(self._connections.address.tube(queue))
        counted = counters_of(self._connections, connection, [job.id for job in jobs])
        held = [(job, counters) for job, counters in zip(jobs, counted, strict=True) if counters is not None]
        answers = connection.burst([self._copy(job, counters) for job, counters in held])
        then = (_then(job, counters, answer) for (job, counters), answer in zip(held, answers, strict=True))
        connection.burst(list(chain.from_iterable(then)))
        return [answer for answer in answers if not _is_done(answer)]

    def _copy(self, job: Job, counters: Counters) -> bytes:
        """Return the command that raises it. A job of another program is copied unchanged."""
        record, body = from_bytes(job.body, job.id)
        if not record.ours:
            return b"release %d %d 0" % (job.id, counters.priority)
        packed = to_bytes(raised(record, self._verb), body, len(job.body))
        return put_command(counters.priority, 0, counters.ttr, packed)


def raised(record: Record, verb: Verb) -> Record:
    """Return the header of a letter that is raised: `RETRY` forgets how it failed."""
    alive = replace(record, reason=None, died_at=None, begun=True)
    if verb is Verb.RESUME:
        return alive
    return replace(alive, attempts=0, crashes=0, crashed_at=0.0, last_error=None, cause=None)


def _is_done(answer: Answer) -> bool:
    """Return whether a copy was put, or the job itself released. One that was buried at once is none."""
    return isinstance(answer, tuple) and answer[0] in (b"INSERTED", b"RELEASED")


def _then(job: Job, counters: Counters, answer: Answer) -> list[bytes]:
    """Return the commands for the letter, given the answer to its copy."""
    again = b"bury %d %d" % (job.id, counters.priority)
    match answer:
        case (b"INSERTED", _):
            return [b"delete %d" % job.id]
        case (b"RELEASED",):
            return []
        case (b"BURIED", copy):
            return [again, b"delete %b" % copy]
        case _:
            return [again]
