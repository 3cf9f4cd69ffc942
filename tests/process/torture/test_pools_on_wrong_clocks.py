"""One of two pools is an hour off, and then an hour the other way: leases hold, and are taken over, as ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleetrig import LIMIT, FleetRig, fleet_rig
from support.servers import fresh_name, shared_redis
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.message.definition import JobDefinition

TTL = 2.0
HOUR = 3600.0
PAUSE = TTL / 2
"""Seconds that the machine may stand still and no lease end: they are renewed each third of their time."""


def url_of(broker: str, directory: Path) -> str:
    if broker == "redis":
        server = shared_redis()
        return f"redis://{server.host}:{server.port}/0?prefix={fresh_name('clock')}"
    return f"sqlite:///{directory}/jobpool.db"


@pytest.fixture(params=["sqlite", "redis"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FleetRig]:
    with fleet_rig(tmp_path, url_of(request.param, tmp_path), moved=True, ttl=TTL) as rig:
        yield rig


def runs(rig: FleetRig, *idents: str) -> list[tuple[str, int]]:
    """Pool and fence of each run of these jobs."""
    return [(entry["pool"], entry["fence"]) for entry in rig.told() if entry["id"] in idents]


def test_a_job_longer_than_its_lease_runs_once_and_a_dead_pools_jobs_are_taken_over(rig: FleetRig) -> None:
    for _ in range(4):
        before = len(rig.told())
        with Stalls() as stalls:
            idents, others = work_while_the_clock_jumps(rig)
        if stalls.longest < PAUSE:  # else leases may have ended, as they should: that tells nothing
            break
    assert sorted(runs(rig, *idents)) == [("pool1", 1)] * 2 + [("pool2", 1)] * 2
    assert len(rig.told()[before:]) == len(idents) + others

    with Stalls() as stalls:
        idents = rig.enqueue(4, seconds=0.5)
        wait_until(lambda: len(runs(rig, *idents)) >= 4, LIMIT, "all run")
        rig.strike("master.kill", 1, seconds=600.0)
        killed = time.monotonic()
        wait_until(lambda: rig.backend.stats("default").pending == 0, LIMIT, "the pool on the wrong clock has done all")
        took = time.monotonic() - killed
    assert took < 3 * TTL + 3.0 + stalls.allowance
    # Once more at most. Its fence may be above 2: what is leased ahead goes back unbegun if no child takes it in time.
    assert all(len(runs(rig, ident)) <= 2 for ident in idents) or stalls.longest >= PAUSE
    assert rig.fleet.unexpected == []


def work_while_the_clock_jumps(rig: FleetRig) -> tuple[list[str], int]:
    """Four jobs longer than their leases, and, where it can go wrong, many that expire; how many these are."""
    idents = rig.enqueue(4, seconds=1.5 * TTL)
    wait_until(lambda: len(runs(rig, *idents)) >= 4, LIMIT, "all run")
    others = 0
    for seconds in (HOUR, -HOUR):
        rig.strike("clock.jump", seconds=600.0, amount=seconds)
        if rig.backend.broker_time() is not None:  # else expiry goes by the clock of the machine, which is one
            expiring = [JobDefinition("tell", {"seconds": 0.1}, expires_in=300.0) for _ in range(20)]
            others += len(rig.backend.enqueue_many(expiring))
        time.sleep(TTL / 4)  # renewals go on at a third of the ttl: under both clocks
    wait_until(lambda: rig.backend.stats("default").pending == 0, LIMIT, "all are done")
    return idents, others
