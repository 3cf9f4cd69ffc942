"""Messages on their way in."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from jobpool.broker.values import NewMessage
from jobpool.errors import InvalidJob
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.records import PRIORITIES, due_of, tail_of
from jobpool_backends.redis.scripts import ENQUEUE

MAX_MESSAGES_PER_CALL = 100_000
"""Messages a call. One script adds them, all or none, and the server does nothing else meanwhile: 10 µs for each."""

_LIST_INTERVAL_S = 60.0
"""Seconds after which a cluster is told a queue's name again: somebody may have flushed it."""


class Enqueuer:
    """The adder of messages."""

    def __init__(self, link: Link, keys: KeyNames) -> None:
        self._link = link
        self._keys = keys
        self._listed: dict[str, float] = {}

    def add(self, messages: Sequence[NewMessage]) -> dict[str, str]:
        """Add those whose id is not known yet, in their order: in one step, or where keys are spread, queue by queue.

        Returns what was left out because another message has its unique key: its id → the other's.

        Raises:
            InvalidJob: There are more than `MAX_MESSAGES_PER_CALL`.
        """
        if len(messages) > MAX_MESSAGES_PER_CALL:
            raise InvalidJob(f"{len(messages)} jobs in one call are too many: at most {MAX_MESSAGES_PER_CALL}")
        existing: dict[str, str] = {}
        for group in self._groups(messages):
            queues = list(dict.fromkeys([message.queue for message in group]))
            keys = ENQUEUE.keys(self._keys, queues, self._keys.one(queues[0], "last"))
            told = self._link.run(ENQUEUE.script, keys, [*queues, *messages_words(group, queues)])
            if told:
                idents = [ident.decode() for ident in told]
                existing |= zip(idents[::2], idents[1::2], strict=True)
        return existing

    def _groups(self, messages: Sequence[NewMessage]) -> list[list[NewMessage]]:
        if not self._keys.spread:
            return [list(messages)]
        groups: dict[str, list[NewMessage]] = {}
        for message in messages:
            groups.setdefault(message.queue, []).append(message)
        self.list_queues(groups)
        return list(groups.values())

    def list_queues(self, queues: Iterable[str]) -> None:
        """Note the names where all queues are listed, if keys are spread: before anything is added, so that no message
        is where nobody looks.
        """
        if not self._keys.spread:
            return
        now = time.monotonic()
        unknown = [queue for queue in queues if self._listed.get(queue, 0.0) <= now]
        if unknown:
            self._link.call("SADD", self._keys.queues, *unknown)
            listed = {queue: until for queue, until in self._listed.items() if until > now}
            self._listed = listed | dict.fromkeys(unknown, now + _LIST_INTERVAL_S)


def messages_words(messages: Sequence[NewMessage], queues: Sequence[str]) -> list[Word]:
    """Return messages as `add.lua` takes them: how many, their ids, then five words each.

    A queue that is not among `queues` has the number 0.
    """
    numbers = {queue: number for number, queue in enumerate(queues, 1)}
    words: list[Word] = [len(messages)]
    words += [message.id for message in messages]
    for message in messages:
        number = numbers.get(message.queue, 0)
        words += (number, PRIORITIES[message.priority], due_of(message), tail_of(message), message.body)
    return words
