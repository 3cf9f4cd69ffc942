"""The key store: idempotency keys, locks, rates, records that end by themselves, and logs of the newest lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Condition

from jobpool.broker.key_store import KeyStore
from jobpool.clock import Clock
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.memory.store import Store
from jobpool_backends.memory.values import Expiring, judge
from jobpool_backends.shared import MICRO, micros

MAX_LISTED_LOGS = 10_000


class MemoryKeys(KeyStore):
    """Keys of one store, under its lock."""

    def __init__(self, store: Store, clock: Clock, lock: Condition) -> None:
        self._store = store
        self._places = store.places
        self._records: Expiring[bytes] = Expiring()
        self._logs: dict[tuple[str, str], deque[bytes]] = {}
        self._clock = clock
        self._lock = lock

    def _wall(self) -> int:
        return micros(self._clock.wall())

    def _boot(self) -> int:
        return micros(self._clock.boot())

    def _begin(self, asked: Sequence[tuple[JobLease, Guards]]) -> list[Begun]:
        with self._lock:
            boot, now = self._boot(), self._wall()
            return [self._begin_one(lease, guards, boot, now) for lease, guards in asked]

    def _begin_one(self, lease: JobLease, guards: Guards, boot: int, now: int) -> Begun:
        entry = self._store.entries.get(lease.token)  # type: ignore[call-overload]
        if entry is None or not judge(entry, lease, boot):
            return Begun(Begin.LOST)
        return self._places.begin(entry, guards, boot, now)

    def _first_run(self, queue: str, key: str, ttl: float) -> bool:
        with self._lock:
            now = self._wall()
            if self._places.done.get((queue, key), now):
                return False
            self._places.done.put((queue, key), True, now + micros(ttl))
            return True

    def _forget(self, queue: str, key: str) -> bool:
        with self._lock:
            return bool(self._places.done.pop((queue, key), self._wall()))

    def _take_many(self, queue: str, rates: Sequence[Rate], token: str) -> list[float]:
        with self._lock:
            now = self._wall()
            return [self._places.take(queue, rate, token, now) / MICRO for rate in rates]

    def _holders(self, queue: str, name: str) -> list[str]:
        with self._lock:
            return self._places.holders(queue, name, self._boot())

    def _put_records(self, space: str, records: Mapping[str, bytes], ttl: float) -> None:
        with self._lock:
            until = self._wall() + micros(ttl)
            for key, value in records.items():
                self._records.put((space, key), value, until)

    def _get_record(self, space: str, key: str) -> bytes | None:
        with self._lock:
            return self._records.get((space, key), self._wall())

    def _list_records(self, space: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        with self._lock:
            known = [(key, value) for (where, key), value in self._records.items(self._wall()) if where == space]
            return sorted(pair for pair in known if pair[0].startswith(prefix) and pair[0] > after)[:limit]

    def _delete_records(self, space: str, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._records.pop((space, key), self._wall())

    def _append_log(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        with self._lock:
            for name, line in lines:
                log = self._logs.setdefault((space, name), deque())
                log.append(line)
                while len(log) > keep:
                    log.popleft()

    def _read_log(self, space: str, name: str, limit: int) -> list[bytes]:
        with self._lock:
            return list(reversed(self._logs.get((space, name), ())))[:limit]

    def _list_logs(self, space: str) -> list[str]:
        with self._lock:
            return sorted(name for where, name in self._logs if where == space)[:MAX_LISTED_LOGS]
