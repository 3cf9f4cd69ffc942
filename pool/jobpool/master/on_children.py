"""Events about fork servers and children, applied to the pool's state. Bookkeeping: no I/O, no decisions."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from jobpool.errors import ENQUEUE_LATER
from jobpool.ipc.frames import NO_JOBS, Ask, BootFailed, Loaded, LoadFailed, Ready, Result, Said, Spawned, SpawnFailed
from jobpool.ipc.process_options import ASKS_STACK
from jobpool.master import events as ev
from jobpool.master.deadlines import overrun_text
from jobpool.master.serving import serve_named
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import BROKEN_GRACE_S, GIVEN_BACK, Line, Pool
from jobpool.message import outcome as ended
from jobpool.message.dead_letters import ON_DEATH
from jobpool.message.death import BROKEN, Death, innermost
from jobpool.message.definition import SentJobs, result_ttl_of
from jobpool.message.outcome import EndReason, Outcome, ResultKind
from jobpool.message.results import Kept, keep
from jobpool.message.units import format_size
from jobpool.policy.classify import death_of, outcome_of, outcome_of_death, signal_name
from jobpool.policy.lookahead import MAX_QUICK_S
from jobpool.policy.retry import count_one_more
from jobpool.telemetry.metrics.catalogue import EXITS, OVERRUN

ORPHANED_LIMIT = 3
"""How many attempts of one message in a row die with their fork server until one that ran alone there is a crash."""

MAX_ORPHAN_PAUSE_S = 600.0
"""Longest pause before the youngest of those that died with their fork server runs again; from 1 s on it doubles."""

ALONE = "nothing else ran"

_MEND_LEFT = "each costs a child: let the handler end them, or declare it with allow_daemons=True (docs/forking.md)"

_STACKS = "Fatal Python error: ", "Current thread", "Thread 0x", "Traceback (most recent call last):"
"""How the first lines of stacks begin that Python prints, or its fault handler when an import crashes."""

_OF_THE_HEAD = (EndReason.TIMEOUT, EndReason.MEMORY, EndReason.LOST, EndReason.CANCEL)
_BY_ORDER = (EndReason.RECYCLE, EndReason.RETIRE, EndReason.STOP, EndReason.SERVER, EndReason.CANCEL)

SUCCEEDED = ended.Succeeded()  # shared: most jobs end with it


def _frame_came(pool: Pool, event: ev.FrameCame) -> None:
    kind = type(event.frame)
    _ON_FRAMES[kind](pool, event.sender, event.frame)
    pool.changed = pool.changed or kind is not Said


def _app_loaded(pool: Pool, generation: int, app: Loaded) -> None:
    server = pool.servers.get(generation)
    if server is None or server.ending:
        return
    if asked := _not_possible(pool, app):
        server.refused = True
        why = f"handler {asked}, which the pool's backend cannot do: use one that can (docs/backends.md)"
        _app_failed(pool, generation, LoadFailed(f"{why}, or leave that out"))
        return
    server.loaded, server.preloaded, server.heard_at = True, app.preloaded, pool.now
    if generation < pool.generation:
        return  # of two reloads, the later one was quicker
    is_first, pool.generation = pool.generation == 0, generation
    if server.is_reload:
        pool.boot.succeeded()  # what failed was the old code
    pool.reload_error = ""
    pool.handlers = {info.name: info for info in app.handlers}
    for delivery in [d for d in pool.held.values() if d.handler in pool.handlers]:  # the new code may get it
        delivery.acks_itself |= pool.handlers[delivery.handler].ack_in_transaction
    pool.unknown_since.clear()  # what waited for a handler may have run with the code before
    serve_named(pool, app.handlers, is_first=is_first)
    pool.closed_to_hooks, pool.app_came = _closed_to_hooks(pool), True
    enabled = sorted(name for name, info in pool.handlers.items() if info.enabled)
    pool.note("info", "app loaded", handlers=enabled, queues=list(pool.queues), seconds=round(app.seconds, 3))
    _note_aftermath(pool, app)


def _not_possible(pool: Pool, app: Loaded) -> str:
    """Return a handler, and what it is declared with that this backend cannot do; "" = it can do all."""
    for info in app.handlers:
        if info.ack_in_transaction and not pool.can.transactions:
            return f"{info.name!r} is declared with ack_in_transaction"
        if info.result_ttl and not pool.can.key_store:
            return f"{info.name!r} is declared with result_ttl"
    return ""


def _note_aftermath(pool: Pool, app: Loaded) -> None:
    """Warn of what the import left behind and the children do not have, or would spoil for each other."""
    if app.threads:
        what = "the app leaves threads running after its import: no safe forking, each child imports it"
        pool.note("warning", what, threads=app.threads)
    if app.native:
        what = "native threads of the app's import are missing in its children: if jobs hang, set preload = false"
        pool.note("warning", what, threads=app.native)
    if app.enqueues:
        what = "the app enqueues at its import, so each start adds its jobs again"
        pool.note("warning", what, mend=ENQUEUE_LATER)
    if then := pool.settings.too_small_for(app.memory):
        mend = "raise it: memory that children share counts in full"
        pool.note("warning", f"the app alone is too large: {then}", app=format_size(app.memory), mend=mend)
    if app.cut:
        what = "what the app's import opened is cut off in its children: open it in the handler (docs/forking.md)"
        pool.note("warning", what, cut=list(app.cut))
    if app.spoilt_logs and pool.settings.workers > 1:
        what = "each child rotates or empties log files by itself: use WatchedFileHandler, mode 'a' (docs/forking.md)"
        pool.note("warning", what, files=list(app.spoilt_logs))


def _closed_to_hooks(pool: Pool) -> frozenset[str] | None:
    if ON_DEATH not in pool.handlers:
        return None
    closed = frozenset(queue for queue, names in pool.settings.queue_handlers.items() if ON_DEATH not in names)
    if closed:
        mend = f"name {ON_DEATH!r} there, if the hooks are to run"
        what = "queue_handlers keeps the app's on_death hooks from queues: they are not told of deaths there"
        pool.note("warning", what, queues=sorted(closed), mend=mend)
    return closed


def _app_failed(pool: Pool, generation: int, failed: LoadFailed) -> None:
    if (server := pool.servers.get(generation)) and not server.refused:
        server.ending = True  # it exits by itself
    is_last = not any(other.is_young for other in pool.servers.values())  # of the start's import and its reloads
    if pool.generation == 0 and pool.boot.failures == 0 and is_last:
        pool.fail(failed.error, "the app does not load", failed.trace)
        return
    again_in = pool.server_failed(generation, failed.error, pool.now)
    fields = {"error": failed.error, "trace": failed.trace or None, "again_in": again_in}
    pool.note("error", "the app does not load; what runs goes on", **fields)


def _fork_server_gone(pool: Pool, event: ev.ForkServerGone) -> None:
    """End its children, which die with it. The one that began last is the likeliest to have killed it."""
    server = pool.servers.pop(event.generation, None)
    if server is None:
        return
    slots = pool.slots.of(event.generation)
    running = sorted((slot for slot in slots if slot.deliveries), key=lambda slot: slot.head_since)
    for rank, slot in enumerate(running):
        slot.suspicion = rank / max(1, len(running) - 1)
    for slot in slots:
        slot.end(EndReason.SERVER, pool.now, ALONE if len(running) == 1 else "")
    if not (server.ending or pool.is_stopping):
        what = "the fork server died" if server.loaded else "the process died that was importing the app"
        again_in = pool.server_failed(event.generation, what, pool.now)
        then = "another is started" if again_in else "what runs goes on"
        why = {} if server.loaded else {"mend": "`jobpool doctor`, with the same --app, tells how it dies"}
        pool.note("error", f"{what}; {then}", generation=event.generation, again_in=again_in, **why)


def _app_said(pool: Pool, event: ev.AppSaid) -> None:
    begins, was_in_stack = event.line.startswith(_STACKS), pool.in_stack
    pool.in_stack = begins or (was_in_stack and event.line.startswith(" "))
    level = logging.ERROR if begins or was_in_stack else logging.INFO  # the line after a stack is its error
    pool.lines.append(Line(level, event.line, {"app": event.app}))


def _child_spawned(pool: Pool, _: int, born: Spawned) -> None:
    if slot := pool.slots.by_child.get(born.child):
        slot.pid = born.pid
        _heard_from_server(pool, slot)


def _heard_from_server(pool: Pool, slot: Slot) -> None:
    if server := pool.servers.get(slot.generation):
        server.heard_at = pool.now


def _spawn_failed(pool: Pool, _: int, failed: SpawnFailed) -> None:
    if slot := pool.slots.collect(failed.child, pool.now):
        _heard_from_server(pool, slot)
        pool.boot.failed(failed.error, pool.now)
        pool.note("error", "no child could be forked", error=failed.error)


def _child_ready(pool: Pool, child: int, _: Ready) -> None:
    if (slot := pool.slots.by_child.get(child)) and slot.state is SlotState.STARTING:
        slot.move(SlotState.IDLE, pool.now)
        pool.boot.succeeded()
        pool.child_came = pool.has_booted = True


def _child_boot_failed(pool: Pool, child: int, failed: BootFailed) -> None:
    if slot := pool.slots.by_child.get(child):
        slot.end(EndReason.BOOT, pool.now, failed.error, killed=False)
        pool.boot.failed(failed.error, pool.now)
        pool.note("error", "a child could not boot", error=failed.error)


def _child_results(pool: Pool, event: ev.ChildResults) -> None:
    slot, count, busy, brief = pool.slots.by_child.get(event.child), 0, 0.0, 0.0
    if slot is None:
        return
    for result in event.results:
        delivery = slot.finished(result.nonce, pool.now)
        if result.leaving:
            _child_leaves(pool, slot, result.leaving, delivery)
        if delivery is None:
            pool.note("warning", "an answer to an attempt that is not running was ignored", slot=slot.index)
            continue
        count, busy = count + 1, busy + result.duration
        brief += min(result.duration, MAX_QUICK_S)
        delivery.began, delivery.ran = result.started, result.duration
        delivery.output, delivery.error = result.output, result.error
        if delivery.lost:
            continue
        if pool.never_started:
            pool.never_started.pop(delivery.lease.id, None)
        if pool.orphaned:
            pool.orphaned.pop(delivery.lease.id, None)
        if result.kind is ResultKind.CANCELLED and not delivery.cancelled:  # rubbish on its page; the alarm fired
            result = replace(result, kind=ResultKind.TIMEOUT)
        kept = _to_keep(pool, delivery, result.kept) if result.kept else None
        plain = result.kind is ResultKind.SUCCEEDED and result.follow_ups == NO_JOBS and not kept
        outcome = SUCCEEDED if plain else _outcome_of_result(pool, slot, delivery, result, kept)
        pool.outcomes.append((delivery, outcome))
    if count:
        pool.lookahead.finished(count, pool.now, busy, brief)


def _child_leaves(pool: Pool, slot: Slot, why: str, after: Delivery | None) -> None:
    """Say it once for each handler and kind of reason: it may be so after each of its jobs."""
    slot.end(EndReason.RECYCLE, pool.now, why, killed=False)
    job = {"id": after.lease.id, "handler": after.handler} if after else {}
    kind = job.get("handler", ""), why.partition(":")[0]
    mend = _MEND_LEFT if kind[1] in ("threads", "processes") else None
    level = "debug" if kind in pool.told_replaced else "warning" if mend else "info"
    pool.told_replaced.add(kind)
    pool.note(level, "a child is replaced", slot=slot.index, pid=slot.pid, why=why, **job, mend=mend)


def _to_keep(pool: Pool, delivery: Delivery, text: str) -> Kept | None:
    info, lease = pool.handlers.get(delivery.handler), delivery.lease
    by_queue = pool.settings.result_ttl.get(lease.queue)
    ttl = result_ttl_of(lease.envelope.result_ttl, info.result_ttl if info else None, by_queue)
    return keep(text, ttl, lease, pool.wall()) if ttl and pool.can.key_store else None


def _outcome_of_result(pool: Pool, slot: Slot, delivery: Delivery, result: Result, kept: Kept | None) -> Outcome:
    return outcome_of(
        result.kind,
        handler=delivery.handler,
        error=result.error,
        after=result.after,
        follow_ups=SentJobs(result.follow_ups, pool.settings.enqueue_to) if result.follow_ups != NO_JOBS else (),
        seen_for=pool.unknown_for(delivery.lease.id) if result.kind is ResultKind.UNKNOWN_HANDLER else 0.0,
        output=result.output,
        peak=slot.peak_rss,
        result=kept,
    )


def _child_said(pool: Pool, child: int, said: Said) -> None:
    slot = pool.slots.by_child.get(child)
    fields: dict[str, Any] = {"slot": slot.index if slot else -1}
    if said.nonce and slot and slot.deliveries and slot.deliveries[0].nonce == said.nonce:
        lease = slot.deliveries[0].lease
        fields = {"handler": slot.deliveries[0].handler, "id": lease.id}
        if trace_id := lease.envelope.trace_id:
            fields["trace_id"] = trace_id
    elif not said.nonce:
        fields = {"app": "import"}
    if said.logger:
        fields = fields | {"from": said.logger}
    if said.left_out > 0:
        pool.lines_left_out += said.left_out
        text = f"[… {said.left_out:,} line{'s' * (said.left_out > 1)} left out …]"
        pool.lines.append(Line(logging.INFO, text, fields | {"left_out": said.left_out}))
    if said.text:
        pool.lines.append(Line(said.level, said.text, fields))


def _child_broken(pool: Pool, event: ev.ChildBroken) -> None:
    slot = pool.slots.by_child.get(event.child)
    if slot is None or slot.state is SlotState.DYING:
        return
    slot.leave()
    slot.broken_at = pool.now
    if not event.closed:
        slot.broken_at -= BROKEN_GRACE_S
        pool.note("warning", "a child sent rubbish", slot=slot.index, pid=slot.pid, why=event.why)


def _child_ended(pool: Pool, event: ev.ChildEnded) -> None:
    if slot := pool.slots.by_child.get(event.child):
        slot.leave()
        slot.dead_at = pool.now


def _child_died(pool: Pool, event: ev.ChildDied) -> None:
    slot = pool.slots.by_child.get(event.exited.child)
    if slot is None:
        return
    _heard_from_server(pool, slot)
    was = slot.state
    if slot.ending is EndReason.SERVER and event.exited.signal != signal.SIGKILL:
        slot.ending = EndReason.NONE  # it had died before, of itself
    elif slot.ending is EndReason.NONE and _died_of_time(slot, event, pool.now):
        slot.ending, slot.ending_text = EndReason.TIMEOUT, overrun_text(slot.deliveries[0])
        slot.ending_of = event.started
    _measure_death(pool, slot, event)
    if slot.ending in _OF_THE_HEAD and slot.deliveries and slot.deliveries[0].nonce != slot.ending_of:
        slot.ending = EndReason.RETIRE  # the head had answered just before the kill: the next job is not to blame
    ending = slot.ending
    pool.slots.collect(slot.child, pool.now)
    rest = [delivery for delivery in slot.deliveries if delivery.nonce not in event.unread]
    pool.put_back([delivery for delivery in slot.deliveries if delivery.nonce in event.unread])
    slot.deliveries.clear()
    death = death_of(event.exited, ending, event.killer, event.stack, event.output)
    for delivery in rest:
        _attempt_died(pool, slot, delivery, event, death)
    if was is SlotState.STARTING:
        pool.boot.failed(f"a child died before it was ready: {death.headline}", pool.now)
    in_order = not rest and event.exited.code == 0  # told to leave while it was busy, and it did
    running = next((delivery for delivery in rest if delivery.nonce == event.started), None)
    if ending not in _BY_ORDER and not in_order:
        _note_death(pool, slot, event, death, running)


def _measure_death(pool: Pool, slot: Slot, event: ev.ChildDied) -> None:
    """Count the end of the slot's child, and the time and output of its attempt, which has no result to tell them."""
    pool.dead_peaks.append((pool.now, max(event.exited.peak_rss, slot.peak_rss)))
    pool.metrics.count(EXITS, (_cause_of_exit(slot, event),))
    if slot.ending is EndReason.TIMEOUT and (deadline := slot.deadline()) is not None:
        pool.metrics.observe(OVERRUN, max(0.0, pool.now - deadline))
    if slot.deliveries and slot.deliveries[0].nonce == event.started:
        head = slot.deliveries[0]
        head.began, head.ran, head.output = slot.head_since, max(0.0, pool.now - slot.head_since), event.output


