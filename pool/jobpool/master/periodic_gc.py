"""Collects the garbage that refers to itself, now and then: a broker's connections that have broken, above all.

The collector of the master runs rarely (run.py, `_rare_collections`), which a stream of jobs does not mind: nothing of
a job is in a circle. A client's connection is, and its read buffer of 64 KiB, with the frames of the error that ended
it: a master on a bad network would hold hundreds of them until the collector's turn comes.
"""

from __future__ import annotations

import gc

GC_EVERY_S = 10.0
"""Seconds between two collections: each takes about a millisecond, for what was there at the start is left out."""


class PeriodicGc:
    """Call `look` about once a second."""

    def __init__(self, now: float) -> None:
        self._due = now + GC_EVERY_S

    def look(self, now: float) -> None:
        """Collect, if that is due. `now`: seconds of any clock that only goes on."""
        if now >= self._due:
            self._due = now + GC_EVERY_S
            gc.collect()
