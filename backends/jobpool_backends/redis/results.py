"""Kept results: looks at them, and waits for ends of jobs.

A result is a key of its own, which expires by itself. A waiter leaves its token beside the ids that it waits for. It
blocks on a list of its own, as waiters for jobs do (`wait.py`), to which the script pushes that ends such a job.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from jobpool_backends.redis.inspect import Inspector
from jobpool_backends.redis.keyspace import AWAIT, Keyspace
from jobpool_backends.redis.records import pieces, places_by

IDS_PER_SCRIPT = 500


class Results:
    """The results of one prefix; any number of threads at once."""

    def __init__(self, keys: Keyspace, inspector: Inspector) -> None:
        self._keys = keys
        self._inspector = inspector
        self._tokens: list[str] = []  # of waits that are over: used again, so that few lists are left behind

    def get(self, idents: Sequence[str]) -> dict[str, bytes]:
        queues = self._inspector.names() if self._keys.spread else [""]
        asked = [(ident, ("GET", self._keys.result(queue, ident))) for ident in idents for queue in queues]
        answers = self._keys.link.call_many([command for _, command in asked])
        found = zip(asked, answers, strict=True)
        return {ident: record for (ident, _), record in found if record is not None}

    def wait(self, idents: Sequence[str], timeout: float) -> None:
        found = self._inspector.places(idents)
        if len(found) < len(idents):
            return
        queues = places_by(place.queue for _, place in found)
        token = self._tokens.pop() if self._tokens else secrets.token_hex(8)
        try:
            for queue, some in queues.items():
                for piece in pieces([found[at][0] for at in some], IDS_PER_SCRIPT):
                    if self._keys.run(AWAIT, [queue], [token, *piece]):
                        return
            self._keys.link.wait_pop([self._keys.one(queue, f"told:{token}") for queue in queues], timeout)
        finally:
            self._tokens.append(token)
