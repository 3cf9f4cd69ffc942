"""Children that die: by signals from outside and from inside, in every way a process can end without an answer."""

from __future__ import annotations

import os
import random
import re
import signal
import time

import pytest
from support.poolrig import PoolProcess, Rig, kill_child, wait_gone
from support.waiting import wait_until

from jobpool.death import Death

NO_LIMIT = ("--max-crashes", "0")
KILLS = 120


@pytest.mark.brokers
def test_children_killed_at_random_moments(rig: Rig) -> None:
    """FAULTS 2. The sleeps are short, so that kills meet every phase: idle, frame received, running, answering."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pool = rig.start_pool(*NO_LIMIT, workers=3).wait_ready(3)
    ids = rig.enqueue_many("work", [{"seconds": rng.choice((0, 0, 0.005, 0.02))} for _ in range(1500)])
    kills = 0
    give_up = time.monotonic() + 30
    while kills < KILLS and time.monotonic() < give_up:
        time.sleep(rng.uniform(0, 0.03))
        if children := pool.children():
            kills += kill_child(pool, rng.choice(children))
        if rig.stats().waiting < 300:
            ids += rig.enqueue_many("work", [{"seconds": 0.005}] * 500)
    assert kills == KILLS
    rig.wait_drained(60)
    account = rig.account()
    account.assert_clean()
    assert not account.overlaps
    assert sum(account.crashes.values()) <= kills
    assert not rig.dead(), "no limit, no dead letter"
    assert {line.attempt for line in rig.starts()} == {1}, "a crash is no failed attempt"
    pool.wait_ready(3)
    assert pool.stop() == 0
    rig.assert_no_processes_left()


def test_each_kill_of_a_running_attempt_is_charged_once_and_disturbs_nobody(rig: Rig) -> None:
    pool = rig.start_pool(*NO_LIMIT, workers=3).wait_ready(3)
    steady = rig.enqueue("work", {"seconds": 4.0, "tag": "steady"})
    rig.wait_started(steady)
    for _ in range(8):
        victim = rig.enqueue("die", {"how": "SIGSTOP"})
        [start] = rig.wait_started(victim)
        assert kill_child(pool, start.pid)
        wait_until(lambda ident=victim: rig.ends(ident), 2.0, "it ran again")  # type: ignore[misc]
        assert [line.crashes for line in rig.starts(victim)] == [0, 1]
        second = rig.starts(victim)[1]
        assert second.attempt == 1
        assert second.at - start.at < 1.0
    rig.wait_drained()
    assert len(rig.starts(steady)) == 1
    account = rig.account()
    account.assert_once_each()
    assert pool.stop() == 0


def test_a_killed_child_has_a_successor_within_a_second(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    for _ in range(5):
        before = pool.slots()
        slot, pid = random.choice(list(before.items()))
        killed = time.monotonic()
        assert kill_child(pool, pid)
        wait_until(lambda b=before: len(pool.slots()) == 2 and pool.slots() != b, 2.0, "a successor")  # type: ignore[misc]
        pool.wait_ready(2)
        assert time.monotonic() - killed < 1.0
        assert {s: p for s, p in pool.slots().items() if s != slot} == {s: p for s, p in before.items() if s != slot}
    assert pool.stop() == 0


def test_poison_ends_at_the_crash_limit_and_harms_no_other_job(rig: Rig) -> None:
    """FAULTS 3."""
    rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    poison = rig.enqueue("die", {"how": "SIGSEGV", "times": 99})
    rig.enqueue_many("work", [{"seconds": 0.005}] * 100)
    pool = rig.run_pool("--until-empty", "--fail-on-dead", "--max-crashes", "3", workers=3)
    assert pool.wait() == 1
    assert len(rig.starts(poison)) == 4, "max_crashes + 1"
    assert len(rig.ends()) == 200
    account = rig.account()
    account.assert_once_each()
    message = rig.inspect(poison)
    assert message.reason == "crash-limit"
    assert message.attempts == 0
    assert message.crashes == 4
    death = Death.from_text(message.cause or "")
    assert (death.how, death.sent_by) == ("killed by SIGSEGV", "itself")
    assert re.search(r'File ".*apps_pool\.py", line \d+ in die', death.stack), death.stack


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
    ],
)
def test_no_way_of_dying_is_a_success(one_pool: tuple[Rig, PoolProcess], how: str, cause: str) -> None:
    """FAULTS 13: the first delivery is a crash, the second is told so and succeeds."""
    rig, pool = one_pool
    ident = rig.enqueue("die", {"how": how})
    wait_until(lambda: rig.ends(ident), 5.0, "it ran again")
    assert [(line.fence, line.attempt, line.crashes) for line in rig.starts(ident)] == [(1, 1, 0), (2, 1, 1)]
    wait_until(lambda: any(cause in said for said in pool.last_deaths()), 2.0, f"{cause} on the scoreboard")


def test_sys_exit_is_a_failed_attempt(one_pool: tuple[Rig, PoolProcess]) -> None:
    rig, _ = one_pool
    ident = rig.enqueue("leave_by_sys_exit")
    wait_until(lambda: rig.is_dead(ident), 5.0)
    message = rig.inspect(ident)
    assert (message.reason, message.crashes) == ("failed", 0)
    assert "SystemExit: 0" in (message.last_error or "")


def test_a_fork_whose_two_sides_return_is_one_attempt(one_pool: tuple[Rig, PoolProcess]) -> None:
    rig, _ = one_pool
    ident = rig.enqueue("come_back_twice")
    rig.wait_started(ident)
    rig.wait_drained()
    assert len(rig.starts(ident)) == 1
    pids = {line.pid for line in rig.ends(ident)}
    assert rig.starts(ident)[0].pid in pids
    wait_gone(pids - set(one_pool[1].children()), 1.0)


def test_a_fork_server_that_is_killed_is_replaced_and_nothing_is_lost(rig: Rig) -> None:
    """FAULTS 19."""
    pool = rig.start_pool(*NO_LIMIT).wait_ready(2)
    rig.enqueue_many("work", [{"seconds": 0.01}] * 300)
    for _ in range(3):
        wait_until(lambda: pool.ready() == 2 and len(pool.fork_servers()) == 1)
        [server] = pool.fork_servers()
        old = pool.children()
        done = len(rig.ends())
        wait_until(lambda d=done: len(rig.ends()) > d + 5)  # type: ignore[misc]
        os.kill(server, signal.SIGKILL)
        wait_gone([server, *old], 1.0)
        wait_until(lambda o=server: pool.fork_servers() not in ([], [o]), 3.0, "another fork server")  # type: ignore[misc]
    rig.wait_drained()
    rig.account().assert_clean()
    assert not rig.dead()
    assert pool.stop() == 0
    rig.assert_no_processes_left()
