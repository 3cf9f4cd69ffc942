"""Every fault of processes and clocks is struck at two real pools on SQLite; it really happens, and is undone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from support.fleetrig import LIMIT, FleetRig, fleet_rig
from support.waiting import wait_until

from jobpool_torture import processes
from jobpool_torture.fleet import Fleet, Pool
from jobpool_torture.schedule import KINDS

pytestmark = pytest.mark.xdist_group("nemesis")  # two pools for all of them

LONG = 600.0
"""Seconds that no test lasts: a stop is over when the test says so, however long the machine pauses before it looks."""

SKEW = 5.0
"""Seconds that may lie between two readings of two clocks, one after the other, on a busy machine."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetRig]:
    directory = tmp_path_factory.mktemp("fleet")
    with fleet_rig(directory, f"sqlite:///{directory}/jobpool.db", moved=True, restart_broker="exit 3") as rig:
        yield rig
        assert rig.fleet.stop_all(LIMIT) == {"pool1": 0, "pool2": 0}
        wait_until(lambda: not rig.fleet.processes(), what="no process is left")


@pytest.fixture
def rig(shared: FleetRig) -> Iterator[FleetRig]:
    """Two pools that are well, and are so again afterwards, without an end that nobody had ordered."""
    before = len(shared.fleet.unexpected)
    yield shared
    shared.assert_healed()
    assert "T" not in states(shared)
    assert shared.fleet.unexpected[before:] == []
    wait_until(lambda: not orphans(shared.fleet), what="no process is left without a master")


def states(rig: FleetRig) -> str:
    return "".join(processes.state(pid) for pid in rig.fleet.processes())


def stopped(*pids: int) -> None:
    """Wait until all of them are. Nothing is undone meanwhile: nobody calls `due`."""
    wait_until(lambda: {processes.state(pid) for pid in pids} == {"T"}, LIMIT, "stopped")


def orphans(fleet: Fleet) -> set[int]:
    """Those of the fleet's processes that are not below a running master."""
    below = {pid for pool in fleet.pools if pool.pid for pid in processes.tree_of(pool.pid)}
    return fleet.processes().keys() - below


def generation_of(pool: Pool) -> int:
    header = pool.header()
    return header.generation if header else 0


def over(rig: FleetRig) -> list[str]:
    """What is told when all that was struck for `LONG` is over, and it is so."""
    told = rig.nemesis.due(time.monotonic() + LONG + 1.0)
    wait_until(lambda: "T" not in states(rig), LIMIT, "all go on")
    return told


def pid_in(said: str) -> int:
    return int(said.partition("pid ")[2].partition(";")[0])


def test_it_says_what_it_can_do_and_why_not_the_rest(rig: FleetRig) -> None:
    cannot = rig.nemesis.cannot()
    assert {kind for kind in cannot if kind.startswith("net.")} == {kind for kind in KINDS if kind.startswith("net.")}
    assert cannot["net.cut"] == "sqlite:// has no network"


def ahead(told: dict[str, float]) -> float:
    """Seconds that a process was ahead of this one's wall clock; its monotonic clock is everybody's."""
    return (told["wall"] - told["mono"]) - (time.time() - time.monotonic())


# --- children and fork servers ----------------------------------------------------------------------------------------


def test_a_child_is_killed(rig: FleetRig) -> None:
    children = rig.pool().children()
    killed = pid_in(rig.strike("child.kill", pick=2))
    assert killed == children[1]
    rig.until(lambda: not processes.is_alive(killed), "it is dead")
    rig.until(lambda: len(rig.pool().children()) == 2, "another has taken its place")


def test_an_odd_pick_takes_a_busy_child(rig: FleetRig) -> None:
    [ident] = rig.enqueue(seconds=60.0, once=True)  # far longer than from the look to the strike
    rig.until(lambda: [entry for entry in rig.told() if entry["id"] == ident], "it is at work")
    [busy] = [entry["pid"] for entry in rig.told() if entry["id"] == ident]
    number = 0 if busy in rig.pool(0).children() else 1
    rig.until(lambda: rig.pool(number).busy() == [busy], "its master says so")
    said = rig.strike("child.kill", number, pick=1)
    assert "a busy child killed" in said
    assert pid_in(said) == busy


