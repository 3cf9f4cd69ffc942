"""Records that end by themselves, and logs of the newest lines. Its owner holds the lock, and tells the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from jobpool_backends.memory.expiry import Expiring

MAX_LISTED_LOGS = 10_000
"""Names in one list of logs."""


class Notes:
    """The notes of all spaces."""

    def __init__(self) -> None:
        self._records: Expiring[bytes] = Expiring()
        self._logs: dict[tuple[str, str], deque[bytes]] = {}

    def put(self, space: str, records: Mapping[str, bytes], until: int) -> None:
        for key, value in records.items():
            self._records.put((space, key), value, until)

    def get(self, space: str, key: str, now: int) -> bytes | None:
        return self._records.get((space, key), now)

    def page(self, space: str, prefix: str, after: str, limit: int, now: int) -> list[tuple[str, bytes]]:
        known = [(key, value) for (where, key), value in self._records.items(now) if where == space]
        return sorted(pair for pair in known if pair[0].startswith(prefix) and pair[0] > after)[:limit]

    def delete(self, space: str, keys: Sequence[str], now: int) -> None:
        for key in keys:
            self._records.pop((space, key), now)

    def append(self, space: str, lines: Sequence[tuple[str, bytes]], keep: int) -> None:
        for name, line in lines:
            log = self._logs.setdefault((space, name), deque())
            log.append(line)
            while len(log) > keep:
                log.popleft()

    def read(self, space: str, name: str, limit: int) -> list[bytes]:
        log = self._logs.get((space, name), deque())
        return [log[-place] for place in range(1, min(limit, len(log)) + 1)]

    def logs(self, space: str) -> list[str]:
        return sorted(name for where, name in self._logs if where == space)[:MAX_LISTED_LOGS]
