"""Bulk changes by an administrator.

Dead letters are raised by a copy: each is reserved by its number, so that nobody else raises it too. Then the copy is
put, and the letter is deleted. A break in between leaves the letter, and at worst the copy besides: never neither. Live
messages can only be deleted all: the first that is ready, or due next, is peeked at and deleted, again and again. A
leased message is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import greenstalk
from msgspec.structs import replace

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import JobpoolError, Unsupported
from jobpool_backends.beanstalk.connection import Answer, Connection, Counters, put_command
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.inspect import Inspector, Letter, Walk, is_queue, read_letter
from jobpool_backends.beanstalk.records import from_bytes, to_bytes
from jobpool_backends.shared import is_meant

LETTERS_RAISED_AT_ONCE = 100
BYTES_RAISED_AT_ONCE = 4 * 2**20  # no more is in memory, but for the last message of a piece

Job = greenstalk.Job[bytes]

_PEEKS = {State.WAITING: b"peek-ready", State.DELAYED: b"peek-delayed"}


class BulkChanger:
    """The bulk changes of queues. Nothing is left reserved."""

    def __init__(self, connections: Connections, inspector: Inspector) -> None:
        self._connections = connections
        self._inspector = inspector
        self._clock = connections.clock

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Do `verb` to up to `limit` matching messages, dead letters first; how many were changed."""
        live = live_states(where) if verb is Verb.DELETE else ()
        changed = 0
        with self._connections.spare() as connection:
            if not where.states or State.DEAD in where.states:
                work = LetterChanges(self._connections, connection, verb, limit)
                try:
                    self._change_dead(connection, work, where)
                    work.finish()
                except JobpoolError:  # the connection is as good as before, and lent to others
                    work.give_up()
                    raise
                changed = work.changed
            for state in live:
                changed += self._delete_live(connection, str(where.queue), state, limit - changed)
        return changed

    def _change_dead(self, connection: Connection, work: LetterChanges, where: MessageFilter) -> None:
        """Change what matches: first where it was seen before, then wherever it is."""
        now = self._clock.wall()
        wanted = set(where.ids)
        for known in self._inspector.known(connection, where.ids):
            if is_meant(known.message, where, now) and not work.is_done:
                work.change(known)
                wanted.discard(known.message.id)
        if where.ids and not wanted:
            return
        rest = replace(where, ids=tuple(wanted))
        for queue in self._inspector.with_letters(connection, where.queue):
            if work.is_done:
                return
            now = self._clock.wall()
            walk = Walk(connection, queue, self._clock)
            while (letter := walk.letter) is not None and not work.is_done:
                if is_meant(letter.message, rest, now):
                    work.change(letter)
                    walk.skip()
                else:
                    walk.keep()
            walk.end()

    def _delete_live(self, connection: Connection, queue: str, state: State, limit: int) -> int:
        """Delete up to `limit` messages of a queue in this state. A dead letter among them is buried."""
        connection.use(self._connections.address.tube(queue))
        peek, changed = _PEEKS[state], 0
        [answer] = connection.burst([peek])
        while changed < limit and (job := connection.job(answer)) is not None:
            record, _ = from_bytes(job.body, job.id)
            if record.is_dead:
                letter = read_letter(connection, queue, job, self._clock)
                _, buried, answer = connection.burst([*letter.burial(), peek])
                connection.found(buried)
            else:
                gone, answer = connection.burst([b"delete %d" % job.id, peek])
                changed += connection.found(gone) is not None
        return changed


def live_states(where: MessageFilter) -> tuple[State, ...]:
    """Return the states of live messages to delete, all of them. Raise `Unsupported` where only some are meant."""
    meant = tuple(state for state in _PEEKS if not where.states or state in where.states)
    impossible = where.reason is not None or (where.queue is not None and not is_queue(where.queue))
    if not meant or impossible:  # a live message has no reason
        return ()
    if where.queue is None or where != MessageFilter(queue=where.queue, states=where.states):
        raise Unsupported(
            "beanstalkd cannot find single messages that are waiting or delayed, so none was deleted"
            " (Capabilities.keeps_records): delete all of a queue, by its name and their states alone, or name the"
            " state `dead`, of which any filter is understood"
        )
    return meant


class LetterChanges:
    """One verb done to dead letters. `changed` counts also those that `finish` is still to raise."""

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
        command = b"delete %d" if self._verb is Verb.DELETE else b"reserve-job %d"
        answer = self._connection.found(self._connection.burst([command % letter.job])[0])
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
        counted = connection.counters([job.id for job in jobs])
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
        alive = replace(record, reason=None, died_at=None, begun=True)
        if self._verb is Verb.RETRY:  # it forgets how it failed
            alive = replace(alive, attempts=0, crashes=0, crashed_at=0.0, last_error=None, cause=None)
        return put_command(counters.priority, 0, counters.ttr, to_bytes(alive, body, len(job.body)))
