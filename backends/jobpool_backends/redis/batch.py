"""The settlements of one script call, queue by queue, as `settle.lua` takes them.

A lease's token is the message's member and one letter of its record, left out for `m`. The letter says who gave its id,
and if it has a unique key. See `keys`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from jobpool.broker.values import NewMessage
from jobpool.message.guards import IDEMPOTENCY_TTL
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.enqueue import messages_words
from jobpool_backends.redis.guarding import guarded_token, token_of
from jobpool_backends.redis.records import HOLDER_CHARS, MEMBER_CHARS, encode_text, readable, write_entry
from jobpool_backends.shared import delay_micros, micros

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
    """Some settlements.

    Attributes:
        queues: Queues that the script works on.
    """

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


def read_answers(letters: bytes) -> list[Settled]:
    """Parse the letters of `settle.lua` and `renew.lua`."""
    if letters[:1] == b"!":
        return [_REPEATED[letter] for letter in letters[1:]]
    return [_ANSWERS[letter] for letter in letters]


def _errors(error: str | None, cause: str | None) -> bytes:
    if cause is None:
        return b"-" if error is None else b"=" + encode_text(error)
    texts = {"error": error, "cause": cause}
    return orjson.dumps({name: readable(text) for name, text in texts.items() if text is not None})