@pytest.mark.parametrize("kind", ["child.stop", "forkserver.stop", "master.stop"])
def test_one_process_is_stopped_and_goes_on(rig: FleetRig, kind: str) -> None:
    pool = rig.pool(1)
    meant = {"child.stop": pool.children(), "forkserver.stop": pool.fork_servers(), "master.stop": [pool.pid]}[kind]
    pid = pid_in(rig.strike(kind, 1, seconds=LONG))
    assert pid in meant
    stopped(pid)
    assert states(rig).count("T") == 1, "no other"
    assert rig.nemesis.due() == []
    assert processes.state(pid) == "T", "its time is not over"
    assert over(rig) == [f"pool2: {kind}: over: 1 processes go on"]
    assert processes.is_alive(pid)


def test_a_fault_of_no_length_is_over_at_the_next_look(rig: FleetRig) -> None:
    pid = pid_in(rig.strike("child.stop"))
    assert "pool1: child.stop: over: 1 processes go on" in rig.nemesis.due()
    rig.until(lambda: processes.state(pid) != "T", "it goes on")


def test_a_stopped_child_may_be_killed_meanwhile(rig: FleetRig) -> None:
    pid = pid_in(rig.strike("child.stop", seconds=0.1))
    assert processes.send(pid, signal.SIGKILL, lambda _: True)
    rig.until(lambda: rig.all_is_over(), "the fault is over")
    assert "gone" in rig.record("over")[-1]["said"]


def test_a_process_that_two_faults_hold_goes_on_after_the_second(rig: FleetRig) -> None:
    pid = pid_in(rig.strike("child.stop", seconds=0.3))
    group = rig.a_fault("group.stop", seconds=LONG)
    rig.nemesis.strike(group)
    before = len(rig.record("over"))
    rig.until(lambda: len(rig.record("over")) > before, "the first is over")
    assert "held by another fault" in rig.record("over")[-1]["said"]
    assert processes.state(pid) == "T"
    over(rig)
    assert processes.is_alive(pid)


def test_a_fork_server_is_killed_and_its_children_with_it(rig: FleetRig) -> None:
    children = rig.pool(1).children()
    killed = pid_in(rig.strike("forkserver.kill", 1))
    rig.until(lambda: not any(map(processes.is_alive, [killed, *children])), "it and its children are dead")


@pytest.mark.more
def test_a_fork_server_that_is_stopped_for_good_is_replaced_by_its_pool(rig: FleetRig) -> None:
    pid = pid_in(rig.strike("forkserver.freeze", 1))
    told = rig.until(lambda: not processes.is_alive(pid), "its pool has ended it")
    told += rig.until(lambda: rig.pool(1).is_full(2), "another is there")
    assert [said for said in told if f"the fork server {pid} that stood still was ended after" in said]
    assert rig.nemesis.stalled == []


# --- masters and pools ------------------------------------------------------------------------------------------------


def test_a_master_is_killed_and_another_started(rig: FleetRig) -> None:
    pool = rig.pool()
    tree = processes.tree_of(pool.pid)
    killed = pid_in(rig.strike("master.kill", seconds=2.0))
    assert killed == tree[0]
    rig.until(lambda: not pool.pid and not any(map(processes.is_alive, tree)), "its processes are dead")
    assert "missed: pool1 is not running" in rig.strike("child.kill")
    told = rig.until(lambda: pool.pid not in (0, killed), "another is started")
    assert "pool1 has ended as ordered, with status -9" in [*told, *(end.why for end in rig.fleet.ends)]
    assert "missed: pool1 is not up yet" in rig.strike("pool.term")


def test_all_processes_of_a_pool_are_stopped_and_go_on(rig: FleetRig) -> None:
    rig.strike("group.stop", 1, seconds=LONG)
    tree = processes.tree_of(rig.pool(1).pid)
    assert len(tree) >= 4
    stopped(*tree)
    over(rig)
    assert processes.tree_of(rig.pool(1).pid) == tree


def test_a_pool_drains_and_is_replaced(rig: FleetRig) -> None:
    pool = rig.pool(1)
    stopped = pid_in(rig.strike("pool.term", 1))
    rig.until(lambda: pool.pid not in (0, stopped), "another is started")
    assert rig.fleet.ends[-1].pid == stopped
    assert rig.fleet.ends[-1].status == 0


def test_a_pool_loads_its_app_anew(rig: FleetRig) -> None:
    pool = rig.pool()
    pid, generation, servers = pool.pid, generation_of(pool), pool.fork_servers()
    assert pid_in(rig.strike("pool.hup")) == pid
    rig.until(lambda: generation_of(pool) == generation + 1, "it has another generation")
    rig.until(lambda: not any(map(processes.is_alive, servers)), "the old fork server is gone")
    assert pool.pid == pid


