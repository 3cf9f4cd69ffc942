"""The administrator's view: counts, lists, single messages; all by peeking, which locks and changes nothing.

The broker tells for each message its number, whether its time has come, and how often it was delivered in vain. It does
not tell who holds it: a waiting message and one that another client has locked look alike.

Lists are in the order of the first enqueue. The broker's own order is another: a copy, such as a nack sends, has a new
number, and dead letters are numbered apart. So a whole queue is looked through for one page: some thousand messages a
second.
"""

from __future__ import annotations

import asyncio
import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from msgspec import Struct
from msgspec.structs import replace

from jobpool.broker import parts
from jobpool.broker.values import LIVE, Message, MessageFilter, QueueStats, State
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError, MalformedEnvelope
from jobpool.message.envelope import decode
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.leases import Held, HeldLeases
from jobpool_backends.servicebus.namespace import Namespace
from jobpool_backends.servicebus.queue_client import QueueClient
from jobpool_backends.servicebus.records import Record, read
from jobpool_backends.shared import MICRO, is_meant

PEEK_MESSAGES = 250
MAX_STATS_MESSAGES = 500  # messages of a queue, and dead letters, that `stats` looks at
_TIES = 1000


def peek(
    namespace: Namespace, queue: str, *, dead: bool, page: int = PEEK_MESSAGES
) -> Iterator[ServiceBusReceivedMessage]:
    """Yield all messages of a queue, or its dead letters; a round trip for each page, and one more at the end.

    The broker may give fewer than asked for; the end is reached only when it gives none. A message that moves meanwhile
    may be passed over, or be seen twice. Raises as `Channel.run`, `ConfigurationError` when there is no such queue.
    """
    client = namespace.queue(queue)
    channel = client.dead if dead else client.management
    first = 1
    while found := namespace.call(_peek(channel, first, page)):
        yield from found
        first = (found[-1].sequence_number or 0) + 1


async def _peek_both(client: QueueClient) -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
    """Return the first messages and the first dead letters. Both at once: each may have to connect first."""

    async def look(channel: Channel[ServiceBusReceiver]) -> list[ServiceBusReceivedMessage]:
        seen: list[ServiceBusReceivedMessage] = []
        first = 1
        while len(seen) < MAX_STATS_MESSAGES and (found := await _peek(channel, first, PEEK_MESSAGES)):
            seen += found
            first = (found[-1].sequence_number or 0) + 1
        return seen[:MAX_STATS_MESSAGES]

    return await asyncio.gather(look(client.management), look(client.dead))


async def _peek(channel: Channel[ServiceBusReceiver], first: int, most: int) -> list[ServiceBusReceivedMessage]:
    return await channel.run(lambda receiver: receiver.peek_messages(most, sequence_number=first))


class Found(Struct, frozen=True):
    """One message. `sequence`: the broker's number for it, in its queue or in that one's dead letters."""

    message: Message
    sequence: int


def see(
    queue: str, peeked: ServiceBusReceivedMessage, held: Mapping[int, Held], wall: float, boot: float, *, dead: bool
) -> Found:
    """Return a peeked message as a person sees it now; `held`: this client's leases on the queue, by number."""
    record = read(peeked)
    sequence = peeked.sequence_number or 0
    holding = None if dead else held.get(sequence)
    # A message that another program has deferred can be reached by that program only.
    is_leased = holding is not None or peeked.state == ServiceBusMessageState.DEFERRED
    is_delayed = peeked.state == ServiceBusMessageState.SCHEDULED
    state = State.DELAYED if is_delayed else State.LEASED if is_leased else State.WAITING
    handler = record.handler
    if not handler:
        with suppress(MalformedEnvelope):  # another program's
            handler = decode(record.body, attempts=0).job
    due = peeked.scheduled_enqueue_time_utc or peeked.enqueued_time_utc  # stamped anew when it is put off
    message = Message(
        id=record.id,
        queue=queue,
        state=State.DEAD if dead else state,
        handler=handler,
        priority=record.priority,
        attempts=record.attempts,
        crashes=record.crashes,
        deliveries=holding.deliveries if holding else delivered(record, peeked),
        enqueued_at=record.enqueued_at / MICRO,
        available_at=due.timestamp() if due else record.enqueued_at / MICRO,
        body=record.body,
        reason=record.reason,
        last_error=record.last_error,
        cause=record.cause,
        died_at=None if record.died_at is None else record.died_at / MICRO,
        expires_at=wall + holding.expires_at - boot if holding else None,
        # Digits in the order of the first enqueue; two clients may have enqueued in one microsecond.
        cursor=str(record.enqueued_at * _TIES + zlib.crc32(record.id.encode()) % _TIES),
    )
    return Found(message, sequence)


