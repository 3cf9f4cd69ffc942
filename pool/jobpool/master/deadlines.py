"""Deadlines, by the clock: timeouts, limits, lost leases, stale look-ahead, the undead. Decisions, no I/O."""

from __future__ import annotations

from itertools import islice

from jobpool.errors import AccessRefused, BackendUnavailable, JobpoolError, WriteRefused
from jobpool.ipc.alarm import ALARM_EVERY_S
from jobpool.master import actions as act
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import BROKEN_GRACE_S, Pool, Stopping
from jobpool.message.outcome import EndReason, NotRun, overran

STALE_AFTER_S = 0.1  # seconds after its lease at which a message that no child has begun goes back to its place
DUMP_BEFORE_KILL_S = 0.05  # seconds between the request for a stack and the kill

MAX_DUMP_S = 0.25  # the same if no stack is written: on a busy machine a loop in C may not get a processor for so long
MAX_DUMP_PAUSE_S = 0.1  # of it that a pause between two looks counts for: in one of the machine, no child can write
UNDEAD_AFTER_S = 5.0  # seconds after SIGKILL at which a child that was not collected (state D) is given up
IDLE_CPU_SHARE = 0.02  # of a core; a child that uses less waits for something
IDLE_LOOK_S = 2.0  # seconds after the head began, from which on a sample tells of it alone: there is one a second
REMIND_EVERY_S = 600.0  # seconds between two lines about one outage
CALM_S = 5.0  # seconds without a failed call after which an outage is over
HEARTBEAT_S = 1.0  # seconds for which an idle loop sleeps at most
MAX_REFUSED_S = 1800.0  # seconds that a pool waits while its broker refuses it: a person may mend that meanwhile
FROZEN_S = 3.0  # seconds between two looks after which the master stood still: its loop turns once a second at least

OUTAGE_TEXTS: dict[type[JobpoolError], str] = {
    BackendUnavailable: "the broker does not answer; trying again until it does",
    WriteRefused: "the broker refuses to write; trying again until it does not",
    AccessRefused: "the broker refuses this pool; trying again until that is mended",
}


