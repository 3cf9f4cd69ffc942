"""Messages that a person or a program deletes by name, or takes for good; within a write transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobpool.broker.claim_store import Deleted, QueueMessage
from jobpool_backends.sqlite import calls, claimed, removing
from jobpool_backends.sqlite.claimed import COLUMNS, LIVING
from jobpool_backends.sqlite.claiming import look, numbers, promote_all
from jobpool_backends.sqlite.counts import counted_as
from jobpool_backends.sqlite.schema import LEASED
from jobpool_backends.sqlite.step import Step

_FACTS = "id, seq, state, handler, given, claim"
_NAMED = f"""
SELECT {_FACTS} FROM messages INDEXED BY messages_by_id
WHERE id IN (SELECT value FROM json_each(:ids)) AND queue = :queue AND state <> 3 AND {LIVING}
"""
_NUMBERED = f"""
SELECT {_FACTS}, {COLUMNS} FROM messages WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY priority, seq
"""
_MARK_EMPTY = """
UPDATE claims SET empty = 1 WHERE queue = :queue AND id = :claim AND NOT EXISTS (
    SELECT 1 FROM messages INDEXED BY messages_claimed WHERE queue = :queue AND claim = :claim
)
"""


class _Fact(NamedTuple):
    """A living message."""

    id: str
    seq: int
    state: int
    handler: str
    given: int
    claim: str | None


_WIDTH = len(_Fact._fields)


def delete(step: Step, idents: Sequence[str], claim_id: str | None) -> list[Deleted]:
    """Delete what may be deleted. The claim lives."""
    asked = {"ids": json.dumps(idents), "queue": step.queue, "wall": step.now.wall}
    there = {row[0]: _Fact._make(row) for row in step.connection.execute(_NAMED, asked)}
    kept = {ident for ident, fact in there.items() if not _may_go(step, fact, claim_id)}
    _remove(step, [fact for fact in there.values() if fact.id not in kept])
    if claim_id is not None:
        step.connection.execute(_MARK_EMPTY, {"queue": step.queue, "claim": claim_id})
    return [Deleted.FORBIDDEN if ident in kept else Deleted.DONE for ident in idents]


def pop(step: Step, limit: int) -> list[QueueMessage]:
    """Delete the first free messages, and return them."""
    promote_all(step)
    rows = step.connection.execute(_NUMBERED, (numbers(look(step, limit)),)).fetchall()
    _remove(step, [_Fact._make(row[:_WIDTH]) for row in rows])
    return [claimed.message(row[_WIDTH:]) for row in rows]


def _may_go(step: Step, fact: _Fact, claim_id: str | None) -> bool:
    """Return whether who holds this live claim, or none, may delete it."""
    if claim_id is not None:
        return fact.claim == claim_id
    if fact.state != LEASED:
        return True
    return fact.claim is not None and not claimed.read_live(step.connection, step.queue, fact.claim, step.now)


def _remove(step: Step, facts: Iterable[_Fact]) -> None:
    gone = list(facts)
    if not gone:
        return
    removing.delete(step.connection, [fact.seq for fact in gone])
    calls.remember_ended(step.connection, [fact.id for fact in gone if fact.given], step.now.wall)
    for fact in gone:
        step.counts.remove(step.queue, counted_as(fact.state, fact.handler))
