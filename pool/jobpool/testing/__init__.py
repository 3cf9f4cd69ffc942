"""For the tests of those who use jobpool: contexts, and a pool in the test's own process, on virtual time, with faults.

Nothing in jobpool imports this package. `docs/testing.md` shows how it is used. pytest finds the fixture
`virtual_pool` by itself; so that this costs a run nothing, names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpool.testing.faults import POINTS, BrokerDown, Crash, Fault, LoseLease, Point, Timeout
    from jobpool.testing.pool import VirtualPool
    from jobpool.testing.recorded import RecordedContext, context
    from jobpool.testing.worker import Run

__all__ = [
    "POINTS",
    "BrokerDown",
    "Crash",
    "Fault",
    "LoseLease",
    "Point",
    "RecordedContext",
    "Run",
    "Timeout",
    "VirtualPool",
    "context",
]

_HOME = {"RecordedContext": "recorded", "Run": "worker", "VirtualPool": "pool", "context": "recorded"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jobpool.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"jobpool.testing.{_HOME.get(name, 'faults')}"), name)
    return value
