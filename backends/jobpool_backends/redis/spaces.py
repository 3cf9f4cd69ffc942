"""Records and logs: small values by space, which has its own keys in one slot as a queue has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.scripts import APPEND, DROP, GET, LIST, PUT
from jobpool_backends.shared import micros

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
