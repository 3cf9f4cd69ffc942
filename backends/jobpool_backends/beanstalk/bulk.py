"""Bulk changes by an administrator.

Dead letters are raised by a copy: each is reserved by its number, so that nobody else raises it too. Then the copy is
put, and the letter is deleted. A break in between leaves the letter, and at worst the copy besides: never neither. Live
messages can only be deleted all: the first that is ready, or due next, is peeked at and deleted, again and again. A
leased message is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import greenstalk

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import Clock
from jobpool.errors import JobpoolError, Unsupported
from jobpool_backends.beanstalk.answers import Counters, about, ask_counters, job_of, none_if_missing
from jobpool_backends.beanstalk.connection import Answer, Connection, put_command
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.dead_letters import Letter, Walk, read_letter
from jobpool_backends.beanstalk.inspect import Inspector, is_queue
from jobpool_backends.beanstalk.records import Record, from_bytes, to_bytes

LETTERS_RAISED_AT_ONCE = 100
BYTES_RAISED_AT_ONCE = 4 * 2**20
"""No more is in memory, but for the last message of a piece."""

Job = greenstalk.Job[bytes]

_PEEKS = {State.WAITING: b"peek-ready", State.DELAYED: b"peek-delayed"}


class BulkChanger:
    """The bulk changes of queues. Nothing is left reserved."""

    def __init__(self, connections: Connections, inspector: Inspector, clock: Clock) -> None:
        self._connections = connections
        self._inspector = inspector
        self._clock = clock

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Do `verb` to up to `limit` matching messages, dead letters first; how many were changed."""
        live = live_states(where) if verb is Verb.DELETE else ()
        changed = 0
        with self._connections.spare() as connection:
            if not where.states or State.DEAD in where.states:
                changed += self._change_dead(connection, where, verb, limit)
            for state in live:
                changed += self._delete_live(connection, str(where.queue), state, limit - changed)
        return changed

    # --- dead letters --------------------------------------------------------------------------------

    def _change_dead(self, connection: Connection, where: MessageFilter, verb: Verb, limit: int) -> int:
        work = LetterChanges(self._connections, connection, verb, limit)
        try:
            self._find(connection, work, where)
            work.finish()
        except JobpoolError:  # the connection is as good as before, and lent to others
            work.give_up()
            raise
        return work.changed

    def _find(self, connection: Connection, work: LetterChanges, where: MessageFilter) -> None:
        """Change what matches: first where it was seen before, then wherever it is."""
        wanted = set(where.ids)
        for letter in self._inspector.known(connection, where.ids):
            if letter.matches(where, self._clock.wall()) and not work.is_done:
                work.change(letter)
                wanted.discard(letter.record.id)
        if wanted or not where.ids:
            rest = replace(where, ids=tuple(wanted))
            for queue in self._inspector.with_letters(connection, where.queue):
                if not work.is_done:
                    self._walk(work, Walk(connection, queue, self._clock), rest)

    def _walk(self, work: LetterChanges, walk: Walk, where: MessageFilter) -> None:
        now = self._clock.wall()
        while (letter := walk.letter) is not None and not work.is_done:
            if letter.matches(where, now):
                work.change(letter)
                walk.skip()
            else:
                walk.keep()
        walk.end()

    # --- live messages -------------------------------------------------------------------------------

    def _delete_live(self, connection: Connection, queue: str, state: State, limit: int) -> int:
        """Delete up to `limit` messages of a queue in this state.

        A dead letter among them, just being buried or with a burial cut short, is buried.
        """
        connection.use(self._connections.address.tube(queue))
        peek = _PEEKS[state]
        changed = 0
        [answer] = connection.burst([peek])
        while changed < limit and (job := job_of(connection, answer)) is not None:
            record, _ = from_bytes(job.body, job.id)
            if record.is_dead:
                letter = read_letter(connection, queue, job, self._clock)
                _, buried, answer = connection.burst([*letter.burial(), peek])
                none_if_missing(connection, buried)
            else:
                gone, answer = connection.burst([b"delete %d" % job.id, peek])
                changed += none_if_missing(connection, gone) is not None
        return changed


def live_states(where: MessageFilter) -> tuple[State, ...]:
    """Return the states of live messages to delete, all of them. Raise `Unsupported` where only some are meant."""
    meant = tuple(state for state in _PEEKS if not where.states or state in where.states)
    if not meant or where.reason is not None:  # a live message has no reason
        return ()
    if where.queue is not None and not is_queue(where.queue):
        return ()
    if where.queue is None or where != MessageFilter(queue=where.queue, states=where.states):
        raise Unsupported(
            "beanstalkd cannot find single messages that are waiting or delayed, so none was deleted"
            " (Capabilities.keeps_records): delete all of a queue, by its name and their states alone, or name the"
            " state `dead`, of which any filter is understood"
        )
    return meant


class LetterChanges:
    """One verb, done to dead letters one after the other; those to be raised a piece at a time.

    `changed` counts them, those that `finish` is still to raise among them.
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
        answer = none_if_missing(self._connection, about(self._connection, command, [letter.job])[0])
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
            for queue, group in groupby(taken, key=lambda pair: pair[0].message.queue)
            for answer in self._raise(queue, [job for _, job in group])
        ]
        if refused:
            raise self._connections.put_refusal(refused[0])

    def give_up(self) -> None:
        """Bury again what was reserved: something else is in the way."""
        taken, self._taken = self._taken, []
        self._connection.burst([b"bury %d %d" % (letter.job, letter.priority) for letter, _ in taken])

    def _raise(self, queue: str, jobs: Sequence[Job]) -> list[Answer]:
        """Put copies, and only then delete what they are copies of; return the answers that are refusals."""
        connection = self._connection
        connection.use(self._connections.address.tube(queue))
        counted = ask_counters(connection, [job.id for job in jobs])
        held = [(job, counters) for job, counters in zip(jobs, counted, strict=True) if counters is not None]
        answers = connection.burst([self._copy(job, counters) for job, counters in held])
        then: list[bytes] = []
        refused = []
        for (job, counters), answer in zip(held, answers, strict=True):
            match answer:
                case (b"INSERTED", _):
                    then.append(b"delete %d" % job.id)
                case (b"RELEASED",):
                    pass
                case _:
                    refused.append(answer)
                    then.append(b"bury %d %d" % (job.id, counters.priority))
                    if isinstance(answer, tuple) and len(answer) > 1:  # a copy that was buried at once
                        then.append(b"delete %b" % answer[1])
        connection.burst(then)
        return refused

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