def _cause_of_exit(slot: Slot, event: ev.ChildDied) -> str:
    """Return a word of a small set: why the master ended a child, else the signal, else `exit`."""
    exited = event.exited
    if slot.ending is not EndReason.NONE:
        return str(slot.ending.value).replace(" ", "-")
    if exited.signal == signal.SIGKILL and "out of memory" in event.killer:
        return "oom-kill"
    if exited.signal is not None:
        return signal_name(exited.signal).replace(" ", "-")
    return "retire" if slot.retiring and exited.code == 0 and not slot.deliveries else "exit"


def _died_of_time(slot: Slot, event: ev.ChildDied, now: float) -> bool:
    """Return whether its time was up, and the alarm or the request for a stack killed it: a handler may let them.

    By the child's own clock of the attempt: the alarm may strike before this one, which starts later behind another.
    """
    runs = bool(slot.deliveries) and slot.deliveries[0].nonce == event.started
    return runs and event.exited.signal in (signal.SIGALRM, ASKS_STACK) and 0.0 < event.deadline <= now


def _note_death(pool: Pool, slot: Slot, event: ev.ChildDied, death: Death, running: Delivery | None) -> None:
    slot.last_death = death.headline
    # With another status its last line may be one of an earlier job, and nobody else's business.
    said = event.output.strip().rpartition("\n")[2] if running is None and event.exited.code == BROKEN else None
    pool.note(
        "warning",
        "a child died",
        slot=slot.index,
        pid=event.exited.pid,
        id=running.lease.id if running else None,
        handler=running.handler if running else None,
        name=(running.lease.envelope.name or None) if running else None,
        cause=death.headline,
        stack=innermost(death.stack) or None,
        said=said or None,
    )


