"""Bulk changes by an administrator: delete messages, or retry or resume dead ones.

Messages are looked for first, and then changed, a bounded number in each statement. One that has changed meanwhile in
any way is left alone. Leased ones are never touched.
"""

from __future__ import annotations

from itertools import islice

from jobpool.broker.values import MessageFilter, Verb
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.fetch import numbers
from jobpool_backends.postgres.inspect import Inspector, Row
from jobpool_backends.sql import touchable

BULK_BATCH_MESSAGES = 500
_CHANGES = {
    Verb.DELETE: "SELECT {schema}.discard(%(places)b::text[]::tid[], %(seqs)s)",
    Verb.RETRY: "SELECT {schema}.retry(%(places)b::text[]::tid[], %(seqs)s)",
    Verb.RESUME: "SELECT {schema}.resume(%(places)b::text[]::tid[], %(seqs)s)",
}


class BulkChanges:
    """The bulk changes of one database."""

    def __init__(self, database: Database, inspector: Inspector) -> None:
        self._database = database
        self._inspector = inspector

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        wanted = touchable(where, verb)
        if wanted is None:
            return 0
        found = self._inspector.search(wanted, limit=min(limit, BULK_BATCH_MESSAGES))
        changed = 0
        while changed < limit and (piece := list(islice(found, min(BULK_BATCH_MESSAGES, limit - changed)))):
            changed += self._change(verb, piece)
        return changed

    def _change(self, verb: Verb, rows: list[Row]) -> int:
        asked = {"places": [row[-1] for row in rows], "seqs": numbers([row[0] for row in rows])}
        changed: int
        [(changed,)] = self._database.run(_CHANGES[verb], asked)
        return changed
