"""Handlers that end their process, in every way, and that leave processes behind, on two pools with one queue."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from support.faultmoves import Figure, runner_of, seconds_until_gone, start_pools, stop_all
from support.faultrig import broker_of_file, rig_of_file
from support.poolrig import LIMIT, PoolProcess, Rig, wait_gone
from support.stalls import Stalls
from support.waiting import wait_until

from jobpool.child.attempt import DOUBLE
from jobpool_torture.processes import is_alive

pytestmark = [
    pytest.mark.xdist_group("fault-ends"),  # two pools for all of them
    pytest.mark.on("sqlite", "redis"),
]

WORKERS = 2
GRACE = 0.4
AGAIN = 2.0
TIMEOUT = 1.0
"""Seconds for a job that leaves a process behind, long enough to start it on a busy machine."""

GONE = 1.0
"""Seconds from the end of an attempt within which what it left behind is dead."""


broker, rig = broker_of_file, rig_of_file


@pytest.fixture(scope="module")
def pools(rig: Rig) -> Iterator[list[PoolProcess]]:
    """Tests leave them as they find them, however badly their jobs behave."""
    flags = ("--ttl", "5", "--default-timeout", "20", "--kill-grace", str(GRACE))
    pools = start_pools(rig, 2, *flags, workers=WORKERS)
    yield pools
    rig.account().assert_apart()
    stop_all(rig, pools)


def settled(rig: Rig, ident: str) -> list[str]:
    """How each delivery was settled, when the message is acked."""

    def verbs() -> list[str]:
        return [line.verb for line in rig.lines("settled", ident)]

    wait_until(lambda: "ack" in verbs(), what="it is acked")
    return verbs()


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.row(13)
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("SIGKILL", "killed by SIGKILL"),
        ("SIGTERM", "killed by SIGTERM"),
        ("SIGBUS", "killed by SIGBUS"),
        ("SIGFPE", "killed by SIGFPE"),
        ("SIGILL", "killed by SIGILL"),
        ("SIGHUP", "killed by SIGHUP"),
        ("SIGUSR2", "killed by SIGUSR2"),
        ("abort", "killed by SIGABRT"),
        ("exit 0", "exited with status 0"),
        ("exit 3", "exited with status 3"),
        ("exec", "exited with status 0"),
        ("exec that stays", "killed by SIGKILL (the pool: broken channel)"),
        ("close all", "exited with status 70"),
        ("fork", "exited with status 0"),
    ],
)
def test_no_way_of_dying_is_a_success(rig: Rig, pools: list[PoolProcess], how: str, cause: str) -> None:
    """The first delivery is a crash, the second is told so and succeeds."""
    ident = rig.enqueue("die", {"how": how})
    wait_until(lambda: rig.ends(ident), LIMIT, "it ran again")
    assert [(line.fence, line.attempt, line.crashes) for line in rig.starts(ident)] == [(1, 1, 0), (2, 1, 1)]
    wait_until(lambda: rig.lines("reaped", ident))
    [reaped] = rig.lines("reaped", ident)  # charged once, whichever pool reaped it
    assert reaped.tag.startswith(f'{{"how":"{cause.partition(" (")[0]}')
    wait_until(lambda: any(cause in death for pool in pools for death in pool.last_deaths()), what=f"{cause} is shown")


@pytest.mark.row(13)
@pytest.mark.usefixtures("pools")
def test_what_died_runs_again_at_once(rig: Rig, figure: Figure) -> None:
    """No timer is waited for, and not the end of the lease (5 s)."""
    for how in ("exit 0", "exec", "SIGKILL", "abort") * 2:
        with Stalls() as stalls:
            ident = rig.enqueue("die", {"how": how})
            wait_until(lambda ident=ident: rig.ends(ident), LIMIT, "it ran again")  # type: ignore[misc]
        first, second = rig.starts(ident)
        figure("ran again after", second.at - first.at, "s")
        assert second.at - first.at < AGAIN + stalls.allowance


@pytest.mark.row(13)
@pytest.mark.usefixtures("pools")
def test_sys_exit_is_a_failed_attempt(rig: Rig) -> None:
    ident = rig.enqueue("leave_by_sys_exit")
    wait_until(lambda: rig.is_dead(ident), LIMIT)
    message = rig.inspect(ident)
    assert (message.reason, message.crashes) == ("failed", 0)
    assert "SystemExit: 0" in (message.last_error or "")
    assert len(rig.starts(ident)) == 1


@pytest.mark.row(13)
def test_a_fork_whose_two_sides_return_is_one_attempt(rig: Rig, pools: list[PoolProcess]) -> None:
    """The side that is not a child of the pool's returns first, and is not heard: its process ends there."""
    ident = rig.enqueue("come_back_twice")
    [start] = rig.wait_started(ident)
    assert settled(rig, ident) == ["ack"]
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1
    forked, own = rig.ends(ident)
    assert own.pid == start.pid != forked.pid
    assert own.tag == f"the fork exited with {DOUBLE}"
    assert rig.lines("asked", ident)[0].at > own.at, "the fork's end was none of the job's"
    wait_gone({forked.pid, own.pid} - {child for pool in pools for child in pool.children()}, LIMIT)