def _attempt_died(pool: Pool, slot: Slot, delivery: Delivery, event: ev.ChildDied, death: Death) -> None:
    if delivery.lost:
        return
    started = delivery.nonce == event.started
    if not started:
        death = replace(death, output="")  # the attempt before has printed it
    if slot.ending is EndReason.SERVER:
        outcome = _orphaned_outcome(pool, slot, delivery, death) if started else ended.NotRun()
    elif started or slot.ending in (EndReason.TIMEOUT, EndReason.STOP, EndReason.LOST, EndReason.CANCEL):
        outcome = outcome_of_death(slot.ending, slot.ending_text, death)
    elif pool.is_stopping:
        outcome = ended.Stopped()
    else:
        outcome = ended.NeverStarted(count_one_more(pool.never_started, delivery.lease.id), death.to_text())
    if started and isinstance(outcome, ended.Stopped):
        seconds = round(slot.killed_at - slot.head_since, 1)
        pool.note("warning", GIVEN_BACK[slot.ending], id=delivery.lease.id, handler=delivery.handler, seconds=seconds)
    if isinstance(outcome, ended.LostLease):
        pool.lose(delivery)
    else:
        if isinstance(outcome, ended.Crashed):
            pool.remember_unsettled(delivery)
        pool.outcomes.append((delivery, outcome))


