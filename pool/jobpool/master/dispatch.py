"""Hand-out of messages to children, how much more may be leased, and when acks leave. Decisions, no I/O.

A message that was handed ahead to a busy child can be taken back, until it begins. That happens when another child is
idle, or a more urgent message comes. So the next free child gets the most urgent of all that is leased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobpool.ipc.child_channel import MAX_FRAMES_AHEAD
from jobpool.master import actions as act
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.settlement import Ack, Settlement

LONG_RUNNING_S = 0.05  # seconds after which a running attempt gets no further frame
STEAL_AFTER_S = 0.001  # seconds for which an attempt has run before idle children get what its child's socket holds
STEAL_FROM_QUICK_AFTER_S = 0.01  # the same while jobs are quick: then waking a child costs more than it saves
QUICK_RUN_S = 0.0005  # of a job, on average
STEAL_ANYWAY_AFTER_S = 0.02  # the same for one that its child has not begun: it is frozen, or far too slow
MAX_LINGER_S = 0.01  # seconds for which an ack may wait
LOOKAHEAD_SHARE = 4  # so great a part of the look-ahead is company enough, and two settlements at least


def dispatch(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Hand to idle children first; then, as far as the look-ahead goes, after attempts that have only just begun.

    If something must be taken back first, nothing else is done: the next turn comes at once, and hands out.
    """
    ready, live = pool.ready, pool.slots.live
    idle = _idle(live)
    if not (ready or idle):
        return
    holding = _holding(live)
    if not ready:
        _steal(pool, holding, len(idle), now, actions)
        return
    if misplaced := _misplaced(holding, ready[0].priority, bool(idle)):
        actions += [act.TakeBack(slot) for slot in misplaced]
        return
    planned = {slot.index: 1 for slot in idle[: len(ready)]}
    actions += [act.Hand(slot, ready.popleft()) for slot in idle[: len(ready)]]
    if ready and ready[0].priority == ready[-1].priority:  # else the urgent ones wait for the next free child
        _hand_ahead(pool, holding, now, planned, actions)


def _idle(live: Sequence[Slot]) -> list[Slot]:
    return [slot for slot in live if slot.state is SlotState.IDLE and not slot.retiring]


def _holding(live: Sequence[Slot]) -> list[Slot]:
    """Return the slots whose sockets hold something behind an attempt that runs."""
    return [slot for slot in live if slot.state is SlotState.BUSY and slot.waiting]


def _misplaced(holding: Sequence[Slot], priority: int, anyone_idle: bool) -> list[Slot]:
    """Return the slots whose sockets hold something less urgent than `priority`, the first of what is ready.

    Or something more urgent, while another child is idle.
    """
    return [
        slot
        for slot in holding
        if slot.deliveries[-1].priority > priority or (anyone_idle and slot.deliveries[1].priority < priority)
    ]


def _steal(pool: Pool, holding: Sequence[Slot], idle: int, now: float, actions: list[act.Action]) -> None:
    """Take back for idle children what the sockets of others hold, unless their attempts are quick.

    The most urgent first, and of those the child that has run its attempt for the longest.
    """
    begun_by = now - _steal_after(pool, now)
    able = [slot for slot in holding if max(slot.head_since, slot.looked_at) <= begun_by]
    able.sort(key=lambda slot: (slot.deliveries[1].priority, slot.head_since))
    for slot, most in zip(able, given_back([slot.waiting for slot in able], idle), strict=True):
        if most:
            how = act.Steal if now - slot.head_since < STEAL_ANYWAY_AFTER_S else act.TakeBack
            actions.append(how(slot, most))


