"""Settlements and renewals.

A message of Service Bus cannot be changed. To change or delay one, a copy is sent, and then the original is completed;
a crash between the two leaves both, under one id. The order is never the other way round. A call's copies go together,
and so do its dispositions.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any

from azure.servicebus.aio import ServiceBusReceiver
from msgspec import Struct, field
from msgspec.structs import replace

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import NewMessage, Reaped
from jobpool.clock import Clock
from jobpool.errors import OUTAGES, AccessRefused, BackendUnavailable, JobpoolError, WriteRefused
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.reaping import NativeReaping
from jobpool_backends.servicebus.enqueue import Outgoing, Producer
from jobpool_backends.servicebus.errors import LOST
from jobpool_backends.servicebus.internals import ABANDON, BURY, COMPLETE, Disposition, renew_locks
from jobpool_backends.servicebus.leases import Held, HeldLeases, Locks
from jobpool_backends.servicebus.namespace import ATTEMPT_LIMIT_S, Namespace
from jobpool_backends.servicebus.queue_client import QueueReceiver, SettlementUnknown
from jobpool_backends.servicebus.records import Record, charge, copy_id
from jobpool_backends.shared import grouped, lifts_expiry, micros, pieces, with_past, with_texts

MAX_PARTIAL_CALLS = 1000  # calls answered in part whose answers are kept
MIN_CALL_TIME_S = 1.0  # however little is left of a lease: the broker knows if it was too late
MAX_RENEW_LOCKS = 100


class Plan(Struct):
    """The plan of a settlement: the copies to send, and then the order to the broker about the original."""

    held: Held
    disposition: Disposition
    copies: list[Outgoing] = field(default_factory=list)
    reaped: Reaped | None = None
    answer: Settled | None = None  # None: nothing is known


class Settler:
    """The settler and renewer of leases."""

    def __init__(
        self,
        namespace: Namespace,
        leases: HeldLeases,
        locks: Locks,
        producer: Producer,
        charges: NativeReaping,
        clock: Clock,
    ) -> None:
        self._namespace = namespace
        self._leases = leases
        self._locks = locks
        self._producer = producer
        self._charges = charges
        self._clock = clock
        self._partial: OrderedDict[str, dict[int, Settled]] = OrderedDict()

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        """Return the answers, in order.

        Raises WriteRefused: some copies could not be sent, and its `answers` are those of the others. Raises
        BackendUnavailable: the same call again goes on with those without an answer.
        """
        answers = self._partial.pop(call_id, {})
        plans: dict[int, Plan] = {}
        for place, (lease, settlement) in enumerate(settlements):
            if place not in answers:
                held = self._leases.take(lease)
                if isinstance(held, Held):
                    plans[place] = self._plan(held, lease, settlement, brought.get(place, ()))
                else:
                    answers[place] = held
        try:
            refused = self._carry_out(list(plans.values())) if plans else None
        finally:
            answers |= {place: plan.answer for place, plan in plans.items() if plan.answer is not None}
            if len(answers) < len(settlements):
                self._partial[call_id] = answers
                while len(self._partial) > MAX_PARTIAL_CALLS:
                    self._partial.popitem(last=False)
        told = [answers.get(place) for place in range(len(settlements))]
        if refused is not None:
            raise WriteRefused(str(refused), told) from refused
        if unknown := told.count(None):
            raise BackendUnavailable(
                f"{self._namespace.address.title} did not say what became of {unknown} of {len(plans)} messages: settle"
                " them again while their leases run"
            )
        return [answers[place] for place in range(len(settlements))]

    def _plan(self, held: Held, lease: JobLease, settlement: Settlement, brought: Sequence[NewMessage]) -> Plan:
        record = held.record
        match settlement:
            case Ack():
                return Plan(held, COMPLETE, [self._producer.outgoing(message) for message in brought])
            case Nack(delay=delay, error=error, cause=cause):
                return self._copied(
                    held, replace(with_texts(record, error, cause), attempts=record.attempts + 1), delay
                )
            case Release():
                if lifts_expiry(lease, settlement):
                    return self._copied(held, replace(record, begun=True), settlement.delay)
                return self._copied(held, record, settlement.delay) if settlement.delay > 0 else Plan(held, ABANDON)
            case Abandon():
                died = replace(record, attempts=record.attempts + settlement.attempts)
                died = with_texts(died, settlement.error, settlement.cause)
                text = died.death_record(micros(self._clock.wall()))
                order = Disposition(BURY, settlement.reason, text)
                return Plan(held, order, [self._producer.outgoing(message) for message in brought])
            case Forfeit(cause=cause):
                return self._forfeit(held, cause)
            case Move():
                return Plan(held, COMPLETE, [self._moved(held, message) for message in brought])

    def _moved(self, held: Held, message: NewMessage) -> Outgoing:
        old, ident = held.record, copy_id(message.id, "m", held.sequence)
        outgoing = self._producer.outgoing(with_past(message, (old.last_error, old.cause)), ident)
        kept = replace(outgoing.record, enqueued_at=old.enqueued_at, crashed_at=old.crashed_at)
        return replace(outgoing, record=kept)

    def _copied(self, held: Held, record: Record, delay: float) -> Plan:
        whole = replace(record, deliveries=held.deliveries)
        return Plan(held, COMPLETE, [self._producer.delayed_copy(held.queue, whole, delay, held.sequence)])

    def _forfeit(self, held: Held, cause: str) -> Plan:
        """Charge a crash. The broker frees expired locks by itself, and counts a delivery for those and for releases.

        So only a forfeit is surely a crash. A pool that dies with its leases is left to the broker's own limit of
        deliveries (MaxDeliveryCount).
        """
        now = micros(self._clock.wall())
        policy = self._charges.policy(held.queue)
        record = charge(held.record, policy, cause or "lease expired", now)
        dead = policy.is_over(record.crashes)
        if dead:
            plan = Plan(held, Disposition(BURY, "crash-limit", record.death_record(now)))
        else:
            plan = self._copied(held, record, random.uniform(0.0, policy.ceiling(record.crashes)))
        plan.reaped = Reaped(record.id, held.queue, record.crashes, record.cause, dead)
        return plan

    def _carry_out(self, plans: Sequence[Plan]) -> JobpoolError | None:
        """Give each plan its answer, if one is known; return why copies of some were not sent."""
        left = max(plan.held.expires_at for plan in plans) - self._clock.boot()
        limit = min(self._namespace.address.timeout, max(left, MIN_CALL_TIME_S))
        try:
            return self._namespace.call(self._send_and_settle(plans, limit), 2 * limit)
        finally:
            for plan in plans:
                if plan.answer is None:
                    self._leases.put_back(plan.held)
                elif plan.reaped is not None and plan.answer:
                    self._charges.add(plan.reaped)

    async def _send_and_settle(self, plans: Sequence[Plan], limit: float) -> JobpoolError | None:
        refused = await self._send_copies(plans)
        deadline = time.monotonic() + limit
        ready = [plan for plan in plans if not plan.copies or plan.held.copied]  # those that lack no copy
        parts = grouped(ready, lambda plan: plan.held.delivery.receiver).items()
        await _all([self._settle_part(receiver, theirs, deadline) for receiver, theirs in parts])
        return refused

    async def _send_copies(self, plans: Sequence[Plan]) -> JobpoolError | None:
        """Send the copies queue by queue, first to queues more likely to be missing: nothing was fetched from them.

        A queue that takes nothing for now holds up no other, and no ack; why it does not is returned.
        """
        refused: JobpoolError | None = None
        new = [plan for plan in plans if plan.copies and not plan.held.copied]
        own = {plan.held.queue for plan in new}
        for queue in sorted({copy.queue for plan in new for copy in plan.copies}, key=own.__contains__):
            theirs = [copy for plan in new for copy in plan.copies if copy.queue == queue]
            try:
                await self._producer.send(theirs, patiently=True)
            except OUTAGES as error:
                if isinstance(error, AccessRefused) and queue not in own:
                    raise  # the caller may leave out what a settlement brings along
                refused = error
                continue
            for plan in new:
                plan.copies = [copy for copy in plan.copies if copy.queue != queue]
                plan.held.copied = not plan.copies
        return refused

    async def _settle_part(self, receiver: QueueReceiver, plans: Sequence[Plan], deadline: float) -> None:
        told = await receiver.settle([(plan.held.delivery, plan.disposition) for plan in plans], deadline)
        for plan, answer in zip(plans, told, strict=True):
            if answer is None:
                plan.answer = Settled.OK
            elif isinstance(answer, LOST):
                plan.answer = Settled.EXPIRED
            elif isinstance(answer, SettlementUnknown):
                plan.answer = await self._resolve(plan)

    async def _resolve(self, plan: Plan) -> Settled:
        """Look at a message whose lock is gone, perhaps by our own request, whose answer was lost."""
        if plan.disposition is ABANDON:
            return Settled.OK  # it is back in the queue in either case
        client = self._namespace.queue(plan.held.queue)
        sequence = plan.held.sequence
        found = await client.management.run(lambda receiver: receiver.peek_messages(1, sequence_number=sequence))
        return Settled.EXPIRED if found and found[0].sequence_number == sequence else Settled.OK

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Renew each lease by its queue's lock; None if it is lost. Raises BackendUnavailable; the old ends stand."""
        del ttl
        held = [found if isinstance(found := self._leases.find(lease), Held) else None for lease in leases]
        by_queue = grouped(filter(None, held), lambda each: each.queue)
        parts = [
            self._renew(queue, piece) for queue, theirs in by_queue.items() for piece in pieces(theirs, MAX_RENEW_LOCKS)
        ]
        if parts:
            self._namespace.call(_all(parts))
        return [
            None if each is None or each.lost else replace(lease, expires_at=each.expires_at)
            for lease, each in zip(leases, held, strict=True)
        ]

    async def _renew(self, queue: str, leases: Sequence[Held]) -> None:
        channel = self._namespace.queue(queue).management
        left = max(MIN_CALL_TIME_S, min(held.expires_at for held in leases) - self._clock.boot())
        deadline = time.monotonic() + min(left, self._namespace.address.timeout)

        async def work(receiver: ServiceBusReceiver) -> None:
            asked = self._locks.now()
            tokens = [held.delivery.message.lock_token for held in leases]
            ends = await renew_locks(receiver, tokens, min(ATTEMPT_LIMIT_S, left))
            for held, locked_until in zip(leases, ends, strict=True):
                held.expires_at = self._locks.end(queue, asked, locked_until)

        try:
            await channel.run(work, deadline)
        except LOST:
            if len(leases) == 1:
                leases[0].lost = True
                self._leases.drop(leases[0])
                return
            for held in leases:
                await self._renew(queue, [held])


async def _all(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all, at the same time; raise the first error once all have ended."""
    for trouble in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(trouble, BaseException):
            raise trouble
