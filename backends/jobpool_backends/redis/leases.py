"""Leases: taking messages, renewing, settling and reaping them; each a bounded batch in one script.

The holder is half of the owner token; the other half is the message's sequence. So one word a fetch is random, one
word a message is kept, and no two tokens are alike.

A lease's token is the message's member and one letter of its record, left out for `m`. The letter says who gave its id,
and if it has a unique key. See `keyspace`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

import orjson
from msgspec.structs import replace

from jobpool.broker.packing import in_batches
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import REMEMBER_CALLS, NewMessage, Reaped, ReapPolicy
from jobpool.clock import Clock
from jobpool.errors import LONGEST_WAIT_S
from jobpool.message.guards import IDEMPOTENCY_TTL, Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.enqueue import messages_words
from jobpool_backends.redis.keys import guarded_token, token_of
from jobpool_backends.redis.keyspace import ACK, FETCH, REAP, RENEW, SETTLE, Keyspace
from jobpool_backends.redis.records import (
    HOLDER_CHARS,
    MEMBER_CHARS,
    TAG_BYTES,
    encode_text,
    places_by,
    readable,
    write_entry,
)
from jobpool_backends.shared import (
    MICRO,
    REPEATED,
    SETTLED,
    DeadCaps,
    body_or_oversized,
    delay_micros,
    grouped,
    micros,
    more_than,
    pieces,
)

MAX_MESSAGES_PER_FETCH = 2000  # at most, for some 10 ms of the server's time
MAX_LEASES_PER_SCRIPT = 1000  # settlements with what they bring, or renewals, some 5 ms of the server's time
MAX_REAPED_PER_CALL = 1000
REAPED_PER_SCRIPT = 200

_CALL_TTL_US = micros(REMEMBER_CALLS)
_ACKS = {"": "a", "g": "A", "u": "u", "w": "U"}
"""By the part of the token after the member; another backend's lease, which is refused, may have anything there."""


