"""Reloads, with good code and with broken code, beside a pool that is not reloaded (row 22)."""

from __future__ import annotations

import signal
import time

import pytest
from support.changing_app import BROKEN, an_app, version_seen
from support.faultmoves import Figure, end_unharmed, gated, is_reloaded, stop_all
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child, wait_gone
from support.waiting import wait_until

from jobpool_torture.processes import is_alive


def runs(rig: Rig, version: str, times: int = 6) -> bool:
    """Whether that many jobs in a row run this version; the other pool's says "other"."""
    return {version_seen(rig) for _ in range(times)} <= {version, "other"}


def start(rig: Rig, *flags: str, workers: int = 2) -> tuple[PoolProcess, PoolProcess]:
    """The pool that is reloaded, and the other, which takes part in its queue."""
    pool = rig.start_pool(*flags, workers=workers, app=an_app(rig, "old"))
    other = rig.start_pool(*flags, workers=1, app=an_app(rig, "other", name="other_app"))
    return pool.wait_ready(workers), other.wait_ready(1)


def reload_as(rig: Rig, pool: PoolProcess, version: str) -> None:
    an_app(rig, version)
    pool.send(signal.SIGHUP)


@pytest.mark.row(22)
def test_hup_brings_new_code_but_no_broken_code_and_disturbs_no_running_job(rig: Rig, figure: Figure) -> None:
    end = rig.directory / "end"
    running = gated(rig, end)
    pool = rig.start_pool(workers=3, app=an_app(rig, "old")).wait_ready(3)
    [runner] = [line.pid for line in rig.wait_started(running)]
    other = rig.start_pool(workers=1, app=an_app(rig, "other", name="other_app")).wait_ready(1)
    before, undisturbed = set(pool.children()), other.children()
    (rig.directory / "the_app.py").write_text(BROKEN)
    pool.send(signal.SIGHUP)
    wait_until(lambda: pool.log("the app does not load; what runs goes on"))
    assert runs(rig, "old")
    assert set(pool.children()) == before
    wait_until(pool.is_healthy)
    assert kill_child(pool, (before - {runner}).pop()), "and the old fork server still fills places"
    pool.wait_ready(3)
    assert runs(rig, "old")
    wait_until(lambda: len(pool.fork_servers()) == 1)

    rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    asked = time.monotonic()
    reload_as(rig, pool, "new")
    wait_until(lambda: version_seen(rig) == "new", LIMIT)
    figure("new code runs", time.monotonic() - asked, "s")
    wait_until(lambda: runs(rig, "new"), LIMIT)
    assert is_alive(runner)
    end.touch()
    rig.wait_drained()
    assert len(rig.starts(running)) == len(rig.ends(running)) == 1
    rig.account().assert_clean()
    wait_gone([runner], LIMIT)
    wait_until(lambda: len(pool.fork_servers()) == 1, LIMIT, "the old fork server has gone with its last child")
    pool.wait_ready(3)
    assert other.children() == undisturbed
    stop_all(rig, [pool, other])


@pytest.mark.more
@pytest.mark.row(22)
def test_many_hups_under_load(rig: Rig) -> None:
    pool, other = start(rig, "--max-crashes", "0")
    rig.enqueue_many("work", [{"seconds": 0.005}] * 500)
    for number in range(6):
        done = len(rig.ends())
        reload_as(rig, pool, f"v{number}")
        wait_until(lambda d=done: len(rig.ends()) > d + 20 or rig.stats().pending == 0)  # type: ignore[misc]
    rig.wait_drained()
    wait_until(lambda: version_seen(rig) == "v5", LIMIT, "the last version runs")
    wait_until(lambda: len(pool.fork_servers()) == 1, LIMIT, "one fork server is left")
    pool.wait_ready(2)
    end_unharmed(rig, [pool, other])
    assert not pool.log("a child died")


@pytest.mark.more
@pytest.mark.row(22)
def test_reloads_in_a_stream_of_quick_jobs_with_longer_ones_among_them_come_to_their_end(rig: Rig) -> None:
    """The longer ones have frames behind them that are taken back, in the very turn that tells their child to leave."""
    pool, other = start(rig, "--max-crashes", "0", workers=4)
    mixed = [{"seconds": 0.12 if number % 10 == 0 else 0.0} for number in range(400)]
    for _ in range(5):
        before = pool.fork_servers()
        pool.send(signal.SIGHUP)
        wait_until(lambda b=before: fed_mixed(rig, mixed) and is_reloaded(pool, b), LIMIT, "reloaded")  # type: ignore[misc]
    end_unharmed(rig, [pool, other])
    assert not pool.log("a child died")
    assert not pool.log("a child that was told to leave has not left; it is killed")


def fed_mixed(rig: Rig, jobs: list[dict[str, float]]) -> bool:
    if rig.stats().waiting < len(jobs):
        rig.enqueue_many("work", jobs)
    return True
