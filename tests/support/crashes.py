"""How leases of the contract suite end without a verdict."""

from __future__ import annotations

import pytest

from jobpool.broker.backend import QueueBackend
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Forfeit, Settled
from support.harness import Harness

EXPIRED = "lease expired"

each_way = pytest.mark.parametrize(
    "cause",
    [
        pytest.param(EXPIRED, id="expired", marks=pytest.mark.needs("exact_crashes")),
        pytest.param("SIGSEGV in libfoo", id="forfeited"),
    ],
)
"""How a lease ends without a verdict."""


def lose(harness: Harness, backend: QueueBackend, leases: list[JobLease], cause: str) -> None:
    """End these leases, taken for a second just now, without a verdict."""
    if cause == EXPIRED:
        harness.expire_leases(1.0)
    else:
        assert backend.settle_many([(lease, Forfeit(cause)) for lease in leases]) == [Settled.OK] * len(leases)
