"""For the tests of those who use jobpool: a pool in the test's own process, on virtual time, with faults on demand.

Nothing in jobpool imports this package. `docs/testing.md` shows how it is used; with pytest, take the fixture from
`jobpool.testing.plugin`.
"""

from __future__ import annotations

from jobpool.testing.faults import POINTS, BrokerDown, Crash, Fault, LoseLease, Point, Timeout
from jobpool.testing.pool import VirtualPool
from jobpool.testing.worker import Run

__all__ = ["POINTS", "BrokerDown", "Crash", "Fault", "LoseLease", "Point", "Run", "Timeout", "VirtualPool"]
