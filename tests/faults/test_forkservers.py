"""The fork server is killed, forks are refused (row 19); it does not answer (32); jobs kill it again and again (37)."""

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
from support.apps_pool import LONG
from support.changing_app import an_app
from support.faultmoves import Figure, gated, in_time, kill_fork_server, seconds_until_gone, start_pools, stop_all
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child, wait_gone
from support.tiers import more
from support.waiting import wait_until

from jobpool.message.death import Death
from jobpool_torture.processes import send, state


@pytest.mark.row(19)
@pytest.mark.on("sqlite", "redis")
def test_a_fork_server_that_is_killed_is_replaced_and_nothing_is_lost(rig: Rig, figure: Figure) -> None:
    pools = harmed, other = start_pools(rig, 2, "--max-crashes", "0")
    gate = rig.directory / "gate"
    held = [gated(rig, gate, gate, priority=1) for _ in range(4)]  # one for each child of both
    runners = {line.id: line.pid for line in rig.wait_started(*held)}
    rig.enqueue_many("work", [{"seconds": 0.01}] * 20)
    undisturbed, doomed = other.children(), harmed.children()
    killed = time.monotonic()
    server = kill_fork_server(harmed)
    figure("its children dead", seconds_until_gone([server, *doomed], 1.0), "s")
    wait_until(lambda: harmed.fork_servers() not in ([], [server]), LIMIT, "another")
    harmed.wait_ready(2)
    figure("children ready again", time.monotonic() - killed, "s")
    assert other.children() == undisturbed
    gate.touch()
    rig.wait_drained()
    again = {ident for ident in held if len(rig.starts(ident)) == 2}
    assert again == {ident for ident, pid in runners.items() if pid in doomed}, "and nobody else's"
    assert len(again) == 2, "its children died while they ran a job"
    account = rig.account()
    account.assert_clean()
    assert set(account.crashes.values()) == {0}, "and those jobs had no part in it"
    assert {line.attempt for line in rig.starts()} == {1}, "a crash is not a failed attempt"
    assert not rig.dead()
    stop_all(rig, pools)


# --- a fork server that does not answer -------------------------------------------------------------------------------

ORDERS = """
def hook():
    if os.path.exists("hang") and os.getpid() == SERVER:
        open("hanging", "w").close()
        time.sleep(LONG)


SERVER = os.getpid()
os.register_at_fork(before=hook)


@jobpool.handler
def strike(ctx: jobpool.JobContext, number: int, once: bool = False) -> None:
    note(ctx, "start")
    if not (once and ctx.fence > 1):
        os.kill(os.getppid(), number)
        time.sleep(LONG if number == signal.SIGKILL else 0.0)
    note(ctx, "end")
"""
"""Forks hang while the file `hang` is there; and a job sends its fork server a signal, each time or only once."""


def served_by_another(pool: PoolProcess, than: int) -> bool:
    """Whether it has one fork server, and children, none of them that one or its own."""
    now = pool.fork_servers()
    return len(now) == 1 and now != [than] and pool.ready() == pool.header().workers == len(pool.children())


@pytest.mark.row(32)
def test_a_fork_server_that_a_job_has_stopped_is_replaced_and_attempts_are_judged_as_what_they_were(
    rig: Rig, figure: Figure
) -> None:
    pool = rig.start_pool("--max-crashes", "0", workers=3, app=an_app(rig, extra=ORDERS)).wait_ready(3)
    [server] = pool.fork_servers()
    end = rig.directory / "end"
    innocent = gated(rig, end, end)
    rig.wait_started(innocent)
    striker = rig.enqueue("strike", {"number": int(signal.SIGSTOP)})
    wait_until(lambda: rig.ends(striker), LIMIT)
    stopped = time.monotonic()
    late = rig.enqueue("hang", {"how": "swallow_everything"}, timeout=0.5)
    wait_until(lambda: served_by_another(pool, server), LIMIT, "it is replaced")
    figure("replaced after it was stopped", time.monotonic() - stopped, "s")
    assert pool.log("a fork server is killed")
    wait_gone([server], LIMIT)
    wait_until(lambda: rig.is_dead(late), LIMIT)
    assert (rig.inspect(late).reason, rig.inspect(late).crashes) == ("timeout", 0)
    rig.wait_started(innocent)
    end.touch()
    rig.wait_drained()
    assert len(rig.starts(innocent)) == 2, "its child died with the fork server"
    rig.account().assert_clean()
    assert set(rig.account().crashes.values()) == {0}
    stop_all(rig, [pool])


