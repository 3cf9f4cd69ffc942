"""What the pool does next: decisions, no I/O. `plan` looks at the state and returns actions for the loop to perform.

Order matters: verdicts first (they free slots), then the stop or the upkeep of children, then the hand-out of what is
ready, then whatever is due by the clock. Marking a slot busy, or a child killed, happens when the action is performed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jobpool.definition import JobDefinition
from jobpool.errors import JobpoolError
from jobpool.master import actions as act
from jobpool.master.actions import Action
from jobpool.master.delivery import Delivery
from jobpool.master.pool import BROKEN_GRACE, Pool, Server, ServerState, Stopping
from jobpool.master.slots import Ending, Slot, SlotState
from jobpool.outcome import Failed, NotRun, Outcome, Succeeded
from jobpool.policy.decide import Rules, decide
from jobpool.policy.retry import RetryPolicy
from jobpool.settlement import Leave

STALE_AFTER = 0.1
"""Seconds after its lease at which a message that no child has begun goes back to its place."""

DUMP_BEFORE_KILL = 0.05
"""Seconds between the request for a stack and the kill."""

UNDEAD_AFTER = 5.0
"""Seconds after SIGKILL at which a child that was not collected (state D) is given up and its slot replaced."""

CHECK_EVERY = 0.01
"""Seconds between two looks at everything that is due by the clock, while the loop is busy."""

HEARTBEAT = 1.0
"""Seconds for which an idle loop sleeps at most."""

LONG_RUNNING = 0.05
"""Seconds after which a running attempt gets no further frame put behind it."""

MOST_AHEAD = 64
"""Frames in one child's socket at most: the kernel's buffer holds some 250 small ones."""


@dataclass(slots=True)
class Planner:
    """The pool's policies, and `plan`. Keeps nothing that `Pool` should know.

    `check` raises a `JobpoolError` for a job that the backend would refuse (`QueueBackend.pack`).
    """

    retry: RetryPolicy
    check: Callable[[JobDefinition], object]
    can_forfeit: bool = True
    boot_timeout: float = 60.0
    _rules: dict[str, Rules] = field(default_factory=dict)

    def plan(self, pool: Pool, now: float, now_boot: float) -> list[Action]:
        """Everything that is to be done now, in order. Times: CLOCK_MONOTONIC and CLOCK_BOOTTIME seconds."""
        pool.now = now
        actions: list[Action] = []
        self._settle(pool, now_boot, actions)
        _talk(pool, actions)
        if pool.is_stopping:
            _stop(pool, now, actions)
        else:
            _keep_servers(pool, now, actions)
            _keep_children(pool, now, actions)
            _hand_out(pool, now, actions)
        if now - pool.checked_at >= CHECK_EVERY:
            pool.checked_at = now
            _lose_expired(pool, now_boot)
            self._watch(pool, now, actions)
        self._settle(pool, now_boot, actions)
        return actions

    def _settle(self, pool: Pool, now_boot: float, actions: list[Action]) -> None:
        """Decide each verdict. What may not be settled is forgotten: its lease runs out."""
        verdicts, pool.verdicts = pool.verdicts, []
        for delivery, outcome in verdicts:
            if delivery.lost or delivery.settling:
                continue
            if type(outcome) is Succeeded and outcome.follow_ups:
                outcome = self._checked(outcome)
            rules = self._rules.get(delivery.handler) or self._rules_for(pool, delivery.handler)
            settlement = decide(outcome, delivery.lease, rules, self.retry, now_boot)
            if isinstance(settlement, Leave):
                _leave(pool, delivery, outcome, settlement)
            else:
                delivery.settling = True
                delivery.outcome = outcome
                actions.append(act.Settle(delivery, settlement))

    def _checked(self, outcome: Succeeded) -> Outcome:
        """A follow-up that the backend would refuse fails the attempt: its ack could never be settled."""
        try:
            for definition in outcome.follow_ups:
                self.check(definition)
        except JobpoolError as error:
            return Failed(f"a follow-up job is refused: {error}", permanent=True)
        return outcome

    def _rules_for(self, pool: Pool, handler: str) -> Rules:
        info = pool.handlers.get(handler)
        rules = Rules(
            max_retries=info.max_retries if info else None,
            unknown_handler_grace=pool.settings.unknown_handler_grace,
            can_forfeit=self.can_forfeit,
        )
        if info:
            self._rules[handler] = rules
        return rules

    def forget_rules(self) -> None:
        """The table of handlers has changed."""
        self._rules.clear()

    def _watch(self, pool: Pool, now: float, actions: list[Action]) -> None:
        for slot in pool.slots.live:
            match slot.state:
                case SlotState.BUSY | SlotState.IDLE if slot.broken_at and now - slot.broken_at >= BROKEN_GRACE:
                    slot.end(Ending.PROTOCOL, now, "its channel is of no use")
                    actions.append(act.KillChild(slot))
                case SlotState.BUSY:
                    _watch_busy(pool, slot, now, actions)
                case SlotState.STARTING if now - slot.since >= self.boot_timeout:
                    slot.end(Ending.BOOT, now, f"not ready after {self.boot_timeout:g} s")
                    pool.boot.failed(f"a child was not ready after {self.boot_timeout:g} s", now)
                    actions.append(act.KillChild(slot))
                case SlotState.DYING:
                    _watch_dying(pool, slot, now, actions)
        _watch_ready(pool, now)

    def next_due(self, pool: Pool, now: float) -> float:
        """When the loop must look again though nothing happens; at most `HEARTBEAT` away."""
        due = now + HEARTBEAT
        if pool.verdicts or pool.asks or pool.replies:
            return now
        for slot in pool.slots.live:
            due = min(due, self._slot_due(pool, slot, now))
        if pool.ready:
            due = min(due, pool.ready[0].leased_at + STALE_AFTER)
        if pool.stopping is Stopping.DRAIN:
            due = min(due, pool.stop_by)
        if pool.boot.failures and not pool.is_stopping:
            due = min(due, pool.boot.next_at)
        return max(due, pool.checked_at + CHECK_EVERY)

    def _slot_due(self, pool: Pool, slot: Slot, now: float) -> float:
        match slot.state:
            case SlotState.BUSY:
                return _busy_due(pool, slot, now)
            case SlotState.STARTING:
                return slot.since + self.boot_timeout
            case SlotState.DYING:
                return (slot.killed_at or slot.since) + UNDEAD_AFTER
            case _:
                return now + HEARTBEAT


def _leave(pool: Pool, delivery: Delivery, outcome: Outcome, leave: Leave) -> None:
    if pool.held.pop(delivery.nonce, None) is None:
        return
    delivery.lost = True
    pool.counters.lost += 1
    pool.note(
        "warning", "a message is left to its lease", id=delivery.lease.id, why=leave.why, after=type(outcome).__name__
    )


def _talk(pool: Pool, actions: list[Action]) -> None:
    """Carry what children ask, and the answers."""
    for child, definitions in pool.asks:
        actions.append(act.Produce(child, definitions))
    for child, reply in pool.replies:
        actions.append(act.Answer(child, reply))
    pool.asks.clear()
    pool.replies.clear()
    if pool.stacks_asked:
        pool.stacks_asked = False
        actions.append(act.WriteStacks())


# --- stopping ---------------------------------------------------------------------------------------------------------


def _stop(pool: Pool, now: float, actions: list[Action]) -> None:
    """Give back what has not begun; let idle children go; kill the rest when the grace is over."""
    while pool.ready:
        pool.verdicts.append((pool.ready.popleft(), NotRun()))
    over = pool.stopping is Stopping.KILL or now >= pool.stop_by
    for slot in pool.slots.live:
        if slot.state is SlotState.DYING:
            if over and not slot.killed_at:
                actions.append(act.KillChild(slot))
        elif over:
            slot.end(Ending.STOP, now, "the pool stops")
            actions.append(act.KillChild(slot))
        elif len(slot.deliveries) > 1:
            actions.append(act.TakeBack(slot))
        elif slot.state is not SlotState.BUSY:
            slot.end(Ending.RETIRE, now, "the pool stops", killed=False)
            actions.append(act.RetireChild(slot))


# --- children and fork servers ----------------------------------------------------------------------------------------


def _keep_servers(pool: Pool, now: float, actions: list[Action]) -> None:
    """One loaded fork server, a young one while a reload is under way, and none longer than its children."""
    newest = max(pool.servers, default=0)
    if pool.reload_asked:
        pool.reload_asked = False
        _begin_server(pool, max(newest, pool.generation) + 1, now, actions)
        return
    for server in list(pool.servers.values()):
        _keep_server(pool, server, now, actions)
    wanted = pool.server() is None and not any(_young(s) for s in pool.servers.values())
    if wanted and now >= pool.boot.next_at:
        _begin_server(pool, max(newest, pool.generation) + 1, now, actions)


def _young(server: Server) -> bool:
    return server.state is ServerState.STARTING and not server.ending


def _begin_server(pool: Pool, generation: int, now: float, actions: list[Action]) -> None:
    pool.servers[generation] = Server(generation, now)
    actions.append(act.StartForkServer(generation))


def _keep_server(pool: Pool, server: Server, now: float, actions: list[Action]) -> None:
    if server.ending:
        return
    late = server.state is ServerState.STARTING and now - server.started_at >= pool.settings.boot_timeout
    if late:
        error = f"the app was not imported after {pool.settings.boot_timeout:g} s"
        pool.boot.failed(error, now)
        pool.note("error", "the fork server is killed", error=error)
    if late or _is_spent(pool, server):
        server.ending = True
        actions.append(act.EndForkServer(server.generation))


def _is_spent(pool: Pool, server: Server) -> bool:
    """An old generation without children."""
    old = server.generation < pool.generation
    return old and not any(slot.generation == server.generation for slot in pool.slots.live)


def _keep_children(pool: Pool, now: float, actions: list[Action]) -> None:
    """Fill empty places; replace children of an old generation one by one, never before a new one is ready."""
    server = pool.server()
    if server is None or server.state is not ServerState.LOADED or server.ending:
        return
    live = pool.slots.live
    starting = sum(slot.state is SlotState.STARTING for slot in live)
    has_old = any(s.generation != pool.generation for s in live if s.state is not SlotState.DYING)
    for _ in range(pool.target + has_old - len(live)):
        if now < pool.boot.next_at or (pool.boot.failures and starting):
            break
        _spawn(pool, now, actions)
        starting += 1
    _retire_surplus(pool, live, actions)


def _retire_surplus(pool: Pool, live: list[Slot], actions: list[Action]) -> None:
    """Children of an old generation once a new one is ready, and those above the target: idle ones one at a time."""
    ready = [slot for slot in live if slot.state in (SlotState.IDLE, SlotState.BUSY)]
    staying = [slot for slot in ready if not slot.retiring]
    old = [slot for slot in staying if slot.generation != pool.generation]
    if old and any(slot.generation == pool.generation for slot in ready):
        actions.extend(act.RetireChild(slot) for slot in old if slot.state is SlotState.BUSY)
        idle = [slot for slot in old if slot.state is SlotState.IDLE]
        if idle and len(ready) > pool.target:
            actions.append(act.RetireChild(idle[0]))
    elif not old and len(staying) > pool.target:
        actions.append(act.RetireChild(min(staying, key=lambda slot: slot.state is not SlotState.IDLE)))


def _spawn(pool: Pool, now: float, actions: list[Action]) -> None:
    slot = pool.slots.empty()
    if slot is not None:
        pool.slots.start(slot, pool.next_child(), pool.generation, now)
        actions.append(act.SpawnChild(slot))


# --- handing out ------------------------------------------------------------------------------------------------------


def _hand_out(pool: Pool, now: float, actions: list[Action]) -> None:
    """Idle children first; then, as far as the look-ahead goes, behind attempts that have only just begun."""
    ready = pool.ready
    if not ready:
        return
    planned: dict[int, int] = {}
    for slot in pool.slots.live:
        if slot.state is SlotState.IDLE and not slot.retiring:
            actions.append(act.Hand(slot, ready.popleft()))
            planned[slot.index] = 1
            if not ready:
                return
    _hand_ahead(pool, now, planned, actions)


def _hand_ahead(pool: Pool, now: float, planned: dict[int, int], actions: list[Action]) -> None:
    """Spread what is left evenly: the shortest socket first."""
    able = [slot for slot in pool.slots.live if _takes_more(slot, now)]
    if not able:
        return
    depth = min(MOST_AHEAD, 1 + -(-pool.lookahead.size(now) // len(able)))
    lengths = {slot.index: len(slot.deliveries) + planned.get(slot.index, 0) for slot in able}
    for level in range(min(lengths.values()), depth):
        for slot in able:
            if lengths[slot.index] <= level:
                actions.append(act.Hand(slot, pool.ready.popleft()))
                lengths[slot.index] += 1
                if not pool.ready:
                    return


def _takes_more(slot: Slot, now: float) -> bool:
    if slot.retiring or slot.full or slot.state not in (SlotState.IDLE, SlotState.BUSY):
        return False
    return not slot.deliveries or now - slot.head_since < LONG_RUNNING


def room(pool: Pool, now: float) -> int:
    """How many messages may be leased now: idle children and look-ahead, less what is held and has not begun."""
    if pool.is_stopping:
        return 0
    idle = waiting = 0
    for slot in pool.slots.live:
        if slot.state is SlotState.IDLE and not slot.retiring:
            idle += 1
        elif len(slot.deliveries) > 1:
            waiting += len(slot.deliveries) - 1
    if not idle and not any(slot.state is SlotState.BUSY for slot in pool.slots.live):
        return 0
    wanted = idle + pool.lookahead.size(now) - waiting - len(pool.ready)
    if pool.settings.max_total:
        wanted = min(wanted, pool.settings.max_total - pool.leased_total)
    return max(0, wanted)


# --- the clock --------------------------------------------------------------------------------------------------------


def _lose_expired(pool: Pool, now_boot: float) -> None:
    """Leases that ran out before they could be renewed."""
    expired = [d for d in pool.held.values() if now_boot >= d.lease.expires_at and not d.settling]
    for delivery in expired:
        pool.lose(delivery)


def _watch_busy(pool: Pool, slot: Slot, now: float, actions: list[Action]) -> None:
    head = slot.deliveries[0]
    if head.lost and pool.settings.on_lease_lost == "kill":
        slot.end(Ending.LOST, now, "the lease was lost")
        actions.append(act.KillChild(slot))
    elif _is_too_large(pool, slot):
        limit = pool.settings.memory_limit / 2**20
        slot.end(Ending.MEMORY, now, f"used {slot.peak_rss / 2**20:.0f} MiB; its limit is {limit:.0f} MiB")
        actions.append(act.KillChild(slot))
    else:
        _watch_deadline(pool, slot, head, now, actions)
        if len(slot.deliveries) > 1 and _has_stale(slot, now):
            pool.lookahead.restart(now)
            actions.append(act.TakeBack(slot))


def _is_too_large(pool: Pool, slot: Slot) -> bool:
    return 0 < pool.settings.memory_limit < slot.rss


def _has_stale(slot: Slot, now: float) -> bool:
    """Something behind the head waits too long, or is lost: the child must not begin it."""
    behind = list(slot.deliveries)[1:]
    return any(now - d.leased_at >= STALE_AFTER or d.lost for d in behind)


def _watch_deadline(pool: Pool, slot: Slot, head: Delivery, now: float, actions: list[Action]) -> None:
    deadline = slot.deadline()
    if deadline is None:
        return
    kill_at = deadline + pool.settings.kill_grace
    if now >= kill_at + DUMP_BEFORE_KILL or (
        now >= kill_at and slot.dumped_at and now - slot.dumped_at >= DUMP_BEFORE_KILL
    ):
        name = head.lease.envelope.name or head.handler
        slot.end(Ending.TIMEOUT, now, f"Job '{name}' exceeded maximum execution time of {head.timeout:g} seconds.")
        actions.append(act.KillChild(slot))
    elif now >= kill_at and not slot.dumped_at:
        slot.dumped_at = now
        actions.append(act.DumpStack(slot))


def _watch_dying(pool: Pool, slot: Slot, now: float, actions: list[Action]) -> None:
    if slot.deliveries and slot.ending is Ending.RECYCLE:
        actions.append(act.TakeBack(slot))
    asked = slot.killed_at or slot.since
    if now - asked < UNDEAD_AFTER:
        return
    if not slot.killed_at:
        actions.append(act.KillChild(slot))
    else:
        _give_up(pool, slot, now, actions)


def _give_up(pool: Pool, slot: Slot, now: float, actions: list[Action]) -> None:
    """Killed, and still not collected: its lease must expire, because its handler may still run."""
    pool.note("error", "a killed child does not die; its slot is replaced", slot=slot.index, pid=slot.pid)
    for delivery in slot.deliveries:
        pool.lose(delivery)
    slot.deliveries.clear()
    child = slot.child
    pool.slots.collect(child, now)
    actions.append(act.ForgetChild(slot, child))


def _watch_ready(pool: Pool, now: float) -> None:
    """What no child could take within the time goes back to its old place, and the look-ahead starts from nothing."""
    stale = False
    while pool.ready and now - pool.ready[0].leased_at >= STALE_AFTER:
        pool.verdicts.append((pool.ready.popleft(), NotRun()))
        stale = True
    if stale:
        pool.lookahead.restart(now)


def _busy_due(pool: Pool, slot: Slot, now: float) -> float:
    due = now + HEARTBEAT
    deadline = slot.deadline()
    if slot.broken_at:
        due = min(due, slot.broken_at + BROKEN_GRACE)
    if deadline is not None:
        due = min(due, deadline + pool.settings.kill_grace + (DUMP_BEFORE_KILL if slot.dumped_at else 0.0))
    if len(slot.deliveries) > 1:
        due = min(due, slot.deliveries[1].leased_at + STALE_AFTER)
    return due
