"""The key store: idempotency keys, locks, rates, records that end by themselves, and logs of the newest lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from jobpool.broker.key_store import KeyStore
from jobpool.message.guards import Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Expiring, Turn
from jobpool_backends.shared import MAX_LISTED_LOGS, MICRO, micros


class MemoryKeys(KeyStore):
    def __init__(self, turn: Turn, store: Store) -> None:
        self._turn = turn
        self._store = store
        self._places = store.places
        self._records: Expiring[bytes] = Expiring()
        self._logs: dict[tuple[str, str], deque[bytes]] = {}

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        with self._turn.step():
            return [self._places.begin(self._store.entry(lease), lease, guards) for lease, guards in asked]

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        with self._turn.step():
            if self._places.done.get((queue, key), self._turn.now):
                return False
            self._places.done.put((queue, key), True, self._turn.now + micros(ttl))
            return True

    def _forget(self, queue: str, key: str) -> bool:
        with self._turn.step():
            return bool(self._places.done.pop((queue, key), self._turn.now))

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        with self._turn.step():
            return [self._places.take(queue, rate, token) / MICRO for rate in rates]

    def _holders(self, queue: str, name: str) -> list[str]:
        with self._turn.step():
            return sorted(entry.id for entry in self._places.live(queue, name))

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        with self._turn.step():
            for key, value in records.items():
                self._records.put((space, key), value, self._turn.now + micros(ttl))

    def _get_records(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        with self._turn.step(looks=True):
            found = {key: self._records.get((space, key), self._turn.now) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        with self._turn.step():
            known = [(key, value) for (where, key), value in self._records.items(self._turn.now) if where == space]
            return sorted(pair for pair in known if pair[0].startswith(prefix) and pair[0] > after)[:limit]

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        with self._turn.step():
            for key in keys:
                self._records.pop((space, key), self._turn.now)

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        with self._turn.step():
            for name, line in lines:
                log = self._logs.setdefault((space, name), deque())
                log.append(line)
                while len(log) > keep:
                    log.popleft()

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        with self._turn.step():
            return list(reversed(self._logs.get((space, name), ())))[:limit]

    def _list_logs(self, space: str) -> list[str]:
        with self._turn.step():
            return sorted(name for where, name in self._logs if where == space)[:MAX_LISTED_LOGS]
