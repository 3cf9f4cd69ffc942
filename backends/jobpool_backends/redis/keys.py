"""The key store: guards of running messages, idempotency keys, rates, records and logs; one script or command a call.

A guard has no end of its own. A place is a field in a hash, `member → holder`. It is held while the message of that
member is leased to that holder: `acquire_guards.lua` looks. A settlement that carries the guards removes the fields in
its own script, and so does the next delivery of the message. Fields of a lease that ended without a word block nobody:
they are removed when met, and by a later `begin` of the queue. A space has its own keys in one slot, as a queue has.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter

import orjson

from jobpool.broker.key_store import KeyStore
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.redis import keyspace
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.records import MEMBER_CHARS
from jobpool_backends.shared import KEY_PLACE, MAX_LISTED_LOGS, MICRO, grouped, micros, pieces

MAX_LEASES_PER_SCRIPT = 500  # or rates, or records: some 10 ms of the server's time when each lease asks for all


class RedisKeyStore(KeyStore):
    """Keys beside the messages of a prefix. Its values are as durable as the server makes them."""

    def __init__(self, keys: keyspace.Keyspace) -> None:
        self._keys = keys

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        """Return the answers, in order: a round trip for each 500 leases, and for each queue where keys are spread."""
        begun = [Begun(Begin.LOST)] * len(asked)
        groups = self._keys.groups(asked, lambda wanted: wanted[0].queue)
        for places in (piece for group in groups for piece in pieces(group, MAX_LEASES_PER_SCRIPT)):
            by_queue = grouped(places, lambda place: asked[place][0].queue)
            words: list[Word] = []
            for some in by_queue.values():
                words.append(len(some))
                for lease, guards in (asked[place] for place in some):
                    words += (token_of(lease)[:MEMBER_CHARS], guarded_token(lease, guards))
            answers = self._keys.run(keyspace.ACQUIRE_GUARDS, list(by_queue), words)
            for place, answer in zip(chain.from_iterable(by_queue.values()), answers, strict=True):
                begun[place] = _read_begun(answer, asked[place][1])
        return begun

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        words = (micros(ttl), secrets.token_hex(8))
        return bool(self._keys.link.run(keyspace.FIRST_RUN, [self._keys.one(queue, f"done:{key}")], words))

    def _forget(self, queue: str, key: str) -> bool:
        return bool(self._keys.link.run(keyspace.FORGET_RUN, [self._keys.one(queue, f"done:{key}")], ()))

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        answers: list[float] = []
        for piece in pieces(rates, MAX_LEASES_PER_SCRIPT):
            words: list[Word] = [token, *(number for rate in piece for number in (rate.most, micros(rate.window)))]
            keys = [self._keys.one(queue, f"rate:{rate.name}") for rate in piece]
            answers += [left / MICRO for left in self._keys.link.run(keyspace.TAKE_STARTS, keys, words)]
        return answers

    def _holders(self, queue: str, name: str) -> list[str]:
        key = name.removeprefix(KEY_PLACE)
        places = self._keys.one(queue, f"hold:{name}" if key == name else f"runs:{key}")
        found: list[bytes] = self._keys.run(keyspace.PLACE_HOLDERS, [queue], (), places)
        return sorted(ident.decode() for ident in found)

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        words = (word for record in records.items() for word in record)
        self._keys.run(keyspace.RECORDS_PUT, [space], [micros(ttl), *words])

    def _get_records(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        answers = (self._keys.run(keyspace.RECORDS_GET, [space], some) for some in pieces(keys, MAX_LEASES_PER_SCRIPT))
        found = zip(keys, chain.from_iterable(answers), strict=True)
        return {key: value for key, value in found if value is not None}

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return a page. Up to some 8 MB come in one answer; more in several, each as it is then."""
        first, last = prefix.encode(), prefix.encode() + b"\xff"  # which no UTF-8 has
        behind = after.encode("utf-8", "replace")
        found: list[tuple[str, bytes]] = []
        if not self._keys.link.call("EXISTS", self._keys.one(space, "names")):
            return found  # every pool asks often, and mostly there is nothing
        more = behind < last
        while more and len(found) < limit:
            start = b"(" + behind if behind >= first and behind else b"[" + first
            words = (start, b"(" + last, limit - len(found))
            more, *told = self._keys.run(keyspace.RECORDS_LIST, [space], words)
            found += [(key.decode(), value) for key, value in zip(told[::2], told[1::2], strict=True)]
            behind = told[-2] if told else behind
        return found

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        self._keys.run(keyspace.RECORDS_DELETE, [space], keys)

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        words: list[Word] = [keep]
        keys = [self._keys.one(space, "logs")]
        for name, added in grouped(lines, itemgetter(0)).items():
            words += (name, len(added), *(line for _, line in added))
            keys.append(self._keys.one(space, f"log:{name}"))
        self._keys.link.run(keyspace.LOG_APPEND, keys, words)

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        lines: list[bytes] = self._keys.link.call("LRANGE", self._keys.one(space, f"log:{name}"), 0, limit - 1)
        return lines

    def _list_logs(self, space: str) -> list[str]:
        names: list[bytes] = self._keys.link.call("ZRANGE", self._keys.one(space, "logs"), 0, MAX_LISTED_LOGS - 1)
        return [name.decode() for name in names]


def guarded_token(lease: JobLease, guards: Guards) -> bytes:
    """Return the owner token, then the guards, always as the same bytes, for `acquire_guards.lua` and `settle.lua`."""
    rates = [(rate.name, rate.most, micros(rate.window)) for rate in guards.rates]
    holds = [(hold.name, hold.most) for hold in guards.holds]
    return lease.owner_token.encode() + orjson.dumps((guards.key or "", micros(guards.keep), holds, rates))


def token_of(lease: JobLease) -> str:
    """Return the lease's token; for another backend's lease, one that no message has."""
    token = lease.token
    return token if type(token) is str and token else "-"


def _read_begun(word: bytes, guards: Guards) -> Begun:
    """Parse a word of `acquire_guards.lua`."""
    match word[:1]:
        case b"g":
            return Begun(Begin.GRANTED)
        case b"d" | b"k" as letter:
            return Begun(Begin.DONE if letter == b"d" else Begin.HELD, guards.key or "")
        case b"h":
            return Begun(Begin.HELD, word[2:].decode())
        case b"r":
            left, _, name = word[2:].decode().partition(" ")
            return Begun(Begin.LIMITED, name, int(left) / MICRO)
    return Begun(Begin.LOST)
