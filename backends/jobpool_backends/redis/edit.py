"""Edits of jobs that wait, all of a call in one script; on a cluster one for each queue."""

from __future__ import annotations

from collections.abc import Sequence

from jobpool.broker.values import REMEMBER_CALLS, Edit, Edited
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.keyspace import EDIT, Keyspace
from jobpool_backends.redis.records import PRIORITIES, due_word, member_of, places_by
from jobpool_backends.shared import micros

_ANSWERS = {ord("e"): Edited.EDITED, ord("c"): Edited.CHANGED, ord("d"): Edited.DUPLICATE}


class Editor:
    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys

    def edit(self, edits: Sequence[Edit], call_id: str) -> list[Edited]:
        """Return the answers, in order. Each script remembers its own."""
        answers = [Edited.CHANGED] * len(edits)
        everything: Sequence[Sequence[int]] = [range(len(edits))]
        for places in places_by(edit.queue for edit in edits).values() if self._keys.spread else everything:
            told = self._run([edits[place] for place in places], call_id)
            for place, letter in zip(places, told, strict=False):  # an id used for other edits is a mistake
                answers[place] = _ANSWERS[letter]
        return answers

    def _run(self, edits: Sequence[Edit], call_id: str) -> bytes:
        queues = list(dict.fromkeys(queue for edit in edits for queue in (edit.seen.queue, edit.queue)))
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        words: list[Word] = [micros(REMEMBER_CALLS), *queues]
        for edit in edits:
            seen = edit.seen
            words += (numbers[seen.queue], numbers[edit.queue], member_of(seen), seen.id, PRIORITIES[edit.priority])
            words += (due_word(edit.due), edit.body or b"")
        told: bytes = self._keys.run(EDIT, queues, words, self._keys.one(queues[0], f"call:edit:{call_id}"))
        return told
