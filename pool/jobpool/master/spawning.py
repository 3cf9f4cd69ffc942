"""Keeps fork servers and children at their number: fills empty places, replaces old generations. Decisions, no I/O."""

from __future__ import annotations

from jobpool.ipc.requests import CANCEL, RESTART, STACK, Request
from jobpool.master import actions as act
from jobpool.master.deadlines import kill_child
from jobpool.master.slots import Slot, SlotState
from jobpool.master.state import Pool, Server
from jobpool.message.outcome import EndReason
from jobpool.message.units import format_duration

ANSWER_LIMIT_S = 10.0
"""Seconds in which a fork server forks a child that was asked for, or collects one that is dead; then it is killed.
Most take some milliseconds; a sweep of strays may take a second, and a fork of many gigabytes as long."""

SLOW_IMPORT_S = 5.0  # seconds after which the log says that the app is still being imported
STOP_LIMIT_S = 0.5  # the same past the grace of a stop


def keep_servers(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Keep one loaded fork server, a young one while a reload is under way, and none longer than its children."""
    reload, pool.reload_asked = pool.reload_asked, False
    for server in pool.servers.values():
        if not reload:
            _keep_server(pool, server, now, actions)
        elif server.is_young and (server.is_reload or pool.server()):  # not one without which nothing runs meanwhile
            server.ending = True  # each import takes a CPU, and the memory of the app
            actions.append(act.EndForkServer(server.generation))
    lacking = pool.server() is None and not any(server.is_young for server in pool.servers.values())
    if reload or (lacking and now >= pool.boot.next_at):
        generation = next(pool.generations)
        pool.servers[generation] = Server(generation, now, is_reload=reload)
        pool.reloaded_at = now if reload else pool.reloaded_at
        actions.append(act.StartForkServer(generation))


def reload_under_way(pool: Pool) -> str:
    """Tell how far a reload has come, in words; "" when none is under way."""
    old = sum(slot.generation < pool.generation for slot in pool.slots.live)
    if old:
        return f"a reload is under way: {old} of the old code's children are not gone yet"
    if pool.generation and any(server.is_young for server in pool.servers.values()):
        return "a reload is under way: the new code is being imported"
    return ""


def _keep_server(pool: Pool, server: Server, now: float, actions: list[act.Action]) -> None:
    if server.ending:
        return
    late = not server.loaded and now - server.started_at >= pool.settings.boot_timeout
    if late:
        error = f"the app was not imported after {pool.settings.boot_timeout:g} s"
        again_in = pool.server_failed(server.generation, error, now)
        mend = "set a longer boot_timeout if it needs one; else `jobpool doctor` tells where it hangs"
        pool.note("error", "the fork server is killed", error=error, again_in=again_in, mend=mend)
    elif server.is_young and not server.told_slow and now - server.started_at >= SLOW_IMPORT_S:
        server.told_slow = True
        pool.note("info", "loading the app", seconds=round(now - server.started_at, 1))
    is_spent = server.generation < pool.generation and not pool.slots.of(server.generation)
    if late or server.refused or is_spent:
        server.ending = True
        actions.append(act.EndForkServer(server.generation))


def watch_servers(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Kill each fork server that lets a birth or a death wait for too long; its children can be collected then."""
    for server in pool.servers.values():
        slots = pool.slots.of(server.generation)
        owed = [slot.dead_at or slot.since for slot in slots if slot.dead_at or not slot.pid]
        if server.ending or not owed:
            continue
        since = max(min(owed), server.heard_at)
        if now - since >= ANSWER_LIMIT_S:
            _kill_server(pool, server, f"it has not answered for {ANSWER_LIMIT_S:g} s", now, actions)
        elif pool.is_stopping and now >= pool.stop_by and now - since >= STOP_LIMIT_S:
            _kill_server(pool, server, "it has not answered within the grace of the stop", now, actions)


def _kill_server(pool: Pool, server: Server, why: str, now: float, actions: list[act.Action]) -> None:
    server.ending = True
    if server.generation == pool.generation and not pool.is_stopping:
        pool.boot.failed(f"the fork server was killed: {why}", now)
    pool.note("error", "a fork server is killed", why=why, generation=server.generation)
    actions.append(act.EndForkServer(server.generation, kill=True))


def keep_children(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Fill empty places; replace children of an old generation one by one, never before a new one is ready."""
    server = pool.server()
    if server is None or not server.loaded or server.ending:
        return
    live = pool.slots.live
    for old in live:
        if old.state is SlotState.STARTING and old.generation < pool.generation:  # its boot may hang
            kill_child(old, EndReason.RETIRE, "replaced", now, actions)
    starting = sum([slot.state is SlotState.STARTING for slot in live])
    # Each that imports the app needs a CPU of its own: many at once might none of them be ready in time.
    most = 1 if pool.boot.failures else len(live) + pool.target if server.preloaded else pool.cpus
    has_old = bool({s.generation for s in live if s.state is not SlotState.DYING} - {pool.generation})
    for _ in range(pool.target + has_old - len(live)):
        if now < pool.boot.next_at or starting >= most:
            break
        if (slot := pool.slots.empty()) is not None:
            pool.slots.start(slot, next(pool.child_numbers), pool.generation, now)
            actions.append(act.SpawnChild(slot))
        starting += 1
    _retire_surplus(pool, live, now, actions)


def _retire_surplus(pool: Pool, live: list[Slot], now: float, actions: list[act.Action]) -> None:
    """Retire an old generation's children once a new one is ready, and those above the target: idle ones one by one."""
    ready = [slot for slot in live if slot.state in (SlotState.IDLE, SlotState.BUSY)]
    staying = [slot for slot in ready if not slot.retiring]
    old = [slot for slot in staying if slot.generation != pool.generation]
    if old and any(slot.generation == pool.generation for slot in ready):
        idle = [slot for slot in old if slot.state is SlotState.IDLE]
        spare = idle[:1] if len(ready) > pool.target else []
        for slot in [*(slot for slot in old if slot.state is SlotState.BUSY), *spare]:
            _retire(slot, now, actions)
    elif len(staying) > pool.target:
        _retire(min(old or staying, key=lambda slot: slot.state is not SlotState.IDLE), now, actions)


def answer_requests(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Do what people on this machine ask about single children, and tell them."""
    for request, answer in pool.requests:
        slot = pool.slots.all[request.slot] if 0 <= request.slot < len(pool.slots.all) else None
        if slot is None or not slot.pid or slot.pid != request.pid or slot.dead_at:
            gone = f"refused: child {request.pid} is not in slot {request.slot} any more"
            actions.append(act.AnswerUser(answer, gone))
        elif request.verb == STACK and not slot.dumped_at:
            actions.append(act.AnswerStack(slot, answer))
        else:
            actions.append(act.AnswerUser(answer, _done(pool, slot, request, now, actions)))
    pool.requests.clear()


def _done(pool: Pool, slot: Slot, request: Request, now: float, actions: list[act.Action]) -> str:
    """Do it; return the answer."""
    head = slot.deliveries[0] if slot.deliveries else None
    about = {"slot": slot.index, "pid": slot.pid, "id": head.lease.id if head else None, "by": "a person, in top"}
    match request.verb:
        case _ if pool.is_stopping or slot.state is SlotState.DYING:
            return "refused: the child is ending"
        case verb if verb == CANCEL:
            if head is None or head.lease.id != request.job or head.settling or head.lost:
                return f"too late: job {request.job} does not run there any more"
            head.cancelled = True
            pool.note("warning", "a job is to be cancelled", **about)
            return f"job {request.job} is told to end; after {format_duration(pool.settings.kill_grace)} it is killed"
        case verb if verb == RESTART:
            if slot.state is SlotState.STARTING or slot.retiring:
                return "refused: the child " + ("leaves already" if slot.retiring else "is starting")
            pool.note("warning", "a child is to be replaced", **about)
            _retire(slot, now, actions)
            return f"child {slot.pid} is replaced" + (f" after job {head.lease.id}" if head else "")
        case verb if verb == STACK:
            return "refused: its time is up, and its stack is on the way to the log"
        case verb:
            return f"refused: this jobpool does not know {verb!r}"


def _retire(slot: Slot, now: float, actions: list[act.Action]) -> None:
    """Hand nothing more to it, from this very turn on; an idle one has to be gone within its time."""
    slot.leave()
    if slot.state is SlotState.IDLE:
        slot.end(EndReason.RETIRE, now, "replaced", killed=False)
    actions.append(act.RetireChild(slot))
