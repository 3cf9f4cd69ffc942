"""The settlements of one script call, queue by queue, as `settle.lua` takes them.

A lease's token is the message's member, with a `g` behind it when its producer gave the id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobpool.backend import NewMessage
from jobpool.lease import JobLease
from jobpool.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.redis.producing import messages_words
from jobpool_backends.redis.records import HOLDER, MEMBER, encode_text, write_entry
from jobpool_backends.redis.wire import Word
from jobpool_backends.shared import delay_micros

FollowUps = Mapping[int, Sequence[NewMessage]]
"""By the place of their ack in the call."""

_ANSWERS = {
    ord("o"): Settled.OK,
    ord("n"): Settled.NOT_IN_FLIGHT,
    ord("e"): Settled.EXPIRED,
    ord("w"): Settled.NOT_OWNER,
}
_REPEATED = _ANSWERS | {ord("o"): Settled.ALREADY}


class Batch:
    """Some settlements.

    Attributes:
        queues: Those that the script works on.
    """

    def __init__(
        self, settlements: Sequence[tuple[JobLease, Settlement]], places: Sequence[int], follow_ups: FollowUps
    ) -> None:
        self._columns: dict[str, _Columns] = {}
        for number, place in enumerate(places, 1):
            lease, settlement = settlements[place]
            columns = self._columns.get(lease.queue) or self._columns.setdefault(lease.queue, _Columns())
            columns.add(number, lease, settlement)
        self._followers = [(number, new) for number, place in enumerate(places, 1) for new in follow_ups.get(place, ())]

    @property
    def queues(self) -> list[str]:
        return list(self._columns)

    def reach_follow_ups(self) -> None:
        """Work on the queues of the follow-ups too; those that are not reached go to the outbox."""
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
        """Names of the queues, then whose acks the messages follow, then the messages."""
        queues = self.queues
        reached = [new if new.queue in queues else replace(new, body=write_entry(new)) for _, new in self._followers]
        return [*queues, *[number for number, _ in self._followers], *messages_words(reached, queues)]


@dataclass(slots=True)
class _Columns:
    """The settlements of one queue. `numbers`: the place of each in the batch, from 1."""

    numbers: list[int] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    needed: list[Word] = field(default_factory=list)

    def add(self, number: int, lease: JobLease, settlement: Settlement) -> None:
        token = token_of(lease)
        self.numbers.append(number)
        self.members.append(token[:MEMBER])
        self.holders.append(lease.owner_token[:HOLDER])
        self.ids.append(lease.id)
        match settlement:
            case Ack():
                self.verbs.append("A" if len(token) > MEMBER else "a")
            case Nack(delay, error):
                self.verbs.append("n")
                self.needed += (delay_micros(delay), _optional(error))
            case Release(delay):
                self.verbs.append("r")
                self.needed.append(delay_micros(delay))
            case Abandon(reason, error):
                self.verbs.append("b")
                self.needed += (encode_text(reason), _optional(error))
            case Forfeit(cause):
                self.verbs.append("f")
                self.needed.append(encode_text(cause))

    def words(self) -> list[Word]:
        verbs = "".join(self.verbs)
        return [len(verbs), verbs, *self.members, *self.holders, *self.ids, *self.needed]


def token_of(lease: JobLease) -> str:
    """The lease's token; one that no message has, for another backend's lease."""
    token = lease.token
    return token if type(token) is str and token else "-"


def read_answers(letters: bytes) -> list[Settled]:
    """What the letters of `settle.lua` and `renew.lua` mean."""
    if letters[:1] == b"!":
        return [_REPEATED[letter] for letter in letters[1:]]
    return [_ANSWERS[letter] for letter in letters]


def _optional(text: str | None) -> bytes:
    return b"-" if text is None else b"=" + encode_text(text)
