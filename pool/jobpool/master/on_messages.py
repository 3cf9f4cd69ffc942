"""Events about messages and the broker, applied to the pool's state. Bookkeeping: no I/O, no decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jobpool.broker.values import Leases
from jobpool.master import events as ev
from jobpool.master.deadlines import watch_outages
from jobpool.master.slots import Delivery
from jobpool.master.state import Pool, Stopping
from jobpool.message import outcome as ended
from jobpool.message.death import cause_headline
from jobpool.message.definition import timeout_of
from jobpool.message.names import listed, nearest_word
from jobpool.message.outcome import NotRun, Outcome, Succeeded
from jobpool.message.printable import headline
from jobpool.message.settlement import CANCELLED, Abandon, Ack, Move, Nack, Release, Settled, Settlement
from jobpool.message.units import format_duration
from jobpool.policy.classify import LEASE_LOST, REAPED, REAPED_DEAD, SUCCEEDED, counters_of
from jobpool.policy.inspection import Inspected
from jobpool.telemetry.metrics.catalogue import MARGIN, SETTLE
from jobpool.telemetry.metrics.pages import BOOT_LOOP

OK = Settled.OK
_nearest = lru_cache(maxsize=100)(nearest_word)  # a flood of such jobs must not cost the master's time

MAX_OUTPUT_CHARS = 200  # characters of the first line of an output that are shown where a success is told
MORE = "`jobpool inspect {}` shows all of the error"
MUCH_SHORTER_FACTOR = 2.0  # A lease that lasts for less than the ttl by this factor deserves a word

NOT_OURS = (
    "the broker does not hold it for this pool any more: its lease had ended, others settled or deleted it, or the"
    " broker was flushed, restored or failed over"
)
REMEMBER_BROKEN_S = 30.0  # seconds within which the fetch is taken in that brought a lease which broke meanwhile


def _leased(pool: Pool, event: ev.Leased) -> None:
    if event.leases:
        pool.metrics.fetched(event.leases[0].lease.queue, len(event.leases))  # a fetch is from one queue
    pool.leased_total += len(event.leases)
    pool.lookahead.broker_took(event.took)
    pool.fetch_came += event.brought
    if event.lasts:
        pool.shortest_lease = min(event.lasts, pool.shortest_lease or event.lasts)
    if event.late:
        for _ in range(event.late):
            pool.metrics.ended("", "", LEASE_LOST)
        pool.note("warning", "leases had ended before they came", count=event.late, took=event.took)
    is_short = event.lasts and event.lasts < pool.settings.ttl / MUCH_SHORTER_FACTOR
    if is_short and not pool.told_short and pool.can.leases is not Leases.BROKER:  # which has told of it itself
        pool.told_short = True
        what = "leases are much shorter than `ttl` asks for; each is renewed by its own length"
        mend = "the broker's queue, or who enqueues, says how long they last: make it more"
        pool.note("warning", what, ttl=pool.settings.ttl, lasts=round(event.lasts, 3), mend=mend)
    for inspected in event.leases:
        _take_in(pool, inspected)
    pool.order_ready()
    if pool.broken:
        _lose_broken(pool)


def _take_in(pool: Pool, inspected: Inspected) -> None:
    lease, outcome = inspected.lease, inspected.outcome
    nonce = next(pool.nonces)
    delivery = Delivery(lease, nonce, 0.0, "", pool.now)
    pool.held[nonce] = delivery
    if pool.cancels and (mark := pool.cancels.get(lease.id)) and mark.is_for(lease):
        delivery.cancelled = True
        if outcome is None:
            delivery.handler, outcome = lease.envelope.job, NotRun()
    if outcome is None:
        outcome = _prepare(pool, delivery)
    elif type(outcome) is ended.NewerWire:
        fields = {"id": lease.id, "queue": lease.queue, "version": outcome.version}
        mend = "it is given back for a newer jobpool to run: upgrade this one"
        pool.note("warning", "a message is of a newer version", **fields, mend=mend)
    elif isinstance(outcome, ended.Expired | ended.HandlerNotAllowed):
        delivery.handler = lease.envelope.job  # for the log of its death
    if outcome is None:
        pool.ready.append(delivery)
    else:
        pool.outcomes.append((delivery, outcome))


def _prepare(pool: Pool, delivery: Delivery) -> Outcome | None:
    """Look for the handler. None: the delivery may be handed to a child."""
    envelope, settings = delivery.lease.envelope, pool.settings
    delivery.handler, delivery.priority = envelope.job, envelope.priority
    if pool.stopping is not Stopping.NO:
        return NotRun()
    info = pool.handlers.get(envelope.job)
    if info is not None:
        delivery.acks_itself = info.ack_in_transaction
        delivery.timeout = timeout_of(envelope.timeout, info.timeout, settings.default_timeout, settings.max_timeout)
        return None
    if delivery.lease.id not in pool.unknown_since:
        known = tuple(sorted(name for name, info in pool.handlers.items() if info.enabled))
        near = {"nearest": name} if (name := _nearest(envelope.job, known)) else {}
        fields = {"handler": envelope.job, "id": delivery.lease.id, **near, "known": listed(known) or "none"}
        waits = format_duration(settings.unknown_handler_grace).removesuffix("00s")
        pool.note("warning", "no such handler here; the job waits for one", **fields, waits=waits)
    return ended.UnknownHandler(envelope.job, pool.unknown_for(delivery.lease.id))


def _broker_silent(pool: Pool, event: ev.BrokerSilent) -> None:
    pool.outages[event.thread] = event.kind, event.error
    watch_outages(pool, pool.now)


def _broker_answered(pool: Pool, event: ev.BrokerAnswered) -> None:
    """End the outage of a thread; it is over for the pool when it is over in every thread."""
    pool.outages.pop(event.thread, None)
    pool.outage_at = pool.now
    watch_outages(pool, pool.now)


def _breaker_turned(pool: Pool, event: ev.BreakerTurned) -> None:
    (pool.open_breakers.add if event.is_open else pool.open_breakers.discard)(event.queue)
    pool.note("debug", "the circuit breaker of a queue has turned", queue=event.queue, open=event.is_open)


def _control_read(pool: Pool, event: ev.ControlRead) -> None:
    """Take in what people ask, and say what of it is new for the queues of this pool."""
    before, pool.paused, pool.control_came = pool.paused, event.asked.paused, True
    for queue in pool.queues.keys() & pool.paused.keys() - before.keys():
        pool.note("warning", "a queue is paused", queue=queue, reason=pool.paused[queue].reason or None)
    for queue in pool.queues.keys() & before.keys() - pool.paused.keys():
        pool.note("info", "a queue is resumed", queue=queue)
    pool.cancels = event.asked.cancels
    for delivery in [d for d in pool.held.values() if d.lease.id in pool.cancels] if pool.cancels else ():
        if not delivery.cancelled and pool.cancels[delivery.lease.id].is_for(delivery.lease):
            delivery.cancelled = True
            if delivery in pool.ready:
                pool.ready.remove(delivery)
                pool.outcomes.append((delivery, NotRun()))
    was_drained, pool.drained = pool.drained, pool.ident in event.asked.drained
    if pool.drained != was_drained:
        pool.note("warning", "the pool is drained" if pool.drained else "the pool is resumed", by="a person")


def _answered(pool: Pool, event: ev.Answered) -> None:
    pool.wall_ahead = pool.wall() - time.monotonic()
    if event.took:
        pool.metrics.observe(SETTLE, event.took)
    if pool.record is not None:
        pool.record(event.answers)
    for delivery, settlement, answer in event.answers:
        outcome = delivery.outcome
        if answer is OK and type(settlement) is Ack and type(outcome) is Succeeded:
            counters = SUCCEEDED  # nearly all messages
            if pool.tells_each or delivery.handler not in pool.told:
                _note_success(pool, delivery)
        else:
            _note_answer(pool, delivery, settlement, answer)
            counters = () if outcome is None else counters_of(settlement, outcome, answer)
        pool.ended(delivery, counters, settlement)
    if pool.open_breakers:
        pool.answered_queues.update(delivery.lease.queue for delivery, _, _ in event.answers)
    if pool.cancels:
        # Not of one that was on its way back when its mark was read: the mark is for its next delivery.
        over = [delivery for delivery, settlement, ok in event.answers if ok and isinstance(settlement, Ack | Abandon)]
        pool.cancels_over += [delivery.lease.id for delivery in over if delivery.cancelled]


def _note_answer(pool: Pool, delivery: Delivery, settlement: Settlement, answer: Settled) -> None:
    lease = delivery.lease
    if not answer:
        about = {"id": lease.id, "queue": lease.queue, "answer": answer.value}
        pool.note("warning", "a settlement was refused", **about, why=NOT_OURS)
    elif isinstance(settlement, Nack):
        fields = {"attempt": lease.attempts + 1, "again_in": format_duration(settlement.delay)}
        pool.note(
            "warning", "job failed, is tried again", **_about(delivery), **fields, error=headline(settlement.error)
        )
    elif isinstance(settlement, Abandon):
        _note_dead(pool, delivery, settlement)
    elif isinstance(settlement, Move):
        fields = {"id": lease.id, "queue": lease.queue, "to": settlement.queue}
        pool.note("warning", "a message goes on in another queue", **fields, cause=cause_headline(settlement.cause))
    elif isinstance(settlement, Release):
        _note_release(pool, delivery, settlement)
    elif type(delivery.outcome) is ended.AlreadyDone and pool.tells_each:
        told = delivery.lease.envelope
        what = "job skipped, as one with its key has succeeded"
        pool.note("debug", what, id=delivery.lease.id, handler=told.job, key=told.idempotency_key)
    if isinstance(settlement, Release) and pool.limited and not settlement.begun and lease.guards is not None:
        pool.unused_starts.add(lease.queue)


def _note_success(pool: Pool, delivery: Delivery) -> None:
    """Tell the first success of each handler, and with log level debug every one."""
    more = None if pool.tells_each or pool.told else "-v shows each"
    level = "debug" if delivery.handler in pool.told else "info"
    pool.told.add(delivery.handler)
    output = delivery.output.strip()
    first = output.partition("\n")[0][:MAX_OUTPUT_CHARS]
    shown = f"{first} …" if len(first) < len(output) else output or None
    what = "job succeeded" if pool.tells_each else "first job succeeded"
    fields = {"seconds": float(f"{delivery.ran or 0.0:.2g}"), "output": shown, "more": more}
    pool.note(level, what, **_about(delivery), **fields)


def _note_release(pool: Pool, delivery: Delivery, settlement: Release) -> None:
    outcome = delivery.outcome
    if isinstance(outcome, ended.Snoozed):
        pool.note("info", "job snoozed", **_about(delivery), again_in=format_duration(settlement.delay))
    elif isinstance(outcome, ended.Contended) and pool.tells_each:
        fields = {"again_in": format_duration(settlement.delay), "taken": outcome.taken}
        pool.note("debug", "job waits, as what it needs is taken", id=delivery.lease.id, **fields)


def _about(delivery: Delivery) -> dict[str, str | None]:
    """Return the fields that say which job it is: its name only if it has one of its own."""
    envelope, handler = delivery.lease.envelope, delivery.handler
    name = envelope.name if envelope.name != handler else None
    return {"id": delivery.lease.id, "handler": handler, "name": name, "trace_id": envelope.trace_id}


def _note_dead(pool: Pool, delivery: Delivery, settlement: Abandon) -> None:
    lease = delivery.lease
    pool.unknown_since.pop(lease.id, None)  # a retry of the letter waits for its handler once more
    if settlement.reason == CANCELLED:
        pool.note("info", "a job is cancelled", **_about(delivery), queue=lease.queue)
        return
    pool.note(
        "critical",
        # An event of its own: the log thins out each by itself, and a flood of forgeries must not hide real deaths.
        "a message is rejected" if settlement.reason == "rejected" else "a message is dead",
        id=lease.id,
        handler=delivery.handler or None,
        name=lease.envelope.name if delivery.handler else None,  # nothing in what was rejected is to be believed
        queue=lease.queue,
        attempts=lease.attempts + settlement.attempts,
        reason=settlement.reason,
        error=headline(settlement.error),
        cause=cause_headline(settlement.cause),
        trace_id=lease.envelope.trace_id if delivery.handler else None,
        more=None if pool.counters.dead or "\n" not in (settlement.error or "") else MORE.format(lease.id),
    )


def _follow_ups_refused(pool: Pool, event: ev.FollowUpsRefused) -> None:
    event.delivery.settling = False
    pool.outcomes.append((event.delivery, ended.Failed(f"a follow-up job is refused: {event.error}", permanent=True)))


def _given_up(pool: Pool, event: ev.GivenUp) -> None:
    for delivery in event.deliveries:
        pool.ended(delivery, LEASE_LOST)
        pool.note("warning", "a lease ended before the broker answered its settlement", id=delivery.lease.id)


def _renewed(pool: Pool, event: ev.Renewed) -> None:
    if pool.open_breakers:
        pool.answered_queues.update(delivery.lease.queue for delivery, _ in event.renewals)
    for delivery, lease in event.renewals:
        if lease is not None:
            pool.metrics.observe(MARGIN, max(0.0, delivery.lease.expires_at - pool.now - pool.boot_ahead))
            delivery.lease = lease
        elif not (delivery.settling or delivery.acks_itself):  # which its handler's own commit may have ended
            pool.lose(delivery, why=NOT_OURS)


def _leases_broke(pool: Pool, event: ev.LeasesBroke) -> None:
    for lease in event.leases:
        pool.broken[lease.owner_token] = pool.now
    _lose_broken(pool)


def _lose_broken(pool: Pool) -> None:
    """Lose what has broken, but for settlements that are under way: these are answered."""
    found = [d for d in pool.held.values() if d.lease.owner_token in pool.broken]
    known = {d.lease.owner_token for d in found}
    pool.broken = {
        token: at for token, at in pool.broken.items() if token not in known and pool.now - at < REMEMBER_BROKEN_S
    }
    lost = [delivery for delivery in found if not delivery.settling]
    for delivery in lost:
        pool.lose(delivery, quietly=True)
    if lost:
        queues = ", ".join(sorted({delivery.lease.queue for delivery in lost}))
        pool.note("error", "leases ended with their connection to the broker", count=len(lost), queues=queues)


def _reap_done(pool: Pool, event: ev.ReapDone) -> None:
    for reaped in event.reaped:
        pool.metrics.ended(reaped.queue, "", REAPED_DEAD if reaped.dead else REAPED)
        if reaped.dead:
            fields = {"id": reaped.id, "queue": reaped.queue, **pool.unsettled.pop(reaped.id, {})}
            fields |= {"crashes": reaped.crashes, "cause": cause_headline(reaped.cause)}
            pool.note("critical", "a message is dead: crash limit", **fields)


def _counted(pool: Pool, event: ev.Counted) -> None:
    pool.stats, pool.leased_at_count, pool.counted_at = event.stats, pool.leased_total, pool.now
    if pool.open_breakers:
        pool.answered_queues.update(event.stats)
    if not pool.settings.until_empty or pool.is_stopping:
        return
    if not pool.has_booted:
        # An app that cannot be loaded is told, also where there is nothing to run, and where each child imports it.
        if pool.boot.failures >= BOOT_LOOP:
            pool.fail(f"the app does not load: {pool.boot.last_error}", "the app does not load")
    elif pool.held or not event.stats.keys() >= pool.queues.keys():
        pass  # the counts are older than the queues
    elif all(not (counts.leased if queue in pool.paused else counts.pending) for queue, counts in event.stats.items()):
        if left := sum(counts.pending for counts in event.stats.values()):
            pool.stop("the jobs that are left wait in paused queues", left=left)
        else:
            pool.stop("the queues are empty")


ON_MESSAGES: dict[type[Any], Callable[[Pool, Any], None]] = {
    ev.Leased: _leased,
    ev.BrokerSilent: _broker_silent,
    ev.BrokerAnswered: _broker_answered,
    ev.BreakerTurned: _breaker_turned,
    ev.ControlRead: _control_read,
    ev.Answered: _answered,
    ev.GivenUp: _given_up,
    ev.FollowUpsRefused: _follow_ups_refused,
    ev.Renewed: _renewed,
    ev.LeasesBroke: _leases_broke,
    ev.ReapDone: _reap_done,
    ev.Counted: _counted,
    ev.Produced: lambda pool, event: pool.replies.append((event.child, event.reply)),
}
