"""Row 1: jobs that are longer than their leases, in Python and in C, while another pool waits for them to run out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.faultrig import fault_broker, fault_rig
from support.poolrig import Rig

TTL = 1.0
LONG = 5.0
"""Seconds."""

BROKERS = {
    "sqlite": ("work", "hold_gil"),
    "redis": ("work", "hold_gil"),
    "redis-cluster": ("work",),
    "postgres": ("work",),
    "beanstalk": ("work",),
    "servicebus": ("work",),
}
"""One job sleeps; one holds the interpreter lock in a single call of C, and a processor, of which there may be few."""


@pytest.mark.row(1)
def test_jobs_that_are_longer_than_their_leases_run_once(tmp_path: Path, figure: Figure) -> None:
    """On all brokers side by side, because it takes its time: two pools on each, both with children to spare."""
    with ExitStack() as stack:
        rigs: dict[str, tuple[Rig, float]] = {}
        for name in BROKERS:
            folder = tmp_path / name
            folder.mkdir()
            broker = stack.enter_context(fault_broker(name, folder))
            rig = stack.enter_context(fault_rig(folder, broker))
            rigs[name] = rig, max(LONG, broker.lasts * 1.3 if broker else 0.0)
        for rig, _ in rigs.values():
            start_pools(rig, 2, "--ttl", str(TTL))
        for name, (rig, seconds) in rigs.items():
            for handler in BROKERS[name]:
                rig.enqueue(handler, {"seconds": seconds})
        for name, (rig, _) in rigs.items():
            _check_one_run_each(name, rig, figure)


def _check_one_run_each(name: str, rig: Rig, figure: Figure) -> None:
    rig.wait_drained(60.0)
    for ident in rig.enqueued:
        runs = [(line.fence, line.crashes) for line in rig.starts(ident)]
        assert runs == [(1, 0)], f"on {name}\n{rig.describe()}"
        [start], [end] = rig.starts(ident), rig.ends(ident)
        assert end.at - start.at > 2 * TTL, "it was longer than its lease"
        figure(f"the run, on {name}", end.at - start.at, "s")
    rig.account().assert_once_each()
    stop_all(rig, rig.pools)
