"""The administrator's side: counts, lists, single messages, and bulk changes.

The server goes through messages in enqueue order, a bounded number in each statement, so that each is answered in time.
It finds a queue and a state by index; a handler, a reason or an age message by message. Texts are compared here,
because Python decides for all backends alike which letters are the same.

Bulk changes look for messages first, and then change them, a bounded number in each statement. One that has changed
meanwhile in any way is left alone. Leased ones are never touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from jobpool.broker import parts
from jobpool.broker.filters import next_page
from jobpool.broker.values import Edit, Edited, Message, MessageFilter, QueueStats, State, Verb
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool_backends.postgres import schema
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.in_transaction import or_null
from jobpool_backends.postgres.leases import numbers
from jobpool_backends.shared import EDITED, MICRO, contains, micros
from jobpool_backends.sql import BULK_BATCH_MESSAGES, read_message

STATS_CAP = 10_000
"""Messages of each state that are counted. Exact counts would be rows that every fetch and settlement changes, and
those of all pools would wait for each other's commits."""

_FIRST_BODIES, _MOST_BODIES = 20, 256  # messages whose bodies one statement brings: the first, and each later one

_STATS = """
SELECT s.*, {schema}.count_posted(%(queue)b, %(most)b) FROM {schema}.stats(%(queue)b, %(most)b) s
"""
_FILTER = """
    %(queues)b::text[], %(kinds)b::smallint[], %(due)b, %(later)b, %(handler)b::text, %(reason)b::text,
    %(older)b::bigint, %(newer)b::bigint, %(behind)b::bigint, %(most)b, %(bodies)b
"""
_PLACE = "seq, place"
_SHOWN = """
    seq, id, queue, handler, priority, attempts, crashes, deliveries, enqueued_at, available_at,
    CASE WHEN octet_length(body) <= %(largest)b THEN body END, reason, last_error,
    coalesce(nullif(forfeited, ''), cause), died_at, deadline, claim, claims, ends_at, cause, state, place
"""
_UP = f"{{schema}}.look_up(%(ids)b::text[], {_FILTER})"
_THROUGH = f"{{schema}}.look_through({_FILTER}, %(share)b)"

_EDIT = """
SELECT {schema}.edit(%(call)b::text, %(seqs)b::bigint[], %(ids)b::text[], %(old_queues)b::text[],
    %(old_priorities)b::smallint[], %(queues)b::text[], %(priorities)b::smallint[], %(dues)b::bigint[],
    %(bodies)b::bytea[])
"""
_CHANGE = "SELECT {schema}.VERB(%(places)b::text[]::tid[], %(seqs)s)"
_CHANGES = {Verb.DELETE: "discard", Verb.RETRY: "retry", Verb.RESUME: "resume", Verb.CANCEL: "cancel"}

_STORED = {
    State.WAITING: (schema.WAITING, schema.POSTED, schema.POSTED_AGAIN),
    State.DELAYED: (schema.DELAYED, schema.POSTED_LATER),
    State.LEASED: (schema.LEASED, schema.POSTED_HELD),
    State.DEAD: (schema.DEAD,),
}
_STATES = {number: state for state, numbers in _STORED.items() for number in numbers}

Row = tuple[Any, ...]


