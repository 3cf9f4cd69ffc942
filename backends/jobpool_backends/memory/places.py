"""Grants to leases: idempotency keys, holds and rates. The owner holds the lock, and tells the time.

A key is held as the only place under the name `key:` + key. A place ends with its lease. Between a deadline and the
reap, the deadline alone shows that the holder has gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from jobpool.broker.values import REMEMBER_CALLS
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool_backends.memory.values import Entry, Expiring
from jobpool_backends.shared import KEY_PLACE, MICRO, longest_windows, micros


class Places:
    """The places of all queues. `now` is Unix time, `boot` CLOCK_BOOTTIME, both in microseconds."""

    def __init__(self) -> None:
        self.done: Expiring[bool] = Expiring()  # by queue and key
        self._held: dict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
        """By queue and name: the messages by their sequence number."""
        self._starts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        """By queue and name: when, by token, in the order in which they were counted."""
        self._ends: list[tuple[int, tuple[str, str], str]] = []  # when each start need not be known any more

    def begin(self, entry: Entry, guards: Guards, boot: int, now: int) -> Begun:
        """Grant all guards or none, to a message whose lease lives."""
        self._forget_starts(now)
        refused = self._try(entry, guards, boot, now)
        if refused is not None:
            return refused
        for name, _, _ in _all_holds(guards):
            entry.places.add(name)
            self._held[entry.queue, name][entry.seq] = entry
        for name, window in longest_windows(guards.rates).items():
            self._count(entry.queue, name, window, entry.owner, now)
        return Begun(Begin.GRANTED)

    def _try(self, entry: Entry, guards: Guards, boot: int, now: int) -> Begun | None:
        if guards.key is not None and self.done.get((entry.queue, guards.key), now):
            return Begun(Begin.DONE, guards.key)
        for name, most, shown in _all_holds(guards):
            if self._others(entry, name, boot) >= most:
                return Begun(Begin.HELD, shown)
        for rate in guards.rates:
            after = self._until_room(entry.queue, rate, entry.owner, now)
            if after:
                return Begun(Begin.LIMITED, rate.name, after / MICRO)
        return None

    def _others(self, entry: Entry, name: str, boot: int) -> int:
        held = self._held.get((entry.queue, name), {})
        return sum(1 for seq, other in held.items() if seq != entry.seq and other.deadline > boot)

    def holders(self, queue: str, name: str, boot: int) -> list[str]:
        """Return the ids of those that hold places under a name."""
        return sorted(entry.id for entry in self._held.get((queue, name), {}).values() if entry.deadline > boot)

    def vacate(self, entry: Entry) -> None:
        """Free all places of a message whose lease has ended."""
        for name in entry.places:
            held = self._held[entry.queue, name]
            held.pop(entry.seq, None)
            if not held:
                del self._held[entry.queue, name]
        entry.places.clear()

    def take(self, queue: str, rate: Rate, token: str, now: int) -> int:
        """Count a start, or say in how many microseconds there is room."""
        self._forget_starts(now)
        after = self._until_room(queue, rate, token, now)
        if not after:
            self._count(queue, rate.name, rate.window, token, now)
        return after

    def give_back(self, entry: Entry, guards: Guards) -> None:
        """Take back the starts of this lease."""
        for rate in guards.rates:
            self._starts.get((entry.queue, rate.name), {}).pop(entry.owner, None)

    def _until_room(self, queue: str, rate: Rate, token: str, now: int) -> int:
        starts = self._starts.get((queue, rate.name), {})
        if token in starts:
            return 0
        window = micros(rate.window)
        # A clock that was set back leaves starts in the future: do not wait for those further off than a window.
        recent = sorted(at for at in starts.values() if abs(now - at) < window)
        return recent[-rate.most] + window - now if len(recent) >= rate.most else 0

    def _count(self, queue: str, name: str, window: float, token: str, now: int) -> None:
        place = queue, name
        if token not in self._starts[place]:
            self._starts[place][token] = now
            # Longer than the window, so that a repeat after a lost answer is recognised.
            heappush(self._ends, (now + micros(window + REMEMBER_CALLS), place, token))

    def _forget_starts(self, now: int) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, place, token = heappop(self._ends)
            starts = self._starts[place]
            starts.pop(token, None)
            if not starts:
                del self._starts[place]


def _all_holds(guards: Guards) -> Iterator[tuple[str, int, str]]:
    """Yield the name of each place, its limit, and the word for its refusal."""
    if guards.key is not None:
        yield KEY_PLACE + guards.key, 1, guards.key
    for hold in guards.holds:
        yield hold.name, hold.most, hold.name
