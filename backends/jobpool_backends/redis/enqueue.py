"""Messages on their way in, and from one slot of a cluster to another.

On a cluster a settlement writes messages for other queues into the outbox of its own queue, in the same step that ends
the lease. They are brought to their queues right afterwards; after a crash, by the next reap of that queue. They are
first added, then removed. So one may be added twice, which changes nothing: an added id is known until ten minutes
after its end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from jobpool.broker.values import NewMessage
from jobpool.errors import BackendUnavailable, InvalidJob
from jobpool.message.batches import NOT_OPEN
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.keyspace import ENQUEUE, ENQUEUE_ONE, OUTBOX_DROP, OUTBOX_PEEK, Keyspace
from jobpool_backends.redis.records import PRIORITIES, due_word, read_entry, tail_of

MAX_MESSAGES_PER_CALL = 100_000  # one script adds them, and the server does nothing else meanwhile: 10 µs for each
ENTRIES_PER_SCRIPT = 100
_BYTES_PER_SCRIPT = 4 * 2**20
_LIST_INTERVAL_S = 60.0  # after which a cluster is told a queue's name again: it may have been flushed


class Enqueuer:
    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._listed: dict[str, float] = {}

    def add(self, messages: Sequence[NewMessage]) -> dict[str, str]:
        """Add those whose id is not known yet, in their order: in one step, or where keys are spread, queue by queue.

        Returns what was left out because another message has its unique key: its id → the other's. Raises `InvalidJob`:
        there are more than `MAX_MESSAGES_PER_CALL`, or the batch of one is not open.
        """
        if len(messages) > MAX_MESSAGES_PER_CALL:
            raise InvalidJob(f"{len(messages)} jobs in one call are too many: at most {MAX_MESSAGES_PER_CALL}")
        existing: dict[str, str] = {}
        self.list_queues(message.queue for message in messages)
        for places in self._keys.groups(messages, lambda message: message.queue):
            group = [messages[place] for place in places]
            if len(group) == 1 and _is_plain(group[0]):
                self._add_one(group[0])
                continue
            queues = list(dict.fromkeys([message.queue for message in group]))
            words = [*queues, *messages_words(group, queues)]
            given = all(message.given for message in group)  # a minted id is forgotten when its message ends
            told = self._keys.run(ENQUEUE, queues, words, self._keys.one(queues[0], "last"), repeatable=given)
            if isinstance(told, bytes):
                raise InvalidJob(NOT_OPEN.format(told.decode()))
            if told:
                idents = [ident.decode() for ident in told]
                existing |= zip(idents[::2], idents[1::2], strict=True)
        return existing

    def _add_one(self, message: NewMessage) -> None:
        queue = message.queue
        words = (queue, message.id, PRIORITIES[message.priority], tail_of(message), message.body)
        self._keys.run(ENQUEUE_ONE, [queue], words, self._keys.one(queue, "last"), repeatable=False)

    def list_queues(self, queues: Iterable[str]) -> None:
        """Note the names where all queues are listed, if keys are spread. First, so that each message is found."""
        if not self._keys.spread:
            return
        now = time.monotonic()
        unknown = [queue for queue in dict.fromkeys(queues) if self._listed.get(queue, 0.0) <= now]
        if unknown:
            with suppress(BackendUnavailable):  # one node has the list, and may be down: the next reap names them again
                self._keys.link.call("SADD", self._keys.queues, *unknown)
            listed = {queue: until for queue, until in self._listed.items() if until > now}
            self._listed = listed | dict.fromkeys(unknown, now + _LIST_INTERVAL_S)

    def relay(self, queues: Collection[str]) -> None:
        """Bring what stands in the outboxes of these queues on its way. Any number of relays may work at once.

        Raises BackendUnavailable: a node does not answer, and what is left stays where it is.
        """
        for queue in queues:
            while entries := self._keys.run(OUTBOX_PEEK, [queue], (ENTRIES_PER_SCRIPT, _BYTES_PER_SCRIPT)):
                self.add([read_entry(entry) for entry in entries])
                head = entries[0].partition(b"\n")[0] + b"\n"  # which names the message
                self._keys.run(OUTBOX_DROP, [queue], (head, len(entries)))


def _is_plain(message: NewMessage) -> bool:
    """Return whether `enqueue_one.lua` can add it: due now, its id minted, and nothing to be noted of it."""
    more = message.unique_key, message.batch
    return message.due is None and not (message.given or message.deliveries) and more == (None, None)


def messages_words(messages: Sequence[NewMessage], queues: Sequence[str]) -> list[Word]:
    """Return messages as `add.lua` takes them: how many, their ids, then five words each.

    A queue that is not among `queues` has the number 0.
    """
    numbers = {queue: number for number, queue in enumerate(queues, 1)}
    words: list[Word] = [len(messages)]
    words += [message.id for message in messages]
    for message in messages:
        number = numbers.get(message.queue, 0)
        words += (number, PRIORITIES[message.priority], due_word(message.due), tail_of(message), message.body)
    return words
