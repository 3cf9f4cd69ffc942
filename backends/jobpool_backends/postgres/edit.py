"""Edits of jobs that wait, all of a call in one statement."""

from __future__ import annotations

from collections.abc import Sequence

from jobpool.broker.values import Edit, Edited
from jobpool_backends.postgres.database import Database
from jobpool_backends.shared import micros

_EDIT = """
SELECT {schema}.edit(%(call)b::text, %(seqs)b::bigint[], %(ids)b::text[], %(old_queues)b::text[],
    %(old_priorities)b::smallint[], %(queues)b::text[], %(priorities)b::smallint[], %(dues)b::bigint[],
    %(bodies)b::bytea[])
"""
_ANSWERS = {"e": Edited.EDITED, "c": Edited.CHANGED, "d": Edited.DUPLICATE}


class Editor:
    def __init__(self, database: Database) -> None:
        self._database = database

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        asked = {
            "call": call_id,
            "seqs": [int(edit.seen.cursor) for edit in edits],
            "ids": [edit.seen.id for edit in edits],
            "old_queues": [edit.seen.queue for edit in edits],
            "old_priorities": [edit.seen.priority for edit in edits],
            "queues": [edit.queue for edit in edits],
            "priorities": [edit.priority for edit in edits],
            "dues": [None if edit.due is None else micros(edit.due) for edit in edits],
            "bodies": [edit.body for edit in edits],
        }
        [(letters,)] = self._database.run(_EDIT, asked)
        self._database.sweep()
        return [_ANSWERS[letter] for letter in letters]
