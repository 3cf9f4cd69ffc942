"""The fork server is killed, and forks are refused: places fill again, and nothing is lost (row 19)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import ordinary_user
from support.faultmoves import Figure, fed, kill_fork_server, seconds_until_gone, start_pools, stop_all, under_way
from support.poolrig import LIMIT, Rig, kill_child
from support.waiting import wait_until


@pytest.mark.row(19)
@pytest.mark.on("sqlite", "redis")
def test_a_fork_server_that_is_killed_is_replaced_and_nothing_is_lost(rig: Rig, figure: Figure) -> None:
    pools = start_pools(rig, 2, "--max-crashes", "0")
    for harmed in pools:
        rig.enqueue_many("work", [{"seconds": 0.02}] * 150)
        done = len(rig.ends())
        wait_until(lambda d=done: len(rig.ends()) > d + 10)  # type: ignore[misc]
        [other] = [pool for pool in pools if pool is not harmed]
        undisturbed = other.children()
        doomed = harmed.children()
        wait_until(lambda h=harmed: fed(rig, lambda: under_way(rig, h), 0.02, 50), what="it has work")  # type: ignore[misc]
        killed = time.monotonic()
        server = kill_fork_server(harmed)
        figure("its children dead", seconds_until_gone([server, *doomed], 1.0), "s")
        wait_until(lambda h=harmed, s=server: h.fork_servers() not in ([], [s]), LIMIT, "another")  # type: ignore[misc]
        harmed.wait_ready(2)
        figure("children ready again", time.monotonic() - killed, "s")
        assert other.children() == undisturbed
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert sum(account.crashes.values()) >= 1, "children died while they ran a job"
    assert {line.attempt for line in rig.starts()} == {1}, "a crash is no failed attempt"
    assert not rig.dead()
    stop_all(rig, pools)


# --- forks that are refused -------------------------------------------------------------------------------------------


USER = 1_000_000 + os.getpid()
"""Whom no process of the machine belongs to, so that the count is the pool's alone."""

MOST = 60
"""Processes and threads that the user may have: more than a pool of two takes."""

CROWD = f"""
import os, signal, sys
for _ in range({MOST}):
    os.fork() or signal.pause()
print(flush=True)
signal.pause()
"""


def as_user(most: int) -> tuple[str, ...]:
    return sys.executable, ordinary_user.__file__, str(USER), str(most)


@contextmanager
def no_forks() -> Iterator[None]:
    """The user has as many other processes as it may have: the kernel refuses the pool any more (EAGAIN)."""
    words = [*as_user(10 * MOST), sys.executable, "-c", CROWD]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"\n"
            yield
        finally:
            os.killpg(crowd.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def bound_applies() -> None:
    """Skips where a user's processes cannot be bounded here."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a pool as a user that has no other processes")
    words = [*as_user(0), sys.executable, "-c", "import os; os.fork() or os._exit(0)"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    if "BlockingIOError" not in said:
        pytest.skip(f"RLIMIT_NPROC bounds no user's processes here: {said.strip()[-200:]}")


@pytest.mark.row(19)
@pytest.mark.usefixtures("bound_applies")
def test_forks_that_the_kernel_refuses_leave_the_pool_alive_and_its_places_come_back(rig: Rig, figure: Figure) -> None:
    harmed = rig.start_pool("--max-crashes", "0", through=as_user(MOST))
    [other] = start_pools(rig, 1)
    harmed.wait_ready(2)
    with no_forks():
        for pid in harmed.children():
            assert kill_child(harmed, pid)
        wait_until(lambda: len(harmed.log("no child could be forked")) >= 2)
        errors = {entry["error"] for entry in harmed.log("no child could be forked")}
        assert all("Resource temporarily unavailable" in error for error in errors), errors
        refused = time.monotonic()
        ids = rig.enqueue_many("work", [{"seconds": 0.01}] * 60)
        rig.wait_drained()
        assert {line.pool for ident in ids for line in rig.lines("fetched", ident)} == {other.name}
        wait_until(lambda: harmed.header().boot_failures >= 4)
        assert not harmed.is_healthy()
        assert "Resource temporarily unavailable" in harmed.header().problem
        tries = len(harmed.log("no child could be forked"))
        assert tries <= 20, f"it backs off: {tries} tries in {time.monotonic() - refused:.1f} s"
    allowed = time.monotonic()
    harmed.wait_ready(2)
    figure("places filled after forks are allowed", time.monotonic() - allowed, "s")
    assert harmed.is_healthy()
    rig.enqueue_many("work", [{"seconds": 0.05}] * 40)
    rig.wait_drained()
    rig.account().assert_clean()
    assert {line.pool for line in rig.lines("fetched")} == {harmed.name, other.name}, "it takes part again"
    stop_all(rig, [harmed, other])
