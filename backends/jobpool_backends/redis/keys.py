"""Guards: grants to a lease before its handler runs, in one script for a batch.

No grant has an end of its own. A place is a line in a hash, `member → holder`, and it is held while the message of that
member is leased to that holder: `begin.lua` looks. A settlement that carries the guards removes the lines in its own
script, and so does the next delivery of the message. Lines of a lease that ended without a word block nobody: they are
removed when met, and by a later `begin` of the queue.

Records and logs: small values by space, which has its own keys in one slot as a queue has.

`RedisKeyStore`: the key store's contract, put together from `guarding` and `spaces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from jobpool.broker.key_store import KeyStore
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.records import MEMBER_CHARS
from jobpool_backends.redis.scripts import APPEND, BEGIN, DROP, FIRST_RUN, FORGET, GET, HOLDERS, LIST, PUT, TAKE
from jobpool_backends.shared import KEY_PLACE, MICRO, micros

MAX_LEASES_PER_SCRIPT = 500
"""Leases a script, some 10 ms of the server's time when each asks for everything; a larger batch is several."""

_GRANTED = Begun(Begin.GRANTED)
_LOST = Begun(Begin.LOST)


class GuardStore:
    """Grants guards."""

    def __init__(self, link: Link, keys: KeyNames) -> None:
        self._link = link
        self._keys = keys

    def begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        """Return the answers, in order: a round trip for each 500 leases, and for each queue where keys are spread."""
        begun = [_LOST] * len(asked)
        for places in self._parts(asked):
            by_queue: dict[str, list[int]] = {}
            for place in places:
                by_queue.setdefault(asked[place][0].queue, []).append(place)
            words = self._link.run(
                BEGIN.script, BEGIN.keys(self._keys, list(by_queue)), list(_words(asked, list(by_queue.values())))
            )
            told = (place for some in by_queue.values() for place in some)
            for place, word in zip(told, words, strict=True):
                begun[place] = _read(word, asked[place][1])
        return begun

    def first_run(self, queue: str, key: str, ttl: float) -> bool:
        return bool(self._link.run(FIRST_RUN.script, [self._done(queue, key)], [micros(ttl)]))

    def forget(self, queue: str, key: str) -> bool:
        return bool(self._link.run(FORGET.script, [self._done(queue, key)], ()))

    def take(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        answers: list[float] = []
        for first in range(0, len(rates), MAX_LEASES_PER_SCRIPT):
            piece = rates[first : first + MAX_LEASES_PER_SCRIPT]
            words: list[Word] = [token, *(number for rate in piece for number in (rate.most, micros(rate.window)))]
            left = self._link.run(TAKE.script, [self._keys.one(queue, f"rate:{rate.name}") for rate in piece], words)
            answers += [micros_left / MICRO for micros_left in left]
        return answers

    def holders(self, queue: str, name: str) -> list[str]:
        key = name.removeprefix(KEY_PLACE)
        places = self._keys.one(queue, f"hold:{name}" if key == name else f"runs:{key}")
        found: list[bytes] = self._link.run(HOLDERS.script, HOLDERS.keys(self._keys, [queue], places), ())
        return sorted(ident.decode() for ident in found)

    def _done(self, queue: str, key: str) -> str:
        return self._keys.one(queue, f"done:{key}")

    def _parts(self, asked: Sequence[tuple[JobLease, Guards]]) -> Iterator[list[int]]:
        """Yield the places of what one script answers."""
        groups: dict[str, list[int]] = {}
        for place, (lease, _) in enumerate(asked):
            groups.setdefault(lease.queue if self._keys.spread else "", []).append(place)
        for places in groups.values():
            yield from (
                places[first : first + MAX_LEASES_PER_SCRIPT] for first in range(0, len(places), MAX_LEASES_PER_SCRIPT)
            )


def guarded_token(lease: JobLease, guards: Guards) -> bytes:
    """Return the owner token with the guards behind it, as `begin.lua` and `settle.lua` take them: always the same
    bytes.
    """
    rates = [(rate.name, rate.most, micros(rate.window)) for rate in guards.rates]
    holds = [(hold.name, hold.most) for hold in guards.holds]
    return lease.owner_token.encode() + orjson.dumps((guards.key or "", micros(guards.keep), holds, rates))


def token_of(lease: JobLease) -> str:
    """Return the lease's token; one that no message has, for another backend's lease."""
    token = lease.token
    return token if type(token) is str and token else "-"


def _words(asked: Sequence[tuple[JobLease, Guards]], groups: Sequence[list[int]]) -> Iterator[Word]:
    for places in groups:
        yield len(places)
        for place in places:
            lease, guards = asked[place]
            yield token_of(lease)[:MEMBER_CHARS]
            yield guarded_token(lease, guards)


def _read(word: bytes, guards: Guards) -> Begun:
    """Parse a word of `begin.lua`."""
    match word[:1]:
        case b"g":
            return _GRANTED
        case b"d":
            return Begun(Begin.DONE, guards.key or "")
        case b"k":
            return Begun(Begin.HELD, guards.key or "")
        case b"h":
            return Begun(Begin.HELD, word[2:].decode())
        case b"r":
            left, _, name = word[2:].decode().partition(" ")
            return Begun(Begin.LIMITED, name, int(left) / MICRO)
        case _:
            return _LOST


MAX_LOGS = 10_000
"""Names of logs that are listed."""

_RECORDS = ("values", "names", "ends")


class SpaceStore:
    """The store of records and logs."""

    def __init__(self, link: Link, keys: KeyNames) -> None:
        self._link = link
        self._keys = keys

    # --- records -----------------------------------------------------------------------------------

    def put(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        words: list[Word] = [micros(ttl)]
        for key, value in records.items():
            words += (key, value)
        self._link.run(PUT.script, self._records(space), words)

    def get(self, space: str, key: str) -> bytes | None:
        value: bytes | None = self._link.run(GET.script, self._records(space), (key,))
        return value

    def page(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return a page. Up to some 8 MB come in one answer; more in several, each as it is then."""
        first, last = prefix.encode(), prefix.encode() + b"\xff"  # which no UTF-8 has
        behind = after.encode("utf-8", "replace")
        found: list[tuple[str, bytes]] = []
        more = behind < last
        while more and len(found) < limit:
            start = b"(" + behind if behind >= first and behind else b"[" + first
            words = (start, b"(" + last, limit - len(found))
            more, *told = self._link.run(LIST.script, self._records(space), words)
            found += [(key.decode(), value) for key, value in zip(told[::2], told[1::2], strict=True)]
            behind = told[-2] if told else behind
        return found

    def drop(self, space: str, keys: Sequence[str]) -> None:
        self._link.run(DROP.script, self._records(space), list(keys))

    def _records(self, space: str) -> Sequence[str]:
        return self._keys.of(space, _RECORDS)

    # --- logs --------------------------------------------------------------------------------------

    def append(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        logs: dict[str, list[bytes]] = {}
        for name, line in lines:
            logs.setdefault(name, []).append(line)
        words: list[Word] = [keep]
        for name, added in logs.items():
            words += (name, len(added), *added)
        keys = [self._keys.one(space, "logs"), *(self._log(space, name) for name in logs)]
        self._link.run(APPEND.script, keys, words)

    def read(self, space: str, name: str, limit: int) -> list[bytes]:
        lines: list[bytes] = self._link.call("LRANGE", self._log(space, name), 0, limit - 1)
        return lines

    def logs(self, space: str) -> list[str]:
        names: list[bytes] = self._link.call("ZRANGE", self._keys.one(space, "logs"), 0, MAX_LOGS - 1)
        return [name.decode() for name in names]

    def _log(self, space: str, name: str) -> str:
        return self._keys.one(space, f"log:{name}")


class RedisKeyStore(KeyStore):
    """Keys beside the messages of a prefix; every method is one script or one command.

    Its values are as durable as the server makes them.
    """

    def __init__(self, link: Link, keys: KeyNames) -> None:
        self._guards = GuardStore(link, keys)
        self._spaces = SpaceStore(link, keys)

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        return self._guards.begin(asked)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        return self._guards.first_run(queue, key, ttl)

    def _forget(self, queue: str, key: str) -> bool:
        return self._guards.forget(queue, key)

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        return self._guards.take(queue, rates, token)

    def _holders(self, queue: str, name: str) -> list[str]:
        return self._guards.holders(queue, name)

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        self._spaces.put(space, records, ttl)

    def _get_record(self, space: str, key: str) -> bytes | None:
        return self._spaces.get(space, key)

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        return self._spaces.page(space, prefix, after, limit)

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        self._spaces.drop(space, keys)

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        self._spaces.append(space, lines, keep)

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        return self._spaces.read(space, name, limit)

    def _list_logs(self, space: str) -> list[str]:
        return self._spaces.logs(space)