class Inspector(parts.Inspector):
    def __init__(self, database: Database) -> None:
        self._database = database

    def stats(self, queue: str) -> QueueStats:
        [row] = self._database.run(_STATS, {"queue": queue, "most": STATS_CAP})
        waiting, due, delayed, leased, dead, age, posted = row
        counts = (min(waiting + due, STATS_CAP), delayed, leased, dead)
        return QueueStats(
            *counts,
            oldest=None if age is None else max(0, age) / MICRO,
            cap=STATS_CAP if STATS_CAP in (*counts, posted) else None,
            posted=posted,
        )

    def queues(self) -> list[str]:
        return list(self._database.value("queue_names"))

    def evicted(self, queue: str) -> int:
        return int(self._database.value("evicted", queue))

    def page(self, where: MessageFilter, after: int, limit: int, largest: int = MAX_BODY_BYTES) -> list[Message]:
        found = self.search(where, behind=after, limit=limit, largest=largest)
        return [_message(row) for row in islice(found, limit)]

    def count(self, where: MessageFilter, cap: int) -> int:
        return sum(1 for _ in islice(self.search(where, limit=cap), cap))

    def search(self, where: MessageFilter, *, limit: int, behind: int = 0, largest: int | None = None) -> Iterator[Row]:
        """Yield the messages that match, in enqueue order, from the one after number `behind` on.

        Rows are of `_SHOWN`, with bodies of up to `largest` bytes. They are of `_PLACE` if that is None and the filter
        asks for no text. More than `limit` may come.
        """
        if where.text is None:
            yield from self._search(where, behind, min(limit, schema.WINDOW), largest)
            return
        for row in self._search(where, behind, _MOST_BODIES, sys.maxsize):
            body, last_error, shown_cause, cause = row[10], row[12], row[13], row[19]
            if contains(where.text, body, last_error, shown_cause, cause):
                yield row

    def _search(self, where: MessageFilter, behind: int, limit: int, largest: int | None) -> Iterator[Row]:
        """Yield the rows, up to `limit` a statement; fewer bodies where they are large, so that it ends in time."""
        states = [State(state) for state in dict.fromkeys(where.states)] or list(State)
        asked = {
            "ids": list(where.ids),
            "queues": None if where.queue is None else [where.queue],
            "kinds": [number for state in states for number in _STORED[state]],
            "due": State.WAITING in states and State.DELAYED not in states,
            "later": State.DELAYED in states and State.WAITING not in states,
            "handler": where.handler,
            "reason": where.reason,
            "older": None if where.older_than is None else micros(where.older_than),
            "newer": None if where.newer_than is None else micros(where.newer_than),
            "bodies": bool(largest),
            "largest": largest,
        }
        sql = f"SELECT {_PLACE if largest is None else _SHOWN} FROM {_UP if where.ids else _THROUGH}"
        on: int | None = behind
        most = min(limit, _FIRST_BODIES) if largest else limit
        share = most  # enough where each message matches; where few do, more are looked at from time to time
        while on is not None:
            rows = self._database.run(sql, asked | {"behind": on, "most": most, "share": share})
            on = (rows[-1][0] if len(rows) == most else None) if where.ids else rows.pop()[0]
            share = min(share * 4, schema.WINDOW)
            if largest and rows:
                most = next_page([len(row[10] or b"") for row in rows], min(limit, _MOST_BODIES), schema.PAGE_BYTES)
            yield from rows

    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        found = self.search(where, limit=min(limit, BULK_BATCH_MESSAGES))
        changed = 0
        while changed < limit and (piece := list(islice(found, min(BULK_BATCH_MESSAGES, limit - changed)))):
            changed += self._change(verb, piece)
        return changed

    def _change(self, verb: Verb, rows: list[Row]) -> int:
        asked = {"places": [row[-1] for row in rows], "seqs": numbers([row[0] for row in rows])}
        [(changed,)] = self._database.run(_CHANGE.replace("VERB", _CHANGES[verb]), asked)
        return int(changed)

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        asked = {
            "call": call_id,
            "seqs": [int(edit.seen.cursor) for edit in edits],
            "ids": [edit.seen.id for edit in edits],
            "old_queues": [edit.seen.queue for edit in edits],
            "old_priorities": [edit.seen.priority for edit in edits],
            "queues": [edit.queue for edit in edits],
            "priorities": [edit.priority for edit in edits],
            "dues": or_null([None if edit.due is None else micros(edit.due) for edit in edits]),
            "bodies": or_null([edit.body for edit in edits]),
        }
        [(letters,)] = self._database.run(_EDIT, asked)
        self._database.sweep()
        return [EDITED[letter] for letter in letters]


def _message(row: Row) -> Message:
    return read_message(row, _STATES[row[20]], row[16])