# --- processes that are left behind -----------------------------------------------------------------


def left_pids(rig: Rig, ident: str, count: int = 1) -> list[int]:
    """The processes that the message's deliveries left."""
    wait_until(lambda: len(rig.lines("left", ident)) == count)
    return [int(line.tag) for line in rig.lines("left", ident)]


def gone_after(pid: int, since: float) -> float:
    """Seconds until it was seen dead, since that time."""
    seconds_until_gone([pid], GONE)
    return max(0.0, time.monotonic() - since)


@pytest.mark.row(14)
@pytest.mark.parametrize("then", ["", "SIGKILL"], ids=["returns", "dies"])
def test_a_grandchild_does_not_outlive_its_attempt(
    rig: Rig, pools: list[PoolProcess], then: str, figure: Figure
) -> None:
    """A child, one in a new session, one that was forked twice. Of an attempt that dies, it is dead before the next."""
    for how in ("child", "new session", "double fork"):
        ident = rig.enqueue("leave_process", {"how": how, "then": then})
        *earlier, last = left_pids(rig, ident, 2 if then else 1)
        assert not any(map(is_alive, earlier))
        [end] = wait_until(lambda ident=ident: rig.ends(ident))  # type: ignore[misc]
        figure("dead after the attempt", gone_after(last, end.at), "s")
        assert settled(rig, ident) == (["forfeit", "ack"] if then else ["ack"])
    for pool in pools:
        pool.wait_ready(WORKERS)


@pytest.mark.row(14)
@pytest.mark.usefixtures("pools")
def test_a_grandchild_does_not_outlive_a_timeout(rig: Rig, figure: Figure) -> None:
    """The attempt stands still, so that it must be killed at the end of its grace.

    In whichever delivery it runs: a pool may fetch all three and give back what none of its children can take.
    """
    jobs = [{"how": how, "then": "SIGSTOP", "times": 99} for how in ("child", "new session", "double fork")]
    ids = rig.enqueue_many("leave_process", jobs, timeout=TIMEOUT)
    pids = {ident: left_pids(rig, ident)[0] for ident in ids}
    for ident, pid in pids.items():
        [line] = rig.lines("left", ident)
        seconds_until_gone([pid], TIMEOUT + GRACE + GONE)
        figure("dead after timeout + grace", time.monotonic() - line.at - TIMEOUT - GRACE, "s")
        wait_until(lambda ident=ident: rig.is_dead(ident))  # type: ignore[misc]
        assert (rig.inspect(ident).reason, rig.inspect(ident).crashes) == ("timeout", 0)
        seconds_until_gone([line.pid], GONE)


@pytest.mark.row(14)
def test_a_grandchild_does_not_outlive_its_killed_master(rig: Rig, figure: Figure) -> None:
    """On a queue of its own, with two pools of its own: the other one runs the message again."""
    pools = start_pools(rig, 2, "--ttl", "2", "--queue", "doomed", workers=WORKERS)
    ident = rig.enqueue("leave_process", {"how": "double fork", "then": "SIGSTOP"}, queue="doomed")
    [pid] = left_pids(rig, ident)
    [line] = rig.lines("left", ident)
    running, [other] = runner_of(line.pid, pools)
    assert is_alive(pid)
    killed = time.monotonic()
    running.stop(signal.SIGKILL)
    figure("dead after the master", gone_after(pid, killed), "s")
    seconds_until_gone([line.pid], GONE)
    assert settled(rig, ident) == ["ack"]
    assert other.stop() == 0