@pytest.mark.row(32)
@pytest.mark.parametrize("how", ["stopped", *more(("hangs",))])
def test_a_pool_whose_fork_server_does_not_answer_stops_within_its_grace(rig: Rig, how: str) -> None:
    pool = rig.start_pool("--stop-grace", "1", app=an_app(rig, extra=ORDERS)).wait_ready(2)
    long = rig.enqueue("work", {"seconds": LONG})
    [line] = rig.wait_started(long)
    silence(rig, pool, how, spare=line.pid)
    in_time(pool.stop, 1.0 + 2.0)
    assert pool.wait() == 0
    rig.assert_no_processes_left()
    message = rig.inspect(long)
    assert (message.state.value, message.attempts, message.crashes) == ("waiting", 0, 0)


@pytest.mark.row(32)
@pytest.mark.parametrize("how", ["hangs", *more(("stopped",))])
def test_nothing_outlives_a_killed_master_whose_fork_server_does_not_answer(rig: Rig, how: str) -> None:
    pool = rig.start_pool(app=an_app(rig, extra=ORDERS)).wait_ready(2)
    [line] = rig.wait_started(rig.enqueue("work", {"seconds": LONG}))
    silence(rig, pool, how, spare=line.pid)
    pool.send(signal.SIGKILL)
    pool.wait()
    rig.assert_no_processes_left(LIMIT)


@pytest.mark.row(32)
def test_forks_that_hang_in_a_hook_do_not_last_and_health_says_that_no_child_comes_up(rig: Rig) -> None:
    pool = rig.start_pool(app=an_app(rig, extra=ORDERS)).wait_ready(2)
    [server] = pool.fork_servers()
    silence(rig, pool, "hangs")
    for pid in pool.slots().values():
        kill_child(pool, pid)
    wait_until(lambda: not pool.is_healthy(), LIMIT)
    wait_until(lambda: pool.log("a fork server is killed"), LIMIT)
    (rig.directory / "hang").unlink()
    wait_until(lambda: served_by_another(pool, server), LIMIT)
    wait_until(pool.is_healthy, LIMIT)
    stop_all(rig, [pool])


def silence(rig: Rig, pool: PoolProcess, how: str, spare: int = 0) -> None:
    """Its fork server answers no more: it is stopped, or it hangs in the hook of a fork that is due."""
    [server] = pool.fork_servers()
    doomed = next(pid for pid in pool.children() if pid != spare)
    if how == "stopped":
        assert send(server, signal.SIGSTOP, lambda pid: pid in pool.fork_servers())
        wait_until(lambda: state(server) == "T")
        assert kill_child(pool, doomed)
        return
    (rig.directory / "hang").touch()
    assert kill_child(pool, doomed)
    wait_until((rig.directory / "hanging").exists, LIMIT)


# --- jobs that kill it ------------------------------------------------------------------------------------------------


@pytest.mark.row(37)
@pytest.mark.on("sqlite", "redis")
def test_jobs_that_kill_their_fork_server_again_and_again_are_dead_and_innocents_are_charged_nothing(rig: Rig) -> None:
    pool = rig.start_pool("--max-crashes", "1", workers=3, app=an_app(rig, extra=ORDERS)).wait_ready(3)
    innocents = rig.enqueue_many("work", [{"seconds": 1.0}])
    rig.wait_started(*innocents)
    killers = rig.enqueue_many("strike", [{"number": int(signal.SIGKILL)}] * 2)
    wait_until(lambda: all(map(rig.is_dead, killers)), 2 * LIMIT, "they are dead letters")
    rig.wait_drained()
    assert all(rig.ends(ident) for ident in innocents)
    letters = [rig.inspect(ident) for ident in killers]
    assert {letter.reason for letter in letters} == {"crash-limit"}
    causes = {Death.from_text(letter.cause or "").sent_by for letter in letters}
    assert causes == {"the pool: its fork server has died"}
    account = rig.account()
    account.assert_clean()
    assert {account.crashes[ident] for ident in innocents} == {0}
    assert {line.attempt for line in rig.starts()} == {1}
    stop_all(rig, [pool])


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
    wait_until(harmed.is_healthy)
    rig.enqueue_many("work", [{"seconds": 0.05}] * 40)
    rig.wait_drained()
    rig.account().assert_clean()
    assert {line.pool for line in rig.lines("fetched")} == {harmed.name, other.name}, "it takes part again"
    stop_all(rig, [harmed, other])
