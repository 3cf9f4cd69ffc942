"""Ending and renewing leases: a batch in one script, each message judged and changed in the same step.

A lease's token is the message's member and one letter of its record, left out for `m`. The letter says who gave its id,
and if it has a unique key. See `key_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from jobpool.broker.values import REMEMBER_CALLS, NewMessage
from jobpool.clock import Clock
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
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
"""Settlements or renewals, some 5 ms of the server's time; a larger batch is several."""

_CALL_TTL_US = micros(REMEMBER_CALLS)
_ANSWERS = {
    ord("o"): Settled.OK,
    ord("n"): Settled.NOT_IN_FLIGHT,
    ord("e"): Settled.EXPIRED,
    ord("w"): Settled.NOT_OWNER,
}
_REPEATED = _ANSWERS | {ord("o"): Settled.ALREADY}

_ACKS = {"": "a", "g": "A", "u": "u", "w": "U"}
"""By the part of the token after the member; another backend's lease, which is refused, may have anything there."""

Brought = Mapping[int, Sequence[NewMessage]]
"""Messages that settlements add, by their place in the call."""


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
        groups: Iterable[Sequence[int]] = [range(len(settlements))]
        if self._keys.spread:
            groups = places_by(lease.queue for lease, _ in settlements).values()
        for group in groups:
            for number, places in enumerate(pieces(group, MAX_LEASES_PER_SCRIPT)):
                told = self._settle(Batch(settlements, places, brought), f"{call_id}+{number}" if number else call_id)
                for place, answer in zip(places, told, strict=False):  # an id used for another batch is a mistake
                    answers[place] = answer
        return answers

    def _settle(self, batch: Batch, call_id: str) -> list[Settled]:
        if not self._keys.spread:
            batch.reach_follow_ups()
        queues = batch.queues
        lead = (self._keys.settle_call(queues[0], call_id), self._keys.one(queues[0], "last"))
        words = [_CALL_TTL_US, self._caps.most, self._caps.age, *batch.words()]
        return _read_answers(SETTLE.run(self._link, self._keys, queues, words, *lead))

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Return the leases with their new end, None for those that are lost; one script a queue."""
        before, length = self._clock.boot(), micros(ttl)
        renewed: list[JobLease | None] = [None] * len(leases)
        for queue, group in places_by(lease.queue for lease in leases).items():
            for places in pieces(group, MAX_LEASES_PER_SCRIPT):
                words: list[Word] = [length, f"{length:014d}", len(places)]
                words += [token_of(leases[place])[:MEMBER_CHARS] for place in places]
                words += [leases[place].owner_token[:HOLDER_CHARS] for place in places]
                answers = _read_answers(RENEW.run(self._link, self._keys, [queue], words))
                for place, answer in zip(places, answers, strict=True):
                    if answer is Settled.OK:
                        renewed[place] = replace(leases[place], expires_at=before + ttl)
        return renewed


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
        """Return ARGV: each queue's columns, their places, and the follow-ups with the settlements that bring them."""
        queues = self.queues
        words: list[Word] = []
        for columns in self._columns.values():
            words += columns.words()
        if len(queues) > 1:
            words += [number for columns in self._columns.values() for number in columns.numbers]
        if self._followers:
            added = [new if new.queue in queues else replace(new, body=write_entry(new)) for _, new in self._followers]
            words += [*queues, *(number for number, _ in self._followers), *messages_words(added, queues)]
        return words


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
        token, guards = token_of(lease), lease.guards
        verb, needed = _encode(settlement, token[MEMBER_CHARS:], guards)
        self.numbers.append(number)
        self.verbs.append(verb)
        self.members.append(token[:MEMBER_CHARS])
        self.holders.append(lease.owner_token[:HOLDER_CHARS] if guards is None else guarded_token(lease, guards))
        self.ids.append(lease.id)
        if needed:
            self.needed += needed

    def words(self) -> list[Word]:
        return [len(self.verbs), "".join(self.verbs), *self.members, *self.holders, *self.ids, *self.needed]


def _encode(settlement: Settlement, letter: str, guards: Guards | None) -> tuple[str, Sequence[Word]]:
    """Return the verb of a settlement, and the words that it needs. `letter` is the end of the lease's token."""
    match settlement:
        case Ack():
            verb = _ACKS.get(letter, "A")
            return verb, [micros(guards.keep if guards else IDEMPOTENCY_TTL)] if verb in "uU" else ()
        case Nack(delay, error, cause):
            return "n", (delay_micros(delay), _errors(error, cause))
        case Release(delay, begun):
            return "s" if begun else "R" if guards else "r", [delay_micros(delay)]
        case Abandon(reason, error, cause):
            return "x" if settlement.attempts else "b", (encode_text(reason), _errors(error, cause))
        case Forfeit(cause):
            return "f", [encode_text(cause)]
        case Move():
            return "m", ()


def _errors(error: str | None, cause: str | None) -> bytes:
    if cause is None:
        return b"-" if error is None else b"=" + encode_text(error)
    texts = {"error": error, "cause": cause}
    return orjson.dumps({name: readable(text) for name, text in texts.items() if text is not None})


def _read_answers(letters: bytes) -> list[Settled]:
    """Parse the letters of `settle.lua` and `renew.lua`."""
    if letters[:1] == b"!":
        return [_REPEATED[letter] for letter in letters[1:]]
    return [_ANSWERS[letter] for letter in letters]