class Leases:
    def __init__(
        self, keys: Keyspace, clock: Clock, caps: DeadCaps, scheme: str, saw: Callable[[str, int], object]
    ) -> None:
        """Keep what all calls need. `saw` is told what each fetch has left in its queue, as fetch.lua answers."""
        self._keys = keys
        self._saw = saw
        self._clock = clock
        self._caps = caps
        self._scheme = scheme

    def fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        before, length = self._clock.boot(), micros(ttl)
        words = (min(limit, MAX_MESSAGES_PER_FETCH), length, f"{secrets.token_hex(8)} {length:014d} ", _CALL_TTL_US)
        answer = self._keys.run(FETCH, [queue], words, self._keys.one(queue, f"call:fetch:{fetch_id}"))
        members, records, bodies, more, *left = answer
        self._saw(queue, more)
        ends = [before + micros_left / MICRO for micros_left in left[0]] if left else repeat(before + ttl)
        scheme = self._scheme
        leases = []
        for name, record, body, expires_at in zip(members, records, bodies, ends, strict=False):
            if record is None:  # a member without a message: changed by hand
                continue
            if type(body) is not bytes:
                body = body_or_oversized(body)
            try:
                member, text = name.decode(), record.decode()
                deliveries, attempts, crashes, available, enqueued, ident, _ = text[TAG_BYTES:].split(" ", 6)
                lease = JobLease(
                    ident[1:],
                    queue,
                    body,
                    member if ident[0] == "m" else member + ident[0],
                    text[:HOLDER_CHARS] + member[3:],
                    expires_at,
                    scheme,
                    int(attempts),
                    int(crashes),
                    int(deliveries),
                    int(enqueued) / MICRO,
                    available[0] == "+",
                )
            except (ValueError, LookupError, OverflowError):  # changed by hand; such counters are rejected
                member, holder = name.decode(errors="replace"), record[:HOLDER_CHARS].decode()
                lease = JobLease(member, queue, body, member, holder + member[3:], expires_at, scheme, attempts=-1)
            leases.append(lease)
        return leases

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Return the leases with their new end, None for those that are lost; one script a queue."""
        before, length = self._clock.boot(), micros(ttl)
        renewed: list[JobLease | None] = [None] * len(leases)
        for queue, group in places_by(lease.queue for lease in leases).items():
            for places in pieces(group, MAX_LEASES_PER_SCRIPT):
                words: list[Word] = [length, f"{length:014d}", len(places)]
                words += [token_of(leases[place])[:MEMBER_CHARS] for place in places]
                words += [leases[place].owner_token[:HOLDER_CHARS] for place in places]
                answers = _read_answers(self._keys.run(RENEW, [queue], words))
                for place, answer in zip(places, answers, strict=True):
                    if answer is Settled.OK:
                        renewed[place] = replace(leases[place], expires_at=before + ttl)
        return renewed

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        """Return the answers, in order. Each script remembers its own, by the id; of a large batch, and a number."""
        answers = [Settled.NOT_IN_FLIGHT] * len(settlements)
        for group in self._keys.groups(settlements, lambda asked: asked[0].queue):
            for number, places in enumerate(_scripts(group, brought)):
                call = f"{call_id}+{number}" if number else call_id
                if self._ack(settlements, places, brought, call):
                    for place in places:
                        answers[place] = Settled.OK
                    continue
                queues, asked = settle_words(settlements, places, brought, reach=not self._keys.spread)
                lead = self._keys.shared(queues[0], f"call:settle:{call}"), self._keys.one(queues[0], "last")
                words = [_CALL_TTL_US, self._caps.most, self._caps.age, *asked]
                told = _read_answers(self._keys.run(SETTLE, queues, words, *lead))
                for place, answer in zip(places, told, strict=False):  # an id used for another batch is a mistake
                    answers[place] = answer
        return answers

    def _ack(self, settlements: Settlements, places: Sequence[int], brought: Brought, call: str) -> bool:
        """Settle these by `ack.lua`, if all are plain acks of live leases; return whether it did."""
        leases = [lease for lease, settlement in map(settlements.__getitem__, places) if _is_plain(lease, settlement)]
        tokens = dict.fromkeys(map(token_of, leases))
        if brought or len(tokens) < len(places) or len({lease.queue for lease in leases}) > 1:
            return False
        words: list[Word] = [_CALL_TTL_US, *tokens, *[lease.owner_token[:HOLDER_CHARS] for lease in leases]]
        words += [lease.id for lease in leases]
        queue = leases[0].queue
        return bool(self._keys.run(ACK, [queue], words, self._keys.shared(queue, f"call:settle:{call}")))

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        """Take back up to `MAX_REAPED_PER_CALL` messages; those of ended claims, and ended posts, count too.

        With a visibility timeout all leases of the queue are looked at, in pieces. A lease taken or settled meanwhile
        may shift another out of sight, until the next call.
        """
        visibility = -1 if visibility_timeout is None else more_than(visibility_timeout)
        back_off = [micros(min(delay, LONGEST_WAIT_S)) for delay in (policy.back_off, policy.back_off_cap)]
        reaped: list[Reaped] = []
        first = swept = 0
        while (room := MAX_REAPED_PER_CALL - len(reaped) - swept) > 0:
            most = min(REAPED_PER_SCRIPT, room)
            charges = (policy.max_crashes, float(policy.window * MICRO), *back_off, secrets.randbits(31))
            words = (most, first, visibility, *charges, self._caps.most, self._caps.age)
            looked, ended, *told = self._keys.run(REAP, [queue], words)
            for ident, crashes, cause, dead in zip(*[iter(told)] * 4, strict=True):
                name, why = ident.decode(errors="replace"), cause.decode(errors="replace")
                reaped.append(Reaped(name, queue, int(crashes), why, dead == b"1"))
            swept += ended
            first += looked - len(told) // 4
            if looked + ended < most:
                break
        return reaped


def _scripts(places: Sequence[int], brought: Brought) -> Iterator[Sequence[int]]:
    """Yield the places in order, for a script each: settlements and brought messages, or one settlement with many."""
    most = MAX_LEASES_PER_SCRIPT
    if not brought:
        return pieces(places, most)
    return in_batches(places, most, most, lambda place: 1 + len(brought.get(place, ())))


def _is_plain(lease: JobLease, settlement: Settlement) -> bool:
    """Return whether it is an ack that keeps nothing, of a message with a minted id, no unique key and no guards."""
    plain = type(settlement) is Ack and settlement.result is None and lease.guards is None
    return plain and len(token_of(lease)) == MEMBER_CHARS


def settle_words(
    settlements: Settlements, places: Sequence[int], brought: Brought, *, reach: bool
) -> tuple[list[str], list[Word]]:
    """Return the queues and the ARGV of one run of `settle.lua`, from the first queue's words on.

    `reach`: work on the queues of added messages too; those for queues not reached go to the outbox.
    """
    by_queue = grouped(range(1, len(places) + 1), lambda number: settlements[places[number - 1]][0].queue)
    followers = [(number, new) for number, place in enumerate(places, 1) for new in brought.get(place, ())]
    # Moves come first: their ids are known all the time, so a follow-up of the same id is left out, not the move.
    followers.sort(key=lambda follower: not follower[1].deliveries)
    for at, (number, new) in enumerate(followers):
        if reach:
            by_queue.setdefault(new.queue, [])
        elif new.deliveries:
            followers[at] = number, _with_origin(new, settlements[places[number - 1]][0])
    queues = list(by_queue)
    words: list[Word] = []
    for numbers in by_queue.values():
        words += _queue_words([settlements[places[number - 1]] for number in numbers])
    if len(queues) > 1:
        words += chain.from_iterable(by_queue.values())
    if followers:
        added = [new if new.queue in by_queue else replace(new, body=write_entry(new)) for _, new in followers]
        words += [*queues, *(number for number, _ in followers), *messages_words(added, queues)]
    return queues, words


def _queue_words(settlements: Settlements) -> list[Word]:
    """Return the settlements of one queue, column by column; then the results that acks keep, if any."""
    verbs, members, holders, needed, kept = "", list[Word](), list[Word](), list[Word](), list[Word]()
    for number, (lease, settlement) in enumerate(settlements, 1):
        token, guards = token_of(lease), lease.guards
        verb, words = _encode(settlement, token[MEMBER_CHARS:], guards)
        verbs += verb
        members.append(token[:MEMBER_CHARS])
        holders.append(lease.owner_token[:HOLDER_CHARS] if guards is None else guarded_token(lease, guards))
        needed += words
        if type(settlement) is Ack and settlement.result is not None:
            kept += (number, math.ceil(settlement.result.ttl * 1000), settlement.result.record)
    if kept:
        verbs += "k"
        needed += [len(kept) // 3, *kept]
    return [len(members), verbs, *members, *holders, *(lease.id for lease, _ in settlements), *needed]


def _with_origin(new: NewMessage, lease: JobLease) -> NewMessage:
    """Return a message that moves with its sequence here as a time of the past: by it `add.lua` knows it again."""
    sequence = token_of(lease)[3:MEMBER_CHARS]
    return replace(new, due=int(sequence) / MICRO) if sequence.isdecimal() else new


def _encode(settlement: Settlement, letter: str, guards: Guards | None) -> tuple[str, Sequence[Word]]:
    """Return the verb of a settlement, and the words that it needs. `letter`: the end of the lease's token."""
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
        return [REPEATED[letter] for letter in letters[1:].decode()]
    return [SETTLED[letter] for letter in letters.decode()]
