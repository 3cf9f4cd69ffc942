"""Ending and renewing leases: a batch in one script, each message judged and changed in the same step.

A lease's token is the message's member and one letter of its record, left out for `m`. The letter says who gave its id,
and if it has a unique key. See `key_names`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from jobpool.broker.values import REMEMBER_CALLS, NewMessage
from jobpool.clock import Clock
from jobpool.message.guards import IDEMPOTENCY_TTL
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.enqueue import messages_words
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.keys import guarded_token, token_of
from jobpool_backends.redis.records import (
    HOLDER_CHARS,
    MEMBER_CHARS,
    encode_text,
    pieces,
    places_by,
    readable,
    write_entry,
)
from jobpool_backends.redis.scripts import RENEW, SETTLE
from jobpool_backends.shared import DeadCaps, delay_micros, micros

MAX_LEASES_PER_SCRIPT = 1000
"""Settlements or renewals a script, some 5 ms of the server's time; a larger batch is several."""

_CALL_TTL_US = micros(REMEMBER_CALLS)


class Settler:
    """The settler and renewer of leases."""

    def __init__(self, link: Link, keys: KeyNames, clock: Clock, caps: DeadCaps) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock
        self._caps = caps

    def settle(
        self, settlements: Sequence[tuple[JobLease, Settlement]], brought: Brought, call_id: str
    ) -> list[Settled]:
        """Return the answers, in order. Each script remembers its own, by the id; of a large batch, and a number."""
        answers = [Settled.NOT_IN_FLIGHT] * len(settlements)
        for number, places in self._parts(settlements):
            batch = Batch(settlements, places, brought)
            told = self._settle(batch, f"{call_id}+{number}" if number else call_id)
            for place, answer in zip(places, told, strict=False):  # an id that is used for another batch is a mistake
                answers[place] = answer
        return answers

    def _parts(self, settlements: Sequence[tuple[JobLease, Settlement]]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the places that one script settles, of one queue where keys are spread; and which part it is."""
        groups = places_by(lease.queue if self._keys.spread else "" for lease, _ in settlements)
        for places in groups.values():
            yield from enumerate(pieces(places, MAX_LEASES_PER_SCRIPT))

    def _settle(self, batch: Batch, call_id: str) -> list[Settled]:
        if not self._keys.spread:
            batch.reach_follow_ups()
        queues = batch.queues
        lead = (self._keys.settle_call(queues[0], call_id), self._keys.one(queues[0], "last"))
        words = [_CALL_TTL_US, self._caps.most, self._caps.age, *batch.words()]
        return _read_answers(SETTLE.run(self._link, self._keys, queues, words, *lead))

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Return the leases with their new end, None for those that are lost; one script a queue."""
        before = self._clock.boot()
        renewed: list[JobLease | None] = [None] * len(leases)
        for queue, all_places in places_by(lease.queue for lease in leases).items():
            for places in pieces(all_places, MAX_LEASES_PER_SCRIPT):
                answers = self._renew(queue, [leases[place] for place in places], ttl)
                for place, answer in zip(places, answers, strict=True):
                    if answer is Settled.OK:
                        renewed[place] = replace(leases[place], expires_at=before + ttl)
        return renewed

    def _renew(self, queue: str, leases: Sequence[JobLease], ttl: float) -> list[Settled]:
        length = micros(ttl)
        words: list[Word] = [length, f"{length:014d}", len(leases)]
        words += [token_of(lease)[:MEMBER_CHARS] for lease in leases]
        words += [lease.owner_token[:HOLDER_CHARS] for lease in leases]
        return _read_answers(RENEW.run(self._link, self._keys, [queue], words))


Brought = Mapping[int, Sequence[NewMessage]]
"""Messages that settlements add, by their place in the call."""

_ANSWERS = {
    ord("o"): Settled.OK,
    ord("n"): Settled.NOT_IN_FLIGHT,
    ord("e"): Settled.EXPIRED,
    ord("w"): Settled.NOT_OWNER,
}
_ACKS = {"": "a", "g": "A", "u": "u", "w": "U"}
"""By the part of the token after the member; another backend's lease, which is refused, may have anything there."""

_ACKS_OF_UNIQUE = frozenset("uU")

_REPEATED = _ANSWERS | {ord("o"): Settled.ALREADY}


class Batch:
    """The settlements of one script, queue by queue, as `settle.lua` takes them."""

    def __init__(
        self, settlements: Sequence[tuple[JobLease, Settlement]], places: Sequence[int], brought: Brought
    ) -> None:
        self._columns: dict[str, _Columns] = {}
        for number, place in enumerate(places, 1):
            lease, settlement = settlements[place]
            columns = self._columns.get(lease.queue) or self._columns.setdefault(lease.queue, _Columns())
            columns.add(number, lease, settlement)
        self._followers = [(number, new) for number, place in enumerate(places, 1) for new in brought.get(place, ())]
        # Moves come first: their ids are known all the time, so a follow-up of the same id is left out, not the move.
        self._followers.sort(key=lambda follower: not follower[1].deliveries)

    @property
    def queues(self) -> list[str]:
        return list(self._columns)

    def reach_follow_ups(self) -> None:
        """Work on the queues of what is added too; what goes to those that are not reached goes to the outbox."""
        for _, new in self._followers:
            self._columns.setdefault(new.queue, _Columns())

    def words(self) -> list[Word]:
        words: list[Word] = []
        for columns in self._columns.values():
            words += columns.words()
        if len(self._columns) > 1:
            words += [number for columns in self._columns.values() for number in columns.numbers]
        if self._followers:
            words += self._follow_up_words()
        return words

    def _follow_up_words(self) -> list[Word]:
        """Return the names of the queues, then which settlements bring the messages, then the messages."""
        queues = self.queues
        reached = [new if new.queue in queues else replace(new, body=write_entry(new)) for _, new in self._followers]
        return [*queues, *[number for number, _ in self._followers], *messages_words(reached, queues)]


@dataclass(slots=True)
class _Columns:
    """The settlements of one queue. `numbers`: the place of each in the batch, from 1."""

    numbers: list[int] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    holders: list[Word] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    needed: list[Word] = field(default_factory=list)

    def add(self, number: int, lease: JobLease, settlement: Settlement) -> None:
        token = token_of(lease)
        self.numbers.append(number)
        self.members.append(token[:MEMBER_CHARS])
        guards = lease.guards
        self.holders.append(lease.owner_token[:HOLDER_CHARS] if guards is None else guarded_token(lease, guards))
        self.ids.append(lease.id)
        match settlement:
            case Ack():
                verb = _ACKS.get(token[MEMBER_CHARS:], "A")
                self.verbs.append(verb)
                if verb in _ACKS_OF_UNIQUE:
                    self.needed.append(micros(guards.keep if guards else IDEMPOTENCY_TTL))
            case Nack(delay, error, cause):
                self.verbs.append("n")
                self.needed += (delay_micros(delay), _errors(error, cause))
            case Release(delay, begun):
                self.verbs.append("s" if begun else "R" if guards else "r")
                self.needed.append(delay_micros(delay))
            case Abandon(reason, error, cause):
                self.verbs.append("x" if settlement.attempts else "b")
                self.needed += (encode_text(reason), _errors(error, cause))
            case Forfeit(cause):
                self.verbs.append("f")
                self.needed.append(encode_text(cause))
            case Move():
                self.verbs.append("m")

    def words(self) -> list[Word]:
        verbs = "".join(self.verbs)
        return [len(verbs), verbs, *self.members, *self.holders, *self.ids, *self.needed]


def _read_answers(letters: bytes) -> list[Settled]:
    """Parse the letters of `settle.lua` and `renew.lua`."""
    if letters[:1] == b"!":
        return [_REPEATED[letter] for letter in letters[1:]]
    return [_ANSWERS[letter] for letter in letters]


def _errors(error: str | None, cause: str | None) -> bytes:
    if cause is None:
        return b"-" if error is None else b"=" + encode_text(error)
    texts = {"error": error, "cause": cause}
    return orjson.dumps({name: readable(text) for name, text in texts.items() if text is not None})
