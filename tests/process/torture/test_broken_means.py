"""What the nemesis strikes with may break itself: a proxy dies, a restart command never ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.servers import shared_redis
from support.waiting import wait_until

from jobpool_torture import broker_faults, processes
from jobpool_torture.broker_faults import Access, make_access
from jobpool_torture.fleet import Fleet
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.network import Proxy
from jobpool_torture.processes import Stops
from jobpool_torture.schedule import Fault


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Two processes that do nothing."""
    running = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield [process.pid for process in running]
    for process in running:
        process.kill()
        process.wait()


def test_a_fault_of_a_network_that_has_died_is_missed_and_a_problem(tmp_path: Path) -> None:
    """The fleet is not started: its pools are not what is struck."""
    with Proxy("127.0.0.1", 1) as proxy:
        fleet = Fleet(tmp_path, ["redis://nowhere"])
        nemesis = Nemesis(fleet, [proxy], "none", "none", "", orders=tmp_path, record=tmp_path / "record")
        with closing(nemesis):
            assert not nemesis.strike(Fault(0, 0.0, "net.refuse", seconds=600.0)).missed
            proxy._process.kill()
            proxy._process.wait()
            blow = nemesis.strike(Fault(1, 0.0, "net.cut"))
            assert blow.missed
            assert "pool1: net.cut: missed: the proxy on port" in blow.said
            told = nemesis.due(time.monotonic() + 601.0)
            assert [said.partition(" the proxy")[0] for said in told] == ["pool1: net.refuse: over:"]
            assert len(nemesis.problems) == 2


@pytest.mark.parametrize("has_user", [True, False])
@pytest.mark.parametrize("was_ready", [True, False])
def test_a_restarted_broker_excuses_a_pool_that_is_starting_and_one_whose_user_it_has_forgotten(
    tmp_path: Path, has_user: bool, was_ready: bool
) -> None:
    server = shared_redis()
    access = make_access(f"redis://{server.host}:{server.port}/0") if has_user else "no user was given"
    fleet = Fleet(tmp_path, ["redis://nowhere"])
    pool = fleet.pools[0]
    pool.begun, pool.was_ready = time.monotonic(), was_ready
    try:
        nemesis = Nemesis(fleet, "none", "none", access, "cat", orders=tmp_path, record=tmp_path / "record")
        with closing(nemesis):
            assert fleet.excuse(pool) == ""
            nemesis.strike(Fault(0, 0.0, "broker.restart"))
            assert bool(fleet.excuse(pool)) == (has_user or not was_ready)
            wait_until(lambda: nemesis.due() and not nemesis.problems, what="it is over")
            assert bool(fleet.excuse(pool)) == (has_user or not was_ready)
            nemesis.due()  # makes the user anew
            pool.begun = time.monotonic()
            assert fleet.excuse(pool) == ""
    finally:
        if isinstance(access, Access):
            access.remove()


def test_the_end_of_all_faults_lets_all_go_and_harms_none(sleepers: list[int]) -> None:
    held = Stops()
    assert held.stop(0, sleepers, lambda _: True) == sleepers
    wait_until(lambda: {processes.state(pid) for pid in sleepers} == {"T"}, what="both are stopped")
    held.go_all()
    held.go_all()
    wait_until(lambda: "T" not in map(processes.state, sleepers), what="they go on")
    assert all(map(processes.is_alive, sleepers))


def test_a_restart_command_that_never_ends_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_faults, "STOP_COMMAND_LIMIT_S", 0.1)
    restart = broker_faults.BrokerRestart("sleep 600; true", tmp_path / "log")
    pid = restart.begin()
    wait_until(lambda: len(processes.tree_of(pid)) == 2, what="it has begun")
    tree = processes.tree_of(pid)
    assert restart.look() is None
    restart.close()
    wait_until(lambda: not any(map(processes.is_alive, tree)), what="it is gone")
    assert not restart.is_under_way
    restart.close()
