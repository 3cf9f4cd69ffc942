"""Bulk changes by an administrator.

Messages are looked for without holding anything up, and changed a bounded piece a script. A message that moved on
meanwhile is left alone: it is changed only if its record is still the one that was seen. Leased ones are never touched.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from jobpool.broker.values import MessageFilter, Verb
from jobpool_backends.redis.keys import Keys
from jobpool_backends.redis.link import Link
from jobpool_backends.redis.looking import Looker
from jobpool_backends.redis.records import Row
from jobpool_backends.redis.scripts import CHANGE
from jobpool_backends.redis.wire import Word
from jobpool_backends.shared import TOUCHABLE

PIECE = 250
"""Messages a script."""


class Tender:
    """The bulk changes of queues."""

    def __init__(self, link: Link, keys: Keys, looker: Looker) -> None:
        self._link = link
        self._keys = keys
        self._looker = looker

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        states = tuple(state for state in TOUCHABLE[verb] if not where.states or state in where.states)
        if not states:
            return 0
        found = self._looker.search(replace(where, states=states), piece=min(limit, PIECE))
        changed = 0
        while rows := list(islice(found, min(PIECE, limit - changed))):
            changed += self._change(rows, verb)
        return changed

    def _change(self, rows: list[Row], verb: Verb) -> int:
        by_queue: dict[str, list[Word]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, [verb.value]).extend((row.member, row.stored))
        return sum(
            self._link.run(CHANGE.script, CHANGE.keys(self._keys, [queue]), words) for queue, words in by_queue.items()
        )