def delivered(record: Record, message: ServiceBusReceivedMessage) -> int:
    """Return how often it was leased, with earlier copies. The broker leaves out the one that ended in our burial."""
    return record.deliveries + (message.delivery_count or 0) + (record.died_at is not None)


def raised(record: Record, message: ServiceBusReceivedMessage, *, afresh: bool) -> Record:
    """Return the record to send for a dead letter that goes back to the queue; `afresh`: without its past."""
    living = replace(record, deliveries=delivered(record, message), begun=True, reason=None, died_at=None)
    if not afresh:
        return living
    return replace(living, attempts=0, crashes=0, crashed_at=None, last_error=None, cause=None)


class Inspector(parts.Inspector):
    """The view of queues."""

    def __init__(self, namespace: Namespace, leases: HeldLeases, clock: Clock) -> None:
        self._namespace = namespace
        self._leases = leases
        self._clock = clock

    def stats(self, queue: str) -> QueueStats:
        wall, boot = self._clock.wall(), self._clock.boot()
        live, dead = self._namespace.call(_peek_both(self._namespace.queue(queue)))
        held = self._leases.of(queue)
        return tally([see(queue, peeked, held, wall, boot, dead=False).message for peeked in live], len(dead), wall)

    def queues(self) -> list[str]:
        named = self._namespace.named_queues()
        return [queue for queue in named if next(self.search(MessageFilter(queue=queue)), None)]

    def count(self, where: MessageFilter, cap: int) -> int:
        return sum(1 for _ in islice(self.search(where), cap))

    def page(self, where: MessageFilter, after: int, limit: int, _largest: int = 0) -> list[Message]:
        found = islice(self.search(where), len(where.ids) or None)  # each of these is there once
        return [each.message for each in oldest(found, limit, after)]

    def search(self, where: MessageFilter) -> Iterator[Found]:
        """Yield the messages that the filter finds: of each queue the live ones, in no order, then its dead letters.

        A queue that was not named by the filter and cannot be looked into is left out, unless that is all of them.
        """
        troubles: list[ConfigurationError] = []
        queues = self._namespace.named_queues() if where.queue is None else [where.queue]
        for queue in queues:
            try:
                yield from self._search(queue, where)
            except ConfigurationError as error:
                troubles.append(error)
        if troubles and len(troubles) == len(queues):
            raise troubles[0]

    def _search(self, queue: str, where: MessageFilter) -> Iterator[Found]:
        wall, boot = self._clock.wall(), self._clock.boot()
        for dead in sides(where):
            held = self._leases.of(queue)
            for peeked in peek(self._namespace, queue, dead=dead):
                found = see(queue, peeked, held, wall, boot, dead=dead)
                if is_meant(found.message, where, wall):
                    yield found


def oldest(found: Iterable[Found], limit: int, after: int = 0) -> list[Found]:
    """Return the first `limit` in the order of their enqueue after this place. Keeps no more than that many."""
    later = (each for each in found if int(each.message.cursor) > after)
    return heapq.nsmallest(limit, later, key=lambda each: int(each.message.cursor))


def sides(where: MessageFilter) -> list[bool]:
    """Return where to look for what a filter means: False is the queue, True its dead letters."""
    states = set(where.states or State)
    live = not states.isdisjoint(LIVE) and where.reason is None
    return [dead for dead, wanted in ((False, live), (True, State.DEAD in states)) if wanted]


def tally(live: list[Message], dead: int, now: float) -> QueueStats:
    """Return the counts. Where there was more to see, `cap` is the smallest count that may be too small."""
    counts = Counter(message.state for message in live)
    unsure = [count for count in counts.values() if len(live) >= MAX_STATS_MESSAGES]
    if dead >= MAX_STATS_MESSAGES:
        unsure.append(dead)
    waiting = [message.enqueued_at for message in live if message.state is State.WAITING]
    return QueueStats(
        waiting=counts[State.WAITING],
        delayed=counts[State.DELAYED],
        leased=counts[State.LEASED],
        dead=dead,
        oldest=max(0.0, now - min(waiting)) if waiting else None,
        cap=min(unsure, default=None),
    )