def test_a_pool_that_ends_by_itself_is_told_of_and_started_again(shared: FleetRig) -> None:
    pool = shared.pool()
    pid = pool.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shared.fleet.wait_ready(0.0) and shared.fleet.unexpected, LIMIT, "somebody else sees it first")
    told = shared.until(lambda: pool.pid not in (0, pid), "another is started")
    [end] = [end for end in shared.fleet.unexpected if end.pid == pid]
    assert (end.pool, end.status) == ("pool1", -signal.SIGKILL)
    assert end.said
    assert end.said in pool.log_path.read_text()
    assert f"pool1 (pid {pid}) has ended with status -9, and nobody had told it to" in told
    assert [entry["expected"] for entry in shared.record("ended") if entry["pids"] == [pid]] == [False]
    shared.fleet.ends.remove(end)
    shared.assert_healed()  # one that is told to stop while it starts dies of the signal


# --- logs, clocks, the broker, and all at once ------------------------------------------------------------------------


def test_a_pool_works_while_nobody_reads_its_log_which_then_is_whole(rig: FleetRig) -> None:
    pool = rig.pool()
    before = len(pool.log_path.read_text().splitlines())
    rig.strike("log.block", seconds=LONG)
    assert "missed: nobody reads the log of pool1 as it is" in rig.strike("log.block", seconds=LONG)
    generation = generation_of(pool)
    rig.strike("pool.hup")
    rig.until(lambda: generation_of(pool) > generation, "it has said that the app is loaded")
    rig.wait_told_by("pool1")
    assert len(pool.log_path.read_text().splitlines()) == before
    assert "pool1: log.block: over: the log is read" in rig.nemesis.due(time.monotonic() + LONG + 1.0)
    wait_until(lambda: "app loaded" in "".join(pool.log_path.read_text().splitlines()[before:]), LIMIT, "it is written")
    assert rig.nemesis.stalled == []


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_the_clock_of_one_pool_jumps_and_comes_back(rig: FleetRig, seconds: float) -> None:
    rig.strike("clock.jump", seconds=60.0, amount=seconds)
    told = rig.wait_told_by("pool1", "pool2")
    assert ahead(told["pool1"]) == pytest.approx(seconds, abs=SKEW)
    assert ahead(told["pool2"]) == pytest.approx(0.0, abs=SKEW)
    rig.nemesis.heal(LIMIT)
    assert ahead(rig.wait_told_by("pool1")["pool1"]) == pytest.approx(0.0, abs=SKEW)


def test_jumps_may_overlap(rig: FleetRig) -> None:
    rig.strike("clock.jump", seconds=60.0, amount=100.0)
    rig.strike("clock.jump", seconds=0.01, amount=200.0)
    assert rig.clocks[0].shifted == 200.0
    rig.until(lambda: rig.clocks[0].shifted == 100.0, "the first is in force again")


def test_a_command_that_restarts_the_broker_is_run_and_its_failure_told(rig: FleetRig) -> None:
    rig.strike("broker.restart")
    told = rig.until(lambda: rig.nemesis.problems, "its end was seen")
    assert "the broker was restarted, with status 3" in told
    assert rig.nemesis.problems == ["'exit 3' has ended with status 3"]
    rig.nemesis.problems.clear()


def test_healing_in_the_midst_of_everything_lets_nothing_stand(rig: FleetRig) -> None:
    for kind in ("child.stop", "forkserver.stop", "master.stop", "group.stop"):
        rig.strike(kind, seconds=600.0)
    rig.strike("master.kill", 1, seconds=600.0)
    wait_until(lambda: "T" in states(rig), LIMIT, "something is stopped")
    rig.nemesis.heal(0)
    wait_until(lambda: "T" not in states(rig), LIMIT, "nothing is")
    rig.nemesis.heal(LIMIT)
    assert rig.pool(1).is_ready()


def test_the_record_has_a_line_for_all_that_happened(rig: FleetRig) -> None:
    begun = len(rig.record()) if (rig.directory / "record").exists() else 0
    rig.strike("child.kill", 1, pick=4)
    rig.strike("child.stop", seconds=0.1)
    rig.until(lambda: rig.all_is_over(), "all is over")
    struck, stopped, over = [entry for entry in rig.record()[begun:] if "kind" in entry]
    assert (struck["event"], struck["kind"], struck["pool"], len(struck["pids"])) == ("struck", "child.kill", 1, 1)
    assert (stopped["event"], over["event"], stopped["number"]) == ("struck", "over", over["number"])
    assert struck["at"] <= stopped["at"] < over["at"]
    assert abs(struck["wall"] - time.time()) < 60
