"""Edits of jobs that wait: one write transaction reads each, compares it with what was seen, and changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobpool.broker.values import Edit, Edited
from jobpool_backends.shared import micros
from jobpool_backends.sqlite.database import Database
from jobpool_backends.sqlite.schema import DELAYED, WAITING
from jobpool_backends.sqlite.step import Step, Sweeper

_READ = """
SELECT state, available_at, unique_key FROM messages
WHERE seq = ? AND id = ? AND queue = ? AND priority = ? AND state IN (0, 1) AND handler <> ''
"""
_WRITE = "UPDATE messages SET queue = ?, priority = ?, state = ?, available_at = ? WHERE seq = ?"
_WRITE_BODY = "UPDATE bodies SET body = ? WHERE seq = ?"
_HAS_KEY = """
SELECT EXISTS (SELECT 1 FROM messages INDEXED BY messages_unique WHERE queue = :queue AND unique_key = :key)
    OR EXISTS (SELECT 1 FROM spent WHERE queue = :queue AND key = :key AND until > :now)
"""
_LETTERS = {Edited.EDITED: "e", Edited.CHANGED: "c", Edited.DUPLICATE: "d"}
_ANSWERS = {letter: answer for answer, letter in _LETTERS.items()}


class Editor:
    def __init__(self, database: Database, sweeper: Sweeper) -> None:
        self._database = database
        self._sweeper = sweeper

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        call = f"edit:{call_id}"
        with self._database.write() as step:
            known = step.recall(call)
            if known is not None:
                return [_ANSWERS[letter] for letter in known]
            self._sweeper.sweep(step)
            answers = [_edit(step, edit) for edit in edits]
            step.remember(call, "".join([_LETTERS[answer] for answer in answers]))
            step.frees_jobs = Edited.EDITED in answers
        return answers


def _edit(step: Step, edit: Edit) -> Edited:
    seen, number = edit.seen, int(edit.seen.cursor)
    row: tuple[Any, ...] | None = step.execute(_READ, (number, seen.id, seen.queue, seen.priority)).fetchone()
    if row is None:
        return Edited.CHANGED
    before, available_at, key = row
    now = step.now.wall
    if edit.queue != seen.queue and key is not None:
        asked = {"queue": edit.queue, "key": key, "now": now}
        if step.execute(_HAS_KEY, asked).fetchone()[0]:
            return Edited.DUPLICATE
    after = before
    if edit.due is not None:
        available_at = max(now, micros(edit.due))
        after = DELAYED if available_at > now else WAITING
    step.execute(_WRITE, (edit.queue, edit.priority, after, available_at, number))
    if edit.body is not None:
        step.execute(_WRITE_BODY, (edit.body, number))
    step.counts.add(seen.queue, before, -1)
    step.counts.add(edit.queue, after)
    return Edited.EDITED
