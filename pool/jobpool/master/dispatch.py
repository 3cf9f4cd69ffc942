"""Hand-out of messages to children, how much more may be leased, and when acks leave. Decisions, no I/O.

A message that was handed ahead to a busy child can be taken back, until it begins. That happens when another child is
idle, or a more urgent message comes. So the next free child gets the most urgent of all that is leased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from jobpool.ipc.child_channel import MAX_FRAMES_AHEAD
from jobpool.master import actions as act
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.settlement import Ack, Settlement

LONG_RUNNING_S = 0.05  # seconds after which a running attempt gets no further frame
STEAL_AFTER_S = 0.001  # seconds for which an attempt has run before other children get what its child's socket holds
STEAL_QUICK_AFTER_S = 0.006  # the same while quick jobs stream, for it may just wait for a core: some slices of 3 ms
STEAL_ANYWAY_AFTER_S = 0.02  # the same for one that its child has not begun: it is frozen, or far too slow
REST_S = 0.0005  # seconds for which the loop leaves answers alone, while every child has enough to do
AHEAD_FOR_REST = 4  # frames of a child that are enough
LONG_HEAD_S = 0.002  # seconds; an attempt that has run for so long may end, and its child be idle, for a part of a rest
LOOKAHEAD_SHARE = 2  # so great a part of the look-ahead, and two at least, is enough for a fetch, or company for an ack
MAX_ENOUGH = 256  # messages, at most: a larger call costs as much for each of them, and takes longer
MAX_FETCH = 2 * MAX_ENOUGH  # messages in one fetch: the children are to have the first while the next are on their way


def dispatch(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Hand to idle children first; then, as far as the look-ahead goes, after attempts that have only just begun.

    While quick jobs stream, few children get them all: those at work first, and then as many idle ones as it takes.
    If something must be taken back first, nothing else is done: the next turn comes at once, and hands out.
    """
    ready, idle = pool.ready, pool.slots.idle
    if not (ready or idle):
        return
    busy = [slot for slot in pool.slots.engaged.values() if slot.state is SlotState.BUSY]
    holding = [slot for slot in busy if len(slot.deliveries) > 1 and not slot.emptied]
    sharers = _sharers(pool, now)
    if holding and idle and (sharers or not ready) and _steal(holding, sharers, len(idle), now, actions):
        return
    if not ready:
        return
    first = ready[0].priority  # a socket may hold something less urgent; or more so, while another child is idle
    misplaced = [s for s in holding if s.deliveries[-1].priority > first or (idle and s.deliveries[1].priority < first)]
    if misplaced:
        actions += [act.TakeBack(slot) for slot in misplaced]
        return
    if first == ready[-1].priority and all(s.deliveries[1].priority >= first for s in holding):
        _dispatch_evenly(pool, busy, sharers, now, actions)
    else:  # the urgent ones wait for the next free child
        count = min(len(idle), len(ready))
        actions += [act.Dispatch(slot, [ready.popleft()]) for slot in islice(reversed(idle.values()), count)]


def _sharers(pool: Pool, now: float) -> int:
    """Return how many children are to share what is ready; 0: all of them."""
    children = pool.lookahead.children(now)
    return int(children) if children < len(pool.slots.idle) + len(pool.slots.engaged) else 0


def _steal_after(sharers: int) -> float:
    return STEAL_QUICK_AFTER_S if sharers else STEAL_AFTER_S


def _steal(holding: Sequence[Slot], sharers: int, idle: int, now: float, actions: list[act.Action]) -> bool:
    """Take back what is behind attempts that run for long: the share of `idle` children; if only some share, all of it.

    The most urgent first, and of those the child that has run its attempt for the longest.
    """
    able = [slot for slot in holding if max(slot.head_since, slot.looked_at) <= now - _steal_after(sharers)]
    able.sort(key=lambda slot: (slot.deliveries[1].priority, slot.head_since))
    waiting = [slot.waiting for slot in able]
    for slot, most in zip(able, waiting if sharers else shares_to_steal(waiting, idle), strict=True):
        if most:
            how = act.Steal if now - slot.head_since < STEAL_ANYWAY_AFTER_S else act.TakeBack
            actions.append(how(slot, most))
    return bool(able)


def shares_to_steal(waiting: Sequence[int], idle: int) -> list[int]:
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


def steal_due(pool: Pool, now: float) -> float:
    """Return when other children may next get what a busy one's socket holds; infinity while nothing is to be had."""
    sharers = _sharers(pool, now)
    if pool.is_stopping or not pool.slots.idle or (pool.ready and not sharers):
        return math.inf
    busy = [slot for slot in pool.slots.engaged.values() if slot.state is SlotState.BUSY]
    heads = [max(slot.head_since, slot.looked_at) for slot in busy if slot.waiting]
    return min(heads) + _steal_after(sharers) if heads else math.inf