def given_back(waiting: Sequence[int], idle: int) -> list[int]:
    """Return how many messages of each socket go to `idle` children: an equal share for each child.

    `waiting`: how many each holds; the first give all they have. Each idle child gets one, as long as there is one.
    """
    total = sum(waiting)
    wanted = min(total, max(idle, total * idle // (idle + len(waiting)))) if waiting else 0
    given = []
    for count in waiting:
        given.append(min(count, wanted))
        wanted -= given[-1]
    return given


def _steal_after(pool: Pool, now: float) -> float:
    return STEAL_AFTER_S if pool.lookahead.mean_run(now) >= QUICK_RUN_S else STEAL_FROM_QUICK_AFTER_S


def steal_due(pool: Pool, now: float) -> float:
    """Return when an idle child may next get what a busy one's socket holds; infinity while nothing is to be had."""
    live = pool.slots.live
    if pool.ready or pool.is_stopping or not _idle(live):
        return math.inf
    heads = [max(slot.head_since, slot.looked_at) for slot in _holding(live)]
    return min(heads) + _steal_after(pool, now) if heads else math.inf


def _hand_ahead(
    pool: Pool, holding: Sequence[Slot], now: float, planned: dict[int, int], actions: list[act.Action]
) -> None:
    """Spread what is left evenly: the shortest socket first."""
    able = [slot for slot in pool.slots.live if _takes_more(slot, now)]
    first = pool.ready[0].priority
    if not able or any(slot.deliveries[1].priority < first for slot in holding):
        return  # nobody can, or it might begin before what is more urgent
    depth = min(MAX_FRAMES_AHEAD, 1 + -(-pool.lookahead.size(now) // len(able)))
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
    return not slot.deliveries or now - slot.head_since < LONG_RUNNING_S


def room(pool: Pool, now: float) -> int:
    """Return how many messages may be leased now: idle children and look-ahead, less what is held and not begun."""
    idle = busy = waiting = 0
    for slot in pool.slots.live:
        if slot.deliveries:
            busy += 1
            waiting += len(slot.deliveries) - 1
        elif slot.state is SlotState.IDLE and not slot.retiring:
            idle += 1
    if pool.is_stopping or not (idle or busy):
        return 0
    wanted = idle + pool.lookahead.size(now) - waiting - len(pool.ready)
    if pool.settings.max_total:
        wanted = min(wanted, pool.settings.max_total - pool.leased_total)
    return max(0, wanted)


def worth_fetching(pool: Pool, now: float) -> int:
    """Return `room`, or 0 while a larger fetch a little later is cheaper: each is a transaction of the broker's.

    Unless a child is idle, a fetch waits until a quarter of the look-ahead is used up, two messages at least.
    """
    wanted = room(pool, now)
    if not wanted or pool.slots.count(SlotState.IDLE):
        return wanted
    ahead = pool.lookahead.size(now)
    return wanted if wanted >= min(ahead, max(2, ahead // 4)) else 0


class Batch:
    """Settlements on their way to the settle thread.

    Each call of that thread is a transaction of the broker's. While jobs stream, acks may therefore wait for company:
    10 ms at most, half of what the look-ahead holds. Other settlements never wait, nor does a result if no other job is
    held: somebody may wait for it.

    `due`: CLOCK_MONOTONIC seconds at which `take` is to be called; infinity while there is nothing.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Delivery, Settlement]] = []
        self.due = math.inf

    def add(self, delivery: Delivery, settlement: Settlement, now: float, ahead: int, held: int = 0) -> None:
        """Put one in. `ahead`: the look-ahead's size; 0 = jobs are long or few, and nothing is gained by waiting.

        `held`: how many deliveries the pool holds, this one included.
        """
        self._work.append((delivery, settlement))
        count = len(self._work)
        if not ahead or type(settlement) is not Ack or count >= max(2, ahead // LOOKAHEAD_SHARE):
            self.due = now
        elif count == 1:
            # No other job can join it if none is held.
            self.due = now + (0.0 if held == 1 and settlement.result is not None else MAX_LINGER_S)

    def take(self) -> list[tuple[Delivery, Settlement]]:
        work, self._work = self._work, []
        self.due = math.inf
        return work