def check_deadlines(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """See to deadlines, limits, births and deaths that are due at `now`."""
    for slot in list(pool.slots.engaged.values()):  # nothing is due of idle ones
        if slot.dead_at:
            continue  # it is to be collected, which is its fork server's affair (spawning.watch_servers)
        match slot.state:
            case SlotState.BUSY | SlotState.IDLE if slot.broken_at and now - slot.broken_at >= BROKEN_GRACE_S:
                kill_child(slot, EndReason.PROTOCOL, "its channel is of no use", now, actions)
            case SlotState.BUSY:
                _watch_busy(pool, slot, now, actions)
            case SlotState.IDLE if slot.retiring and not slot.broken_at:
                slot.end(EndReason.RETIRE, now, "replaced", killed=False)  # it was told while it was busy
            case SlotState.STARTING if now - slot.since >= pool.settings.boot_timeout:
                kill_child(slot, EndReason.BOOT, f"not ready after {pool.settings.boot_timeout:.12g} s", now, actions)
                pool.boot.failed(f"a child was {slot.ending_text}", now)
            case SlotState.DYING:
                _watch_dying(pool, slot, now, actions)
    if now - pool.oldest_ready >= STALE_AFTER_S:  # no child could take it in time
        for delivery in [d for d in pool.ready if now - d.leased_at >= STALE_AFTER_S]:
            pool.ready.remove(delivery)
            pool.outcomes.append((delivery, NotRun()))
    if pool.outages or pool.outages_told:
        watch_outages(pool, now)


def watch_outages(pool: Pool, now: float) -> None:
    """Tell of an outage when it begins, now and then while it lasts, and at its end; stop after too long a refusal.

    It ends when no call has failed for `CALM_S`: a broker may refuse one kind of call and answer another, by turns.
    """
    if pool.outages and now >= pool.remind_at:
        pool.outages_told.clear()
    for kind, error in pool.outages.values():
        if kind not in pool.outages_told:
            pool.outages_told.add(kind)
            pool.remind_at = now + REMIND_EVERY_S
            queues = ", ".join(sorted(pool.open_breakers)) or None  # perhaps not all: a node of a cluster is away, say
            pool.note("error", OUTAGE_TEXTS.get(kind, OUTAGE_TEXTS[BackendUnavailable]), error=error, queues=queues)
    if pool.outages_told and not pool.outages and now - pool.outage_at >= CALM_S:
        pool.outages_told.clear()
        pool.note("warning", "the broker answers again")
    refusal = next((error for kind, error in pool.outages.values() if kind is AccessRefused), None)
    pool.refused_since = 0.0 if refusal is None else pool.refused_since or now
    if refusal and now - pool.refused_since >= MAX_REFUSED_S and not pool.is_stopping:
        pool.note("critical", "the broker has refused this pool for too long", error=refusal, limit=MAX_REFUSED_S)
        pool.fail(refusal, "stopping after a refusal")


def allow_for_pause(pool: Pool, now: float) -> None:
    """Begin anew the time that others have for a start, an end or an answer: perhaps they stood still as well."""
    for slot in pool.slots.live:
        if slot.state in (SlotState.STARTING, SlotState.DYING):
            slot.since, slot.killed_at = now, slot.killed_at and now
    for server in pool.servers.values():
        server.started_at = server.heard_at = now
    for scheduler in pool.schedulers.running.values():
        scheduler.started_at = scheduler.heard_at = now


def kill_child(slot: Slot, why: EndReason, text: str, now: float, actions: list[act.Action]) -> None:
    slot.end(why, now, text)
    actions.append(act.KillChild(slot))


def next_due(pool: Pool, now: float) -> float:
    """Return when the loop must look again though nothing happens; at most `HEARTBEAT_S` away."""
    if pool.outcomes or pool.asks or pool.replies:
        return now
    due = min([now + HEARTBEAT_S, *[_slot_due(pool, slot, now) for slot in pool.slots.engaged.values()]])
    due = min(due, pool.oldest_ready + STALE_AFTER_S)
    if pool.stopping is Stopping.DRAIN:
        due = min(due, pool.stop_by)
    for back_off in () if pool.is_stopping else (pool.boot, pool.schedulers):
        if back_off.next_at > now:
            due = min(due, back_off.next_at)
    return due


def _slot_due(pool: Pool, slot: Slot, now: float) -> float:
    if slot.dead_at:
        return now + HEARTBEAT_S
    match slot.state:
        case SlotState.BUSY:
            return _busy_due(pool, slot, now)
        case SlotState.STARTING:
            return slot.since + pool.settings.boot_timeout
        case SlotState.DYING:
            return (slot.killed_at or slot.since) + UNDEAD_AFTER_S
        case _:
            return now + HEARTBEAT_S


def lose_expired(pool: Pool, now_boot: float) -> None:
    for delivery in [d for d in pool.held.values() if now_boot >= d.lease.expires_at and not d.settling]:
        pool.lose(delivery, why="it was not renewed in time")


def _watch_busy(pool: Pool, slot: Slot, now: float, actions: list[act.Action]) -> None:
    head, limit = slot.deliveries[0], pool.settings.memory_limit.size
    if head.lost and pool.settings.on_lease_lost == "kill":
        kill_child(slot, EndReason.LOST, "the lease was lost", now, actions)
    elif head.cancelled and not head.lost:
        _watch_cancelled(pool, slot, now, actions)
    elif 0 < limit < slot.rss and slot.sampled_at >= slot.head_since:  # an earlier sample tells of another job
        text = f"used {slot.rss / 2**20:.0f} MiB; its limit is {limit / 2**20:.0f} MiB"
        kill_child(slot, EndReason.MEMORY, text, now, actions)
    else:
        _watch_deadline(pool, slot, head, now, actions)
        # The child must not begin an attempt that waits too long after the head, or is lost.
        behind = islice(slot.deliveries, 1, None) if slot.waiting else ()
        if any(now - d.leased_at >= STALE_AFTER_S or d.lost or d.cancelled for d in behind):
            actions.append(act.TakeBack(slot))


def _watch_cancelled(pool: Pool, slot: Slot, now: float, actions: list[act.Action]) -> None:
    """Have `Cancelled` raised in the handler, again for one that had not begun, and kill the child after the grace."""
    slot.cancelled_at = slot.cancelled_at or now
    if now >= slot.cancelled_at + pool.settings.kill_grace:
        kill_child(slot, EndReason.CANCEL, "cancelled by a person; it did not end within the grace", now, actions)
    elif now >= slot.alarmed_at + ALARM_EVERY_S:
        slot.alarmed_at = now
        actions.append(act.CancelAttempt(slot))
    if slot.waiting:
        actions.append(act.TakeBack(slot))  # nothing more for a child that is replaced


def _watch_deadline(pool: Pool, slot: Slot, head: Delivery, now: float, actions: list[act.Action]) -> None:
    deadline = slot.deadline()
    if deadline is None or now < deadline + pool.settings.kill_grace:
        return
    if not slot.dumped_at:  # however late this turn of the loop is: the stack is what its user will look for
        slot.dumped_at = now
        actions.append(act.DumpStack(slot))
        return
    slot.dumped_at += max(0.0, now - max(slot.dumped_at, pool.checked_at) - MAX_DUMP_PAUSE_S)
    if slot.awaits_stack and DUMP_BEFORE_KILL_S <= now - slot.dumped_at < MAX_DUMP_S:
        actions.append(act.LookForStack(slot))
    elif now - slot.dumped_at >= DUMP_BEFORE_KILL_S:
        kill_child(slot, EndReason.TIMEOUT, overrun_text(head) + _waited(slot), now, actions)


def overrun_text(head: Delivery) -> str:
    return overran(head.lease.envelope.name or head.handler, head.timeout)


def _waited(slot: Slot) -> str:
    """Say what a child looks like whose alarm ended nothing, and that used no CPU when it was last looked at."""
    if slot.is_stopped and slot.sampled_at >= slot.head_since:
        return "\nIts process was stopped, by SIGSTOP or a debugger, and ran nothing more."
    if slot.sampled_at < slot.head_since + IDLE_LOOK_S or slot.cpu > IDLE_CPU_SHARE:
        return ""
    return (
        "\nIt used no CPU. Either it waited in C code: for an answer, or for a lock or thread that did not survive the"
        " fork (OpenMP, gRPC, …); against the latter, preload = false helps: docs/forking.md. Or it caught what the"
        " timeout raises (`except:`, `except BaseException:`), and slept on."
    )


def _watch_dying(pool: Pool, slot: Slot, now: float, actions: list[act.Action]) -> None:
    if slot.deliveries and slot.ending is EndReason.RECYCLE:
        actions.append(act.TakeBack(slot))
    if not slot.pid and slot.generation in pool.servers:
        return  # it was not born yet, and will be killed at its birth
    if now - (slot.killed_at or slot.since) < UNDEAD_AFTER_S:
        return
    if not slot.killed_at:
        pool.note("warning", "a child that was told to leave has not left; it is killed", slot=slot.index, pid=slot.pid)
        kill_child(slot, slot.ending, slot.ending_text, now, actions)
    else:
        pool.note("error", "a killed child does not die; its slot is replaced", slot=slot.index, pid=slot.pid)
        for delivery in slot.deliveries:
            pool.lose(delivery)  # its lease must expire, because its handler may still run
        slot.deliveries.clear()
        actions.append(act.ForgetChild(slot.child))
        pool.slots.collect(slot.child, now)


def _busy_due(pool: Pool, slot: Slot, now: float) -> float:
    head = slot.deliveries[0]
    if head.lost and pool.settings.on_lease_lost == "kill":
        return now
    if head.cancelled and not head.lost:
        return min(slot.alarmed_at + ALARM_EVERY_S, slot.cancelled_at + pool.settings.kill_grace)
    due = now + HEARTBEAT_S
    if not (head.lost or head.settling):
        due = min(due, head.lease.expires_at - pool.boot_ahead)  # then another pool may run it
    deadline = slot.deadline()
    if slot.broken_at:
        due = min(due, slot.broken_at + BROKEN_GRACE_S)
    if deadline is not None:
        due = min(due, slot.dumped_at + DUMP_BEFORE_KILL_S if slot.dumped_at else deadline + pool.settings.kill_grace)
    if slot.waiting:
        due = min(due, slot.deliveries[1].leased_at + STALE_AFTER_S)
    return due