def rest(pool: Pool, now: float) -> float:
    """Return the seconds for which the loop may leave children's answers alone; 0: it may not.

    A turn of the loop costs as much for one answer as for ten. While jobs stream, the first answer would wake the loop
    for a turn of its own, and push its child off the core. The children have enough to do until it looks again.
    """
    engaged = pool.slots.engaged
    if pool.is_stopping or not (engaged and pool.lookahead.size(now)) or (pool.slots.idle and not _sharers(pool, now)):
        return 0.0
    for slot in engaged.values():
        if len(slot.deliveries) < AHEAD_FOR_REST and slot.head_since > now - LONG_HEAD_S:
            return 0.0
    return REST_S


def _dispatch_evenly(pool: Pool, busy: Sequence[Slot], sharers: int, now: float, actions: list[act.Action]) -> None:
    """Spread what is ready evenly, the shortest socket first: over idle children and attempts that have just begun.

    `sharers`: how many children get any, those at work first; 0: all that can.
    """
    ready, idle = pool.ready, pool.slots.idle
    begun_after = now - (_steal_after(sharers) if sharers else LONG_RUNNING_S)
    able = [s for s in busy if max(s.head_since, s.looked_at) > begun_after and not (s.retiring or s.full)]
    wakes = max(0, sharers - len(able)) if sharers else len(idle)
    able = [*islice(reversed(idle.values()), min(wakes, len(ready))), *able[: sharers or None]]
    if not able:
        return
    depth = min(MAX_FRAMES_AHEAD, 1 + -(-pool.lookahead.size(now) // len(able)))
    dispatches = [act.Dispatch(slot, []) for slot in able]
    lengths = [len(slot.deliveries) for slot in able]
    for level in range(min(lengths), depth):
        if not ready:
            break
        shorter = [one for one, length in zip(dispatches, lengths, strict=True) if length <= level]
        for one in islice(shorter, len(ready)):
            one.deliveries.append(ready.popleft())
    actions += [one for one in dispatches if one.deliveries]


def room(pool: Pool, now: float) -> int:
    """Return how many messages may be leased now: idle children and look-ahead, less what is held and not begun."""
    slots = pool.slots
    lengths = [len(slot.deliveries) for slot in slots.engaged.values() if slot.deliveries]
    if pool.is_stopping or not (slots.idle or lengths):
        return 0
    wanted = len(slots.idle) + pool.lookahead.size(now) - (sum(lengths) - len(lengths)) - len(pool.ready)
    if pool.settings.max_total:
        wanted = min(wanted, pool.settings.max_total - pool.leased_total)
    return max(0, wanted)


def worth_fetching(pool: Pool, now: float) -> int:
    """Return `room`, or 0 while a larger fetch a little later is cheaper: each is a transaction of the broker's.

    Unless a child is idle that would get some, a fetch waits until `enough` of the look-ahead is used up.
    """
    wanted = room(pool, now)
    if not wanted or (pool.slots.idle and len(pool.slots.engaged) < (_sharers(pool, now) or math.inf)):
        return wanted
    ahead = pool.lookahead.size(now)
    return wanted if wanted >= min(ahead, enough(ahead)) else 0


def enough(ahead: int) -> int:
    """Return how many messages are enough for a call of the broker, where the look-ahead has this size."""
    return max(2, min(-(-ahead // LOOKAHEAD_SHARE), MAX_ENOUGH))


class Batch:
    """Settlements on their way to the settle thread.

    Each call of that thread is a transaction of the broker's. While jobs stream, acks may therefore wait for company:
    for 10 to 30 ms (`LookAhead.linger`). Other settlements never wait. Nor does an ack that brings jobs or gives a
    place back, for which other jobs wait. Nor does a result if no other job is held.

    `due`: CLOCK_MONOTONIC seconds at which `take` is to be called; infinity while there is nothing.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Delivery, Settlement]] = []
        self.due = math.inf

    def add(
        self, work: list[tuple[Delivery, Settlement]], now: float, ahead: int, linger: float, held: int = 0
    ) -> None:
        """Put some in. `ahead`: the look-ahead's size; 0 = jobs are long or few, and nothing is gained by waiting.

        `linger`: seconds for which an ack may wait. `held`: how many deliveries the pool holds, these included.
        """
        first = not self._work
        self._work += work
        waited_for = [
            type(settlement) is not Ack
            or settlement.follow_ups
            or (delivery.lease.guards and delivery.lease.guards.holds)
            for delivery, settlement in work
        ]
        if not ahead or len(self._work) >= enough(ahead) or any(waited_for):
            self.due = now
        elif held <= len(self._work) and any(
            type(settlement) is Ack and settlement.result is not None for _, settlement in self._work
        ):
            self.due = now  # no other job can join them
        elif first:
            self.due = now + linger

    def take(self) -> list[tuple[Delivery, Settlement]]:
        work, self._work = self._work, []
        self.due = math.inf
        return work
