"""The number of messages to lease beyond the idle children, so that 60 ms of the pool's work is held.

Each fetch and each settlement is a transaction of the broker's, which costs as much for one job as for ten. So no-op
jobs stream in batches, those of 20 ms come by threes, and long jobs are never hoarded. Numbers in, numbers out: no
clock, no I/O.

And the number of children that share it. A child that is woken finds cold caches, which costs more than a very short
job. So few children get such jobs: as many as keep the cores busy, and some more for each handler that runs at a time.
Jobs that wait for something have handlers that run, and so they get more children.

The size is the lower of two views on what finished lately. The last 100 ms keep one burst from being taken for a
stream. The last 20 to 30 ms let it fall as soon as jobs get longer. The longer jobs last, the further back this second
view goes. For two children in step, with jobs of 25 ms, end none for 25 ms at a time while the stream goes on.

A far broker answers a fetch late, so twice that time is held, for jobs also run while the answer is on its way. From
one window to the next the size grows at most fourfold, for a few short jobs prove little.
A window in which nothing ends proves nothing either, so after a pause the size is what it was.
"""

from __future__ import annotations

import math
import os

from jobpool.errors import LONGEST_WAIT_S

HELD_S = 0.06  # of the pool's work to hold: less lets children wait for a fetch, where jobs are of mixed lengths
VIEW_S = 0.02  # of the second view, while jobs are very short
VIEW_JOBS = 4  # of each child's, which it covers of longer ones, for up to `HELD_S`
MAX_HELD_S = 0.09  # the same for a far broker: a message that has not started 100 ms after its lease goes back
LONG_JOB_S = 0.08  # of a job; where they last so long and the broker is near, a fetch costs less than what it delays
NEAR_S = 0.005  # of a fetch, which is not counted: a broker of this machine, or of this network
WINDOW_S = 0.01  # of one observation window
SPAN_WINDOWS = 10  # that are remembered: 100 ms
MAX_GROWTH = 4  # times that the size may grow from one window to the next
MAX_QUIET_S = 0.05  # without an end, after which a stream of very short jobs is over
MAX_LOOKAHEAD = 1024

QUICK_RUN_S = 0.0003  # of a job, on average; for a longer one it is worth waking a child
MAX_QUICK_S = 2 * QUICK_RUN_S
"""The most that one run adds to that average. Among many children that are awake, some wait for a core in the middle of
a quick job. Counted in full, such runs would keep all of them awake."""

CHILDREN_A_HANDLER = 4  # that get quick jobs, for each handler that runs at a time
CORES = len(os.sched_getaffinity(0))


class LookAhead:
    """A size, bounded, that follows what the pool finishes. Times are CLOCK_MONOTONIC seconds, never back.

    `linger`: how long an ack may wait for others while there is a size, in seconds: half of the second view.
    """

    def __init__(self, now: float, cores: int = CORES) -> None:
        self._cores = cores
        self._children: float = math.inf
        self._late = 0.0
        self.linger = VIEW_S / 2
        self._allowed = 0
        self._counts = [0] * SPAN_WINDOWS
        self._busy = [0.0] * SPAN_WINDOWS
        self._brief = [0.0] * SPAN_WINDOWS
        self._window = int(now / WINDOW_S)
        self._last = now
        self._stale = True

    def finished(self, count: int, now: float, busy: float = 0.0, brief: float | None = None) -> None:
        """Note that `count` attempts have ended, which ran for `busy` seconds, added up.

        The run time tells many long jobs that end together from a stream of short ones; 0 = not known. `brief`: the
        same sum, in which each counts for `MAX_QUICK_S` at most; None = all ran for as long.
        """
        if int(now / WINDOW_S) != self._window:
            self._roll(now)
        slot = self._window % SPAN_WINDOWS
        self._counts[slot] += count
        if 0.0 < busy < LONGEST_WAIT_S:  # a child whose page is full of rubbish may say anything
            self._busy[slot] += busy
            self._brief[slot] += min(busy, count * MAX_QUICK_S) if brief is None else brief
        self._last = now
        self._stale = True

    def broker_took(self, seconds: float) -> None:
        """Note how long a fetch took, in seconds: a far broker's share of what is held follows it, smoothed."""
        late = min(MAX_HELD_S - VIEW_S, 2 * seconds) if seconds > NEAR_S else 0.0
        if late != self._late:
            step = (late - self._late) / 4
            self._late = late if abs(step) < NEAR_S / 10 else self._late + step
            self._stale = True

    def size(self, now: float) -> int:
        """Return the messages to hold beyond what idle children take at once: 0 to `MAX_LOOKAHEAD`."""
        if int(now / WINDOW_S) != self._window:
            self._roll(now)
        if self._stale:
            self._measure()
        return 0 if now - self._last > self._quiet else min(self._allowed, self._size)

    def children(self, now: float) -> float:
        """Return how many children are to share what is held; infinity unless quick jobs stream."""
        return self._children if self.size(now) else math.inf

    def _measure(self) -> None:
        """Measure what the pool finishes in the time to hold, by the lower of two rates, and the pause that ends it."""
        self._stale = False
        total, busy = sum(self._counts), sum(self._busy)
        mean = busy / total if total else 0.0
        view = max(VIEW_S, min(VIEW_JOBS * mean, HELD_S))
        self.linger = view / 2
        held = max(HELD_S, VIEW_S + self._late)
        is_far = self._late > 0.0  # then jobs end in bursts, a round trip apart: the first view decides
        windows = SPAN_WINDOWS if is_far else 1 + round((view + mean) / WINDOW_S)  # that cover it, with the running one
        recent = sum([self._counts[(self._window - ago) % SPAN_WINDOWS] for ago in range(min(windows, SPAN_WINDOWS))])
        self._size = round(held * min(recent / view, total / max(SPAN_WINDOWS * WINDOW_S, mean)))
        if mean >= LONG_JOB_S and not is_far:
            self._size = 0
        running = busy / (SPAN_WINDOWS * WINDOW_S)
        is_quick = sum(self._brief) < total * QUICK_RUN_S
        self._children = self._cores + math.ceil(CHILDREN_A_HANDLER * running) if is_quick else math.inf
        self._quiet = max(held if is_far else view, min(2 * mean, MAX_QUIET_S))

    def _roll(self, now: float) -> None:
        """Close the windows that have ended, and let the size grow once for each."""
        window = int(now / WINDOW_S)
        if window - self._window >= SPAN_WINDOWS:
            self._counts = [0] * SPAN_WINDOWS
            self._busy = [0.0] * SPAN_WINDOWS
            self._brief = [0.0] * SPAN_WINDOWS
            self._allowed = min(self._allowed, 1)
            self._window = window
            self._stale = True
        while self._window < window:
            self._close()

    def _close(self) -> None:
        if self._counts[self._window % SPAN_WINDOWS]:
            self._measure()
            self._allowed = min(MAX_LOOKAHEAD, max(1, MAX_GROWTH * min(self._allowed, self._size)))
        self._window += 1
        slot = self._window % SPAN_WINDOWS
        self._counts[slot] = 0
        self._busy[slot] = self._brief[slot] = 0.0
        self._stale = True
