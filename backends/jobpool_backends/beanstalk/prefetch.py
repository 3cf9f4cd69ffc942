"""Jobs reserved by a waiter, until they are fetched."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jobpool_backends.beanstalk.connection import Held


class Prefetched:
    """Leases that nobody has fetched yet, by queue, the oldest first; any number of threads at once."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._helds: dict[str, list[Held]] = {}

    def put(self, helds: Sequence[Held]) -> None:
        with self._changing:
            for held in helds:
                self._helds.setdefault(held.lease.queue, []).append(held)

    def take(self, queue: str, limit: int) -> list[Held]:
        """Take up to `limit` of this queue: they are the caller's now."""
        if queue not in self._helds:
            return []
        with self._changing:
            helds = self._helds.pop(queue, [])
            if helds[limit:]:
                self._helds[queue] = helds[limit:]
            return helds[:limit]

    def take_all(self) -> list[Held]:
        """Return all there is, of any queue."""
        with self._changing:
            helds = [held for kept in self._helds.values() for held in kept]
            self._helds.clear()
            return helds

    def withdraw(self, helds: Sequence[Held]) -> list[Held]:
        """Take those that are still here: they are the caller's now."""
        with self._changing:
            mine = [held for held in helds if held in self._helds.get(held.lease.queue, ())]
            for held in mine:
                self._helds[held.lease.queue].remove(held)
                if not self._helds[held.lease.queue]:
                    del self._helds[held.lease.queue]
            return mine

    def any_of(self, queues: Sequence[str]) -> str | None:
        """Return one of these queues that has something here."""
        return next((queue for queue in queues if queue in self._helds), None) if self._helds else None
