"""Bulk changes by an administrator.

Dead letters are raised by a copy: each is reserved by its number, so that nobody else raises it too. Then the copy is
put, and the letter is deleted. A break in between leaves the letter, and at worst the copy besides: never neither. Live
messages can only be deleted all: the first that is ready, or due next, is peeked at and deleted, again and again. A
leased message is never touched.
"""

from __future__ import annotations

from msgspec.structs import replace

from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import Unsupported
from jobpool_backends.beanstalk.connection import Connection, put_command, read_counters
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.inspect import DeadLetter, Inspector, Walk, read_dead_letter
from jobpool_backends.beanstalk.records import from_bytes, to_bytes
from jobpool_backends.shared import is_meant

_PEEKS = {State.WAITING: b"peek-ready", State.DELAYED: b"peek-delayed"}


class BulkChanger:
    """The bulk changes of queues. Nothing is left reserved."""

    def __init__(self, connections: Connections, inspector: Inspector) -> None:
        self._connections = connections
        self._inspector = inspector
        self._clock = connections.clock

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Do `verb` to up to `limit` matching messages, dead letters first; how many were changed."""
        live = live_states(where)
        with self._connections.spare() as connection:
            changed = self._change_dead(connection, where, verb, limit) if State.DEAD in where.states else 0
            for state in live:
                changed += self._delete_live(connection, str(where.queue), state, limit - changed)
        return changed

    def _change_dead(self, connection: Connection, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Change what matches: first where it was seen before, then wherever it is."""
        changed, now = 0, self._clock.wall()
        wanted = set(where.ids)
        for known in self._inspector.known(connection, where.ids):
            if changed < limit and is_meant(known.message, where, now):
                changed += self._change(connection, known, verb)
                wanted.discard(known.message.id)
        if where.ids and not wanted:
            return changed
        rest = replace(where, ids=tuple(wanted))
        for queue in self._inspector.with_letters(connection, where.queue):
            if changed >= limit:
                break
            now = self._clock.wall()
            walk = Walk(connection, queue, self._clock)
            while (letter := walk.letter) is not None and changed < limit:
                if is_meant(letter.message, rest, now):
                    changed += self._change(connection, letter, verb)
                    walk.skip()
                else:
                    walk.keep()
            walk.end()
        return changed

    def _change(self, connection: Connection, letter: DeadLetter, verb: Verb) -> bool:
        """Delete or raise a letter; return False when somebody else has it by now.

        Where the server takes no copy, the letter is buried again. A job of another program is raised unchanged.
        """
        if verb is Verb.DELETE:
            [gone] = connection.burst([b"delete %d" % letter.job])
            return connection.found(gone) is not None
        reserved, told = connection.burst([b"reserve-job %d" % letter.job, b"stats-job %d" % letter.job])
        job = connection.job(reserved)
        if job is None or not isinstance(told, bytes):
            return False
        counters = read_counters(told)
        record, body = from_bytes(job.body, job.id)
        if record.ours:
            alive = replace(record, reason=None, died_at=None, begun=True)
            if verb is Verb.RETRY:  # it forgets how it failed
                alive = replace(alive, attempts=0, crashes=0, crashed_at=0.0, last_error=None, cause=None)
            command = put_command(counters.priority, 0, counters.ttr, to_bytes(alive, body, len(job.body)))
        else:
            command = b"release %d %d 0" % (job.id, counters.priority)
        connection.use(connection.address.tube(letter.message.queue))  # a known letter may be of any queue
        [answer] = connection.burst([command])
        match answer:
            case (b"INSERTED", _):
                connection.burst([b"delete %d" % job.id])
            case (b"RELEASED",):
                pass
            case _:
                undo = [b"bury %d %d" % (job.id, counters.priority)]
                if isinstance(answer, tuple) and len(answer) > 1:  # a copy that was buried at once
                    undo.append(b"delete %b" % answer[1])
                connection.burst(undo)
                raise self._connections.put_refusal(answer)
        return True

    def _delete_live(self, connection: Connection, queue: str, state: State, limit: int) -> int:
        """Delete up to `limit` messages of a queue in this state. A dead letter among them is buried."""
        connection.use(self._connections.address.tube(queue))
        peek, changed = _PEEKS[state], 0
        [answer] = connection.burst([peek])
        while changed < limit and (job := connection.job(answer)) is not None:
            record, _ = from_bytes(job.body, job.id)
            if record.is_dead:
                letter = read_dead_letter(connection, queue, job, self._clock)
                _, buried, answer = connection.burst([*letter.burial(), peek])
                connection.found(buried)
            else:
                gone, answer = connection.burst([b"delete %d" % job.id, peek])
                changed += connection.found(gone) is not None
        return changed


def live_states(where: MessageFilter) -> tuple[State, ...]:
    """Return the states of live messages to delete, all of them. Raise `Unsupported` where only some are meant."""
    meant = tuple(state for state in _PEEKS if state in where.states and where.reason is None)  # a live one has none
    if meant and (where.queue is None or where != MessageFilter(queue=where.queue, states=where.states)):
        raise Unsupported(
            "beanstalkd cannot find single messages that are waiting or delayed, so none was deleted"
            " (Capabilities.keeps_records): delete all of a queue, by its name and their states alone, or name the"
            " state `dead`, of which any filter is understood"
        )
    return meant
