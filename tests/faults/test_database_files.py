"""What can happen to an SQLite file: another program locks it, its disk is full, a writer dies in a commit (row 27)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.faultmoves import Figure, end_unharmed, gated, let_pass, start_pools, stop_all, under_way
from support.outages import NO_ANSWER, REFUSES_WRITES, costing, wait_back, wait_begun_after
from support.poolrig import PoolProcess, Rig
from support.small_disk import SmallDisk, small_disk
from support.waiting import wait_until

LOCKED = 2.5
"""Seconds."""

TOLD = 5.0
"""Seconds after which a pool has said at the latest that the broker does not answer."""

SIZE = 64
"""MiB of a disk that is to be full: room for the journal, which grows to 16 MiB before it is begun anew."""

WRITERS = 60
WRITERS_PROGRAM = Path(__file__).parents[1] / "support" / "dying_writers.py"


@pytest.mark.row(27)
@pytest.mark.on("sqlite")
def test_a_file_that_another_program_locks_is_waited_for(rig: Rig, figure: Figure) -> None:
    """For longer than a call waits; what ends meanwhile is settled under its old lease."""
    pools = start_pools(rig, 2, timeout=0.5)
    locked = rig.directory / "locked"
    held = hold_all(rig, locked)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 200)
    with closing(sqlite3.connect(rig.directory / "jobpool.db", isolation_level=None, timeout=30.0)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        locked.touch()
        with costing(pools) as cost:
            let_pass(LOCKED)
        _wait_told(pools, NO_ANSWER, "locked by another process")
        wait_until(lambda: all(rig.ends(ident) for ident in held), what="they have ended")
        holder.execute("ROLLBACK")
    figure("work goes on after", wait_begun_after(rig, time.monotonic()), "s")
    figure("CPU of a master a second of lock", cost.cpu / cost.seconds * 1000, "ms")
    assert cost.cpu < 0.25 * cost.seconds, "no busy loop"
    end_unharmed(rig, pools)


def hold_all(rig: Rig, gate: Path) -> list[str]:
    """A job for each child of both pools: when the gate is there, either has something to settle, and others wait."""
    held = [gated(rig, gate) for _ in range(4)]
    rig.wait_started(*held)
    return held


def _wait_told(pools: Sequence[PoolProcess], event: str, why: str) -> None:
    """Each has said so within `TOLD`, and one of them why."""
    wait_back(lambda: all(pool.log(event) for pool in pools), "it is told", TOLD)
    entries = [entry for pool in pools for entry in pool.log(event)]
    assert any(why in entry["error"] for entry in entries), entries


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    with ExitStack() as mounted:
        try:
            disk = mounted.enter_context(small_disk(tmp_path / "disk", SIZE))
        except OSError as error:
            pytest.skip(f"no small disk can be mounted here: {error}")
        yield disk


@pytest.mark.row(27)
@pytest.mark.on("sqlite")
def test_a_disk_that_is_full_is_waited_for(disk: SmallDisk, tmp_path: Path, figure: Figure) -> None:
    """Nothing is lost but time: what has ended is settled when there is room again."""
    with Rig(tmp_path, f"sqlite:///{disk.path}/jobpool.db", witness=True) as rig:
        pools = start_pools(rig, 2, timeout=1)
        full = rig.directory / "full"
        hold_all(rig, full)
        rig.enqueue_many("work", [{"seconds": 0.01, "tag": "x" * 500}] * 300)
        disk.fill()
        full.touch()
        _wait_told(pools, REFUSES_WRITES, "free some space")
        leased, begun = rig.stats().leased, len(rig.starts())
        with costing(pools) as cost:
            let_pass(1.0)
        assert cost.cpu < 0.25 * cost.seconds, "no busy loop"
        assert len(rig.starts()) <= begun + leased, "no more than what had been leased"
        disk.free()
        figure("work goes on after", wait_begun_after(rig, time.monotonic()), "s")
        end_unharmed(rig, pools)


@pytest.mark.more
@pytest.mark.row(27)
@pytest.mark.on("sqlite")
def test_writers_killed_in_mid_commit_lose_nothing_that_was_answered(rig: Rig, figure: Figure) -> None:
    """Two pools commit to the same file all the while, and are killed once too."""
    flags = ("--max-crashes", "0")
    first, second = start_pools(rig, 2, "--ttl", "3", *flags)
    notes = rig.directory / "notes"
    words = [sys.executable, str(WRITERS_PROGRAM), str(rig.directory / "jobpool.db"), str(notes), str(WRITERS), "7"]
    with subprocess.Popen(words, cwd=rig.directory, stdout=subprocess.PIPE, text=True) as writers:
        wait_until(lambda: len(rig.ends()) > 50)
        for pool in rig.pools:
            pool.stop(signal.SIGKILL)
        start_pools(rig, 2, "--ttl", "6", *flags)  # no pause of the machine may add to what the first two held
        told, _ = writers.communicate(timeout=180)
    assert (writers.returncode, told) == (0, ""), "integrity_check after each kill"
    rig.wait_drained()
    stop_all(rig, rig.pools[2:])
    ids = defaultdict(set)
    for line in notes.read_text().splitlines():
        word, *named = line.split()
        ids[word].update(named)
    rig.enqueued |= ids["enq"]
    account = rig.account()
    assert account["GHOST"] <= ids["try"] - ids["enq"], "committed, and killed before it was noted"
    account.found["GHOST"].clear()
    account.assert_clean()
    assert account["DUP"] <= under_way(rig, first) | under_way(rig, second), "what the killed pools had under way"
    figure("kills", WRITERS + 2, "")
    figure("jobs answered", len(ids["enq"]), "")
    figure("jobs lost", len(account["LOST"]), "")
