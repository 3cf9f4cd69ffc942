"""Hand-out of messages to children, how much more may be leased, and when acks leave. Decisions, no I/O."""

from __future__ import annotations

import math

from jobpool.master import actions as act
from jobpool.master.slots import Delivery, Slot, SlotState
from jobpool.master.state import Pool
from jobpool.message.settlement import Ack, Settlement

LONG_RUNNING_S = 0.05  # seconds after which a running attempt gets no further frame
MAX_FRAMES_AHEAD = 64  # frames in one child's socket at most: the kernel's buffer holds some 250 small ones
MAX_LINGER_S = 0.01  # seconds for which an ack may wait
LOOKAHEAD_SHARE = 4  # so great a part of the look-ahead is company enough, and two settlements at least


def dispatch(pool: Pool, now: float, actions: list[act.Action]) -> None:
    """Hand to idle children first; then, as far as the look-ahead goes, after attempts that have only just begun."""
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


def _hand_ahead(pool: Pool, now: float, planned: dict[int, int], actions: list[act.Action]) -> None:
    """Spread what is left evenly: the shortest socket first."""
    able = [slot for slot in pool.slots.live if _takes_more(slot, now)]
    if not able:
        return
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
    10 ms at most, half of what the look-ahead holds. Other settlements never wait.

    `due`: CLOCK_MONOTONIC seconds at which `take` is to be called; infinity while there is nothing.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Delivery, Settlement]] = []
        self.due = math.inf

    def add(self, delivery: Delivery, settlement: Settlement, now: float, ahead: int) -> None:
        """Put one in. `ahead`: the look-ahead's size; 0 = jobs are long or few, and nothing is gained by waiting."""
        self._work.append((delivery, settlement))
        if not ahead or type(settlement) is not Ack or len(self._work) >= max(2, ahead // LOOKAHEAD_SHARE):
            self.due = now
        elif len(self._work) == 1:
            self.due = now + MAX_LINGER_S

    def take(self) -> list[tuple[Delivery, Settlement]]:
        work, self._work = self._work, []
        self.due = math.inf
        return work
