"""The masters at rest, before the faults and after them: what each has open once its pool has all its children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jobpool_torture import descriptors
from jobpool_torture.fleet import Fleet
from jobpool_torture.phases import Phases
from jobpool_torture.pool import Pool
from jobpool_torture.result import Result

REST_LIMIT_S = 30.0
"""Seconds for pools without a job to have all their children, and for what their masters have open to be closed."""

Open = dict[str, Counter[str]]
"""How many descriptors of each kind each master has open, by the pool's name."""


class Baseline:
    """A look at the masters of a run. A missing comparison is a problem of the result.

    Args:
        workers: Children of each pool when nothing ails it.
        connections: The kind of descriptor that a connection to the broker is.
    """

    def __init__(self, fleet: Fleet, workers: int, connections: str, pace: Phases, result: Result) -> None:
        self._fleet = fleet
        self._workers = workers
        self._connections = connections
        self._pace = pace
        self._result = result

    def look(self) -> Open | None:
        """Count the open descriptors; block for `REST_LIMIT_S` seconds at most. None: a pool lacks children, or an
        interrupt.
        """
        if self._pace.wait(lambda: self._result.interrupted or not self._short(), REST_LIMIT_S):
            return None if self._result.interrupted else self._fleet.descriptors()
        self._note_short()
        return None

    def compare(self, before: Open) -> None:
        """Fill in FD, and how the descriptors have changed. Blocks for `REST_LIMIT_S` seconds at most."""

        def is_as_before() -> bool:
            if self._short():
                return False
            self._result.descriptors = descriptors.difference(before, self._fleet.descriptors())
            return not self._grown()

        if self._pace.wait(is_as_before, REST_LIMIT_S) or not self._short():
            self._result.add("FD", self._grown())
        else:
            self._note_short()

    def _grown(self) -> list[str]:
        return descriptors.grown(self._result.descriptors, self._connections)

    def _short(self) -> Sequence[Pool]:
        """Return pools that lack children, or have more: each of them costs its master some descriptors."""
        return [pool for pool in self._fleet.pools if not pool.is_full(self._workers)]

    def _note_short(self) -> None:
        names = " and ".join(pool.name for pool in self._short())
        self._result.problems.append(
            f"descriptors were not compared: after {REST_LIMIT_S:g} s without a job {names or 'a pool'} had more or"
            f" fewer than {self._workers} ready children"
        )
