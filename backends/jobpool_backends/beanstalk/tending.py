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
from jobpool_backends.beanstalk.asking import job_of, told
from jobpool_backends.beanstalk.dead import Walk
from jobpool_backends.beanstalk.line import Line
from jobpool_backends.beanstalk.lines import Lines
from jobpool_backends.beanstalk.looking import Looker, is_queue
from jobpool_backends.beanstalk.raising import Work
from jobpool_backends.beanstalk.records import from_bytes

_PEEKS = {State.WAITING: b"peek-ready", State.DELAYED: b"peek-delayed"}


class Tender:
    """The bulk changes of queues.

    Args:
        lines: To the server; nothing is left reserved on one.
        looker: Knows the queues, and where dead letters are.
        clock: Its wall clock tells ages.
    """

    def __init__(self, lines: Lines, looker: Looker, clock: Clock) -> None:
        self._lines = lines
        self._looker = looker
        self._clock = clock

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        """Do `verb` to up to `limit` matching messages, dead letters first; how many were changed."""
        live = live_states(where) if verb is Verb.DELETE else ()
        changed = 0
        with self._lines.spare() as line:
            if not where.states or State.DEAD in where.states:
                changed += self._tend(line, where, verb, limit)
            for state in live:
                changed += self._empty(line, str(where.queue), state, limit - changed)
        return changed

    # --- dead letters --------------------------------------------------------------------------------

    def _tend(self, line: Line, where: MessageFilter, verb: Verb, limit: int) -> int:
        work = Work(self._lines, line, verb, limit)
        try:
            self._find(line, work, where)
            work.finish()
        except JobpoolError:  # the line is as good as before, and lent to others
            work.give_up()
            raise
        return work.changed

    def _find(self, line: Line, work: Work, where: MessageFilter) -> None:
        """Change what matches: first where it was seen before, then wherever it is."""
        wanted = set(where.ids)
        for letter in self._looker.known(line, where.ids):
            if letter.matches(where, self._clock.wall()) and not work.is_done:
                work.change(letter)
                wanted.discard(letter.record.id)
        if wanted or not where.ids:
            rest = replace(where, ids=tuple(wanted))
            for queue in self._looker.with_letters(line, where.queue):
                if not work.is_done:
                    self._walk(work, Walk(line, queue, self._looker.reader), rest)

    def _walk(self, work: Work, walk: Walk, where: MessageFilter) -> None:
        now = self._clock.wall()
        while (letter := walk.letter) is not None and not work.is_done:
            if letter.matches(where, now):
                work.change(letter)
                walk.skip()
            else:
                walk.keep()
        walk.end()

    # --- live messages -------------------------------------------------------------------------------

    def _empty(self, line: Line, queue: str, state: State, limit: int) -> int:
        """Delete up to `limit` messages of a queue in this state.

        A dead letter can be among them for a moment: one that is just being buried, or whose burial was cut short. It
        is buried.
        """
        line.use(self._lines.address.tube(queue))
        peek = _PEEKS[state]
        changed = 0
        [answer] = line.burst([peek])
        while changed < limit and (job := job_of(self._lines, answer)) is not None:
            record, _ = from_bytes(job.body, job.id)
            if record.is_dead:
                letter = self._looker.reader.letter(line, queue, job)
                _, buried, answer = line.burst([*letter.burial(), peek])
                told(self._lines, buried)
            else:
                gone, answer = line.burst([b"delete %d" % job.id, peek])
                changed += told(self._lines, gone) is not None
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
            " (Capabilities.keeps_records): delete all of a queue, by its name and their states alone, or name the"
            " state `dead`, of which any filter is understood"
        )
    return meant
