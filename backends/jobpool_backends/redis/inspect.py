"""The administrator's side: counts, lists, single messages, and bulk changes.

A list is made in two steps. First come the members of each queue in enqueue order: from sorted sets, a piece at a time.
Leased ones come all at once: nothing keeps them in order, and there are only as many as running jobs. Then the messages
themselves are read and filtered, a piece at a time. One that moved on between the two steps is seen once, as it is now.
One that moves in the very moment of a step may be passed over.

Bulk changes look for messages in the same way, without holding anything up, and change a bounded piece a script. One
that moved on meanwhile is left alone: it is changed only if its record is still the one that was seen. Leased ones are
never touched.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import methodcaller
from typing import NamedTuple

from jobpool.broker import parts
from jobpool.broker.values import REMEMBER_CALLS, Edit, Edited, Message, MessageFilter, QueueStats, State, Verb
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.names import is_queue
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.keyspace import BULK, EDIT, MESSAGE_LIST, MESSAGE_READ, STATS, Keyspace
from jobpool_backends.redis.records import (
    PRIORITIES,
    TIES_PER_SEQUENCE,
    Row,
    due_word,
    member_of,
    places_by,
    read_row,
    tie_of,
)
from jobpool_backends.shared import EDITED, MICRO, matches, micros, pieces

MEMBERS_PER_SCRIPT = 500
CHANGES_PER_SCRIPT = 250

_SEQUENCE_CHARS = 16
_LETTERS = {State.WAITING: "w", State.DELAYED: "d", State.LEASED: "l", State.DEAD: "x"}
_JOBS = ("ready", "delayed", "leased", "dead", "claimed")
_POSTS = ("posts", "postsdelayed", "postsclaimed")


class Counts(NamedTuple):
    """Answer of `stats.lua`; `oldest` in µs, -1 for none."""

    waiting: int
    delayed: int
    leased: int
    dead: int
    oldest: int
    posts_free: int
    posts_delayed: int
    posts_claimed: int
    expired: int

    @property
    def posted(self) -> int:
        return self.posts_free + self.posts_delayed + self.posts_claimed

    def by_state(self) -> dict[State, int]:
        return {
            State.WAITING: self.waiting + self.posts_free,
            State.DELAYED: self.delayed + self.posts_delayed,
            State.LEASED: self.leased + self.posts_claimed,
            State.DEAD: self.dead,
        }


class Place(NamedTuple):
    """The place of a message in the enqueue order. `tie` tells queues apart that gave the same sequence at once."""

    sequence: str
    tie: int
    queue: str
    member: str


_text = methodcaller("decode", errors="replace")  # of a member or a name, which may be changed by hand


class Inspector(parts.Inspector):
    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys

    def stats(self, queue: str) -> QueueStats:
        found = self.counts(queue)
        oldest = None if found.oldest < 0 else found.oldest / MICRO
        return QueueStats(found.waiting, found.delayed, found.leased, found.dead, oldest, posted=found.posted)

    def evicted(self, queue: str) -> int:
        return int(self._keys.link.call("GET", self._keys.one(queue, "evicted")) or 0)

    def counts(self, queue: str) -> Counts:
        return Counts(*self._keys.run(STATS, [queue], ()))

    def queues(self) -> list[str]:
        names = self.names()
        asked = [("EXISTS", *self._keys.of(name, keys)) for name in names for keys in (_JOBS, _POSTS)]
        held = self._keys.link.call_many(asked)
        found = zip(names, held[::2], held[1::2], strict=True)
        # Posted messages may be there that have ended, and are none.
        return [name for name, jobs, posts in found if jobs or (posts and self.counts(name).posted)]

    def names(self) -> list[str]:
        """Return the names of all queues that ever had a message, sorted."""
        names = map(_text, self._keys.link.call("SMEMBERS", self._keys.queues))
        return sorted(filter(is_queue, names))  # no others: they were written by hand

    def count(self, where: MessageFilter, cap: int) -> int:
        if where == MessageFilter(queue=where.queue, states=where.states):
            counts = [self.counts(queue).by_state() for queue in self._queues(where)]
            return min(cap, sum(count[state] for count in counts for state in set(where.states or State)))
        return sum(1 for _ in islice(self.search(where), cap))

    def page(self, where: MessageFilter, after: int, limit: int, largest: int = MAX_BODY_BYTES) -> list[Message]:
        found = self.search(where, after=after, piece=min(limit, MEMBERS_PER_SCRIPT), largest=largest)
        return [row.message for row in islice(found, limit)]

    def inspect(self, ident: str) -> Message | None:
        where, before = MessageFilter(ids=(ident,)), list[Place]()
        # Between the look at its place and that at its record it may have moved to another queue.
        while (places := [place for _, place in self.places([ident])]) and places != before:
            for found in self._read(places, where, sys.maxsize):
                return found.message
            before = places
        return None

    def search(
        self, where: MessageFilter, *, after: int = 0, piece: int = MEMBERS_PER_SCRIPT, largest: int = 0
    ) -> Iterator[Row]:
        """Yield the messages that the filter finds, in enqueue order; `largest`: as in `list_messages`."""
        sequence, tie = divmod(after, TIES_PER_SEQUENCE)
        behind = (f"{sequence:016d}", tie)
        # The sequence of the last one itself is walked again: another queue may have given it too.
        if where.ids:
            places = iter(sorted(place for _, place in self.places(where.ids)))
        else:
            places = self._all(where, f"{max(0, sequence - 1):016d}", piece)
        wanted = (place for place in places if place[:2] > behind)
        while some := list(islice(wanted, piece)):
            yield from self._read(some, where, largest if where.text is None else sys.maxsize)
            piece = min(2 * piece, MEMBERS_PER_SCRIPT)  # few of them match: go on in larger steps

    def _all(self, where: MessageFilter, behind: str, piece: int) -> Iterator[Place]:
        states = where.states or tuple(State)
        letters = "".join(letter for state, letter in _LETTERS.items() if state in states)
        sources = []
        for queue in self._queues(where):
            if letters:
                sources.append(self._walk(queue, letters, behind, piece))
            if State.LEASED in states:
                sources.append(self._leased(queue))
        return heapq.merge(*sources)

    def _walk(self, queue: str, letters: str, behind: str, piece: int) -> Iterator[Place]:
        tie = tie_of(queue)
        more = True
        while more:
            more, *found = self._keys.run(MESSAGE_LIST, [queue], (letters, behind, piece))
            piece = min(2 * piece, MEMBERS_PER_SCRIPT)
            for text in map(_text, found):
                behind = text[:_SEQUENCE_CHARS]
                yield Place(behind, tie, queue, text[_SEQUENCE_CHARS:] + behind)

    def _leased(self, queue: str) -> Iterator[Place]:
        """Yield all leases of a queue, read a piece at a time so that nobody waits for it."""
        key, tie = self._keys.one(queue, "leased"), tie_of(queue)
        found: set[bytes] = set()
        first = 0
        while some := self._keys.link.call("ZRANGE", key, first, first + MEMBERS_PER_SCRIPT - 1):
            found.update(some)
            first += MEMBERS_PER_SCRIPT
        yield from sorted(Place(member[3:], tie, queue, member) for member in map(_text, found))

    def places(self, idents: Sequence[str]) -> list[tuple[str, Place]]:
        """Return the ids that there are, each with the place of its message."""
        wanted = list(dict.fromkeys(idents))
        keys = [self._keys.one(name, "ids") for name in (self.names() if self._keys.spread else [""])]
        asked = [(key, *piece) for key in keys for piece in pieces(wanted, MEMBERS_PER_SCRIPT)]
        answers = self._keys.link.call_many([("HMGET", *words) for words in asked])
        found = []
        for (_, *piece), texts in zip(asked, answers, strict=True):
            for ident, text in zip(piece, texts, strict=True):
                if text:
                    member, _, queue = _text(text).partition(" ")
                    found.append((ident, Place(member[3:], tie_of(queue), queue, member)))
        return found

    def _queues(self, where: MessageFilter) -> list[str]:
        return self.names() if where.queue is None else [where.queue]

    def _read(self, places: Sequence[Place], where: MessageFilter, largest: int) -> Iterator[Row]:
        """Yield the messages at these places that match, as they are now."""
        rows: dict[tuple[str, str], Row] = {}
        for queue, some in places_by(place.queue for place in places).items():
            for now, row in self._read_queue(queue, [places[at].member for at in some], largest):
                notes = map(row.notes.get, ("error", "cause", "forfeited"))
                if matches(row.message, where, now - row.since, *notes):
                    rows[queue, row.member] = row
        for place in places:  # one that moved between two steps may have two places
            if (place.queue, place.member) in rows:
                yield rows.pop((place.queue, place.member))

    def _read_queue(self, queue: str, members: Sequence[str], largest: int) -> Iterator[tuple[int, Row]]:
        while members:
            now, *told = self._keys.run(MESSAGE_READ, [queue], (largest, *members))
            answers = [told[at : at + 5] for at in range(0, len(told), 5)]
            for member, answer in zip(members, answers, strict=False):
                row = read_row(queue, member, answer)
                if row is not None:
                    yield int(now), row
            members = members[len(answers) :]

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        found = self.search(where, piece=min(limit, CHANGES_PER_SCRIPT))
        changed = 0
        while rows := list(islice(found, min(CHANGES_PER_SCRIPT, limit - changed))):
            changed += self._change(rows, verb)
        return changed

    def _change(self, rows: list[Row], verb: Verb) -> int:
        by_queue: dict[str, list[Word]] = {}
        for row in rows:
            by_queue.setdefault(row.message.queue, [verb.value]).extend((row.member, row.stored))
        return sum(self._keys.run(BULK, [queue], words) for queue, words in by_queue.items())

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        """Return the answers, in order. Each script remembers its own."""
        answers = [Edited.CHANGED] * len(edits)
        for places in self._keys.groups(edits, lambda edit: edit.queue):
            told = self._edit([edits[place] for place in places], call_id)
            for place, letter in zip(places, told, strict=False):  # an id used for other edits is a mistake
                answers[place] = EDITED[letter]
        return answers

    def _edit(self, edits: Sequence[Edit], call_id: str) -> str:
        queues = list(dict.fromkeys(queue for edit in edits for queue in (edit.seen.queue, edit.queue)))
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        words: list[Word] = [micros(REMEMBER_CALLS), *queues]
        for edit in edits:
            seen = edit.seen
            words += (numbers[seen.queue], numbers[edit.queue], member_of(seen), seen.id, PRIORITIES[edit.priority])
            words += (due_word(edit.due), edit.body or b"")
        told: bytes = self._keys.run(EDIT, queues, words, self._keys.one(queues[0], f"call:edit:{call_id}"))
        return told.decode()
