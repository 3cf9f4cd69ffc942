"""Grants to leases: idempotency keys, holds and rates, within a turn.

A key is held as the only place under the name `key:` + key. A place ends with its lease. Between a deadline and the
reap, the deadline alone shows that the holder has gone.
"""

from __future__ import annotations

from collections import defaultdict

from jobpool.broker.values import REMEMBER_CALLS
from jobpool.message.guards import Begin, Begun, Guards, Rate
from jobpool.message.lease import JobLease
from jobpool_backends.memory.values import Entry, Expiries, Expiring, Turn, judge
from jobpool_backends.shared import MICRO, all_holds, longest_windows, micros


class Places:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.done: Expiring[bool] = Expiring()  # by queue and key
        # By queue and name: the messages by their sequence number; and when each start was counted, by token, in order.
        self._held: dict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
        self._starts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._ends: Expiries[tuple[tuple[str, str], str]] = Expiries()  # when each start need not be known any more

    def begin(self, entry: Entry | None, lease: JobLease, guards: Guards) -> Begun:
        """Grant all guards or none."""
        if entry is None or not judge(entry, lease, self._turn.boot):
            return Begun(Begin.LOST)
        self._forget_starts()
        refused = self._refusal(entry, guards)
        if refused is not None:
            return refused
        for name, _, _ in all_holds(guards):
            entry.places.add(name)
            self._held[entry.queue, name][entry.seq] = entry
        for name, window in longest_windows(guards.rates).items():
            self._count(entry.queue, name, window, entry.owner)
        return Begun(Begin.GRANTED)

    def _refusal(self, entry: Entry, guards: Guards) -> Begun | None:
        if guards.key is not None and self.done.get((entry.queue, guards.key), self._turn.now):
            return Begun(Begin.DONE, guards.key)
        for name, most, told in all_holds(guards):
            if sum(other is not entry for other in self.live(entry.queue, name)) >= most:
                return Begun(Begin.HELD, told)
        for rate in guards.rates:
            after = self._until_room(entry.queue, rate, entry.owner)
            if after:
                return Begun(Begin.LIMITED, rate.name, after / MICRO)
        return None

    def live(self, queue: str, name: str) -> list[Entry]:
        return [entry for entry in self._held.get((queue, name), {}).values() if entry.deadline > self._turn.boot]

    def release_places(self, entry: Entry) -> None:
        """Free all places of a message whose lease has ended."""
        for name in entry.places:
            held = self._held[entry.queue, name]
            held.pop(entry.seq, None)
            if not held:
                del self._held[entry.queue, name]
        entry.places.clear()

    def take(self, queue: str, rate: Rate, token: str) -> int:
        """Count a start, or say in how many microseconds there is room."""
        self._forget_starts()
        after = self._until_room(queue, rate, token)
        if not after:
            self._count(queue, rate.name, rate.window, token)
        return after

    def give_back(self, entry: Entry, guards: Guards) -> None:
        for rate in guards.rates:
            self._starts.get((entry.queue, rate.name), {}).pop(entry.owner, None)

    def _until_room(self, queue: str, rate: Rate, token: str) -> int:
        starts = self._starts.get((queue, rate.name), {})
        if token in starts:
            return 0
        window, now = micros(rate.window), self._turn.now
        # A clock that was set back leaves starts in the future: do not wait for those further off than a window.
        recent = sorted(at for at in starts.values() if abs(now - at) < window)
        return recent[-rate.most] + window - now if len(recent) >= rate.most else 0

    def _count(self, queue: str, name: str, window: float, token: str) -> None:
        place, now = (queue, name), self._turn.now
        if token not in self._starts[place]:
            self._starts[place][token] = now
            # Longer than the window, so that a repeat after a lost answer is recognised.
            self._ends.put((place, token), now + micros(window + REMEMBER_CALLS))

    def _forget_starts(self) -> None:
        for (place, token), _ in self._ends.due(self._turn.now):
            starts = self._starts[place]
            starts.pop(token, None)
            if not starts:
                del self._starts[place]
