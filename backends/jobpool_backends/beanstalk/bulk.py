"""Bulk changes by an administrator.

Dead letters are raised by a copy: each is reserved by its number, so that nobody else raises it too. Then the copy is
put, and the letter is deleted. A break in between leaves the letter, and at worst the copy besides: never neither. Live
messages can only be deleted all: the first that is ready, or due next, is peeked at and deleted, again and again. A
leased message is never touched.
"""

from __future__ import annotations

from dataclasses import replace

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.clock import Clock
from jobpool.errors import JobpoolError, Unsupported
from jobpool_backends.beanstalk.answers import job_of, told
from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.dead_letters import Walk
from jobpool_backends.beanstalk.inspect import Inspector, is_queue
from jobpool_backends.beanstalk.raising import LetterChanges
from jobpool_backends.beanstalk.records import from_bytes
from jobpool_backends.shared import check_positive

_PEEKS = {State.WAITING: b"peek-ready", State.DELAYED: b"peek-delayed"}


class BulkChanger:
    """The bulk changes of queues.

    Args:
        connections: To the server; nothing is left reserved on one.
        inspector: Knows the queues, and where dead letters are.
        clock: Its wall clock tells ages.
    """

    def __init__(self, connections: Connections, inspector: Inspector, clock: Clock) -> None:
        self._connections = connections
        self._inspector = inspector
        self._clock = clock

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Do `verb` to up to `limit` matching messages, dead letters first; how many were changed."""
        check_positive(limit, "limit")
        live = live_states(where) if verb is Verb.DELETE else ()
        changed = 0
        with self._connections.spare() as connection:
            if not where.states or State.DEAD in where.states:
                changed += self._tend(connection, where, verb, limit)
            for state in live:
                changed += self._empty(connection, str(where.queue), state, limit - changed)
        return changed

    # --- dead letters --------------------------------------------------------------------------------

    def _tend(self, connection: Connection, where: MessageFilter, verb: Verb, limit: int) -> int:
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
                    self._walk(work, Walk(connection, queue, self._inspector.reader), rest)

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

    def _empty(self, connection: Connection, queue: str, state: State, limit: int) -> int:
        """Delete up to `limit` messages of a queue in this state.

        A dead letter can be among them for a moment: one that is just being buried, or whose burial was cut short. It
        is buried.
        """
        connection.use(self._connections.address.tube(queue))
        peek = _PEEKS[state]
        changed = 0
        [answer] = connection.burst([peek])
        while changed < limit and (job := job_of(self._connections, answer)) is not None:
            record, _ = from_bytes(job.body, job.id)
            if record.is_dead:
                letter = self._inspector.reader.letter(connection, queue, job)
                _, buried, answer = connection.burst([*letter.burial(), peek])
                told(self._connections, buried)
            else:
                gone, answer = connection.burst([b"delete %d" % job.id, peek])
                changed += told(self._connections, gone) is not None
        return changed


def live_states(where: MessageFilter) -> tuple[State, ...]:
    """Return the states of live messages that are to be deleted, all of them; none where only dead letters are meant.

    Raises `Unsupported` where some of the live ones are meant, or may be.
    """
    meant = tuple(state for state in _PEEKS if not where.states or state in where.states)
    if not meant or where.reason is not None:  # a live message has no reason
        return ()
    if where.queue is not None and not is_queue(where.queue):
        return ()
    if where.queue is None or where != MessageFilter(queue=where.queue, states=where.states):
        raise Unsupported(
            "beanstalkd cannot find single messages that are waiting or delayed, so none was deleted"
            " (Capabilities.deletes_live): delete all of a queue, by its name and their states alone, or name the state"
            " `dead`, of which any filter is understood"
        )
    return meant