def _orphaned_outcome(pool: Pool, slot: Slot, delivery: Delivery, death: Death) -> Outcome:
    """Release it, for any child may have killed the fork server. A crash, if it ran there alone again and again."""
    times = count_one_more(pool.orphaned, delivery.lease.id)
    if slot.ending_text == ALONE and times >= ORPHANED_LIMIT and not pool.is_stopping:
        return ended.Crashed(death.to_text())
    if times == 1 or pool.is_stopping:
        return ended.Stopped()
    return ended.Stopped(slot.suspicion * min(MAX_ORPHAN_PAUSE_S, 2.0 ** min(times - 2, 30)))


def _took_back(pool: Pool, event: ev.TookBack) -> None:
    if slot := pool.slots.by_child.get(event.child):
        slot.emptied = event.emptied
        pool.put_back(slot.take_back(set(event.nonces), pool.now))


def _not_begun(pool: Pool, event: ev.NotBegun) -> None:
    if slot := pool.slots.by_child.get(event.child):
        slot.looked_at = pool.now


def _sampled(pool: Pool, event: ev.Sampled) -> None:
    for child, rss, cpu, is_stopped in event.samples:
        if slot := pool.slots.by_child.get(child):
            slot.rss, slot.cpu, slot.is_stopped, slot.sampled_at = rss, cpu, is_stopped, event.at
            slot.peak_rss = max(slot.peak_rss, rss)


_ON_FRAMES: dict[type[Any], Callable[[Pool, int, Any], None]] = {
    Loaded: _app_loaded,
    LoadFailed: _app_failed,
    Spawned: _child_spawned,
    SpawnFailed: _spawn_failed,
    Ready: _child_ready,
    BootFailed: _child_boot_failed,
    Said: _child_said,
    Ask: lambda pool, child, ask: pool.asks.append((child, ask)),
}

ON_CHILDREN: dict[type[Any], Callable[[Pool, Any], None]] = {
    ev.FrameCame: _frame_came,
    ev.ForkServerGone: _fork_server_gone,
    ev.ChildResults: _child_results,
    ev.AppSaid: _app_said,
    ev.ChildBroken: _child_broken,
    ev.ChildEnded: _child_ended,
    ev.ChildDied: _child_died,
    ev.TookBack: _took_back,
    ev.NotBegun: _not_begun,
    ev.Sampled: _sampled,
}
