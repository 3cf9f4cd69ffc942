"""Handlers that leave processes and threads behind, flood, grow, and write where they should not (FAULTS 14 to 17)."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.poolrig import PoolProcess, Rig, is_alive, wait_gone
from support.waiting import wait_until


def left_pid(rig: Rig, ident: str) -> tuple[int, float]:
    """The process that the message's first delivery left, and when."""
    wait_until(lambda: rig.lines("left", ident))
    line = rig.lines("left", ident)[0]
    return int(line.tag), line.at


@pytest.mark.parametrize("then", ["", "SIGKILL"], ids=["returns", "dies"])
@pytest.mark.parametrize("how", ["child", "new session", "double fork"])
def test_a_grandchild_does_not_outlive_its_attempt(one_pool: tuple[Rig, PoolProcess], how: str, then: str) -> None:
    """FAULTS 14."""
    rig, pool = one_pool
    ident = rig.enqueue("leave_process", {"how": how, "then": then})
    wait_until(lambda: rig.ends(ident))
    ended = time.monotonic()
    pids = [int(line.tag) for line in rig.lines("left", ident)]
    assert len(pids) == (2 if then else 1)
    wait_gone(pids, 1.0)
    assert time.monotonic() - ended < 1.0
    assert not rig.is_dead(ident)
    pool.wait_ready(2)


def test_a_grandchild_does_not_outlive_a_timeout(one_pool: tuple[Rig, PoolProcess]) -> None:
    rig, _ = one_pool
    ident = rig.enqueue("hang", {"how": "hang_in_subprocess"}, timeout=0.3)
    [start] = rig.wait_started(ident)
    wait_until(lambda: rig.is_dead(ident))
    wait_gone([pid for pid, command in rig.processes().items() if command == "sleep 600"], 1.0)
    wait_gone([start.pid], 1.0)


def test_a_grandchild_does_not_outlive_its_killed_master(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    ids = [rig.enqueue("leave_process", {"how": how, "then": "SIGSTOP"}) for how in ("new session", "double fork")]
    pids = [left_pid(rig, ident)[0] for ident in ids]
    assert all(map(is_alive, pids))
    pool.stop(signal.SIGKILL)
    rig.assert_no_processes_left(1.5)


@pytest.mark.parametrize("handler", ["write_rubbish", "leave_thread"])
def test_a_worn_child_is_replaced_and_the_other_goes_on(one_pool: tuple[Rig, PoolProcess], handler: str) -> None:
    """FAULTS 15."""
    rig, pool = one_pool
    pool.wait_ready(2)
    before = set(pool.slots().values())
    ident = rig.enqueue(handler)
    wait_until(lambda: rig.ends(ident))
    rig.wait_drained()
    culprit = rig.lines(ident=ident)[0].pid
    wait_gone([culprit], 2.0)
    pool.wait_ready(2)
    assert before - {culprit} <= set(pool.slots().values())
    assert pool.is_healthy(), "and the scoreboard can be read"
    assert not rig.is_dead(ident)
    rig.account().assert_clean()


@pytest.mark.parametrize("handler", ["return_much", "print_much"])
def test_a_flood_of_output_is_bounded(rig: Rig, handler: str) -> None:
    """FAULTS 15 and 16."""
    pool = rig.start_pool().wait_ready(2)
    rig.enqueue("work")
    rig.wait_drained()
    before = pool.rss()
    ident = rig.enqueue(handler, {"mebibytes": 200})
    wait_until(lambda: rig.ends(ident), 20.0)
    rig.wait_drained()
    assert not rig.is_dead(ident)
    assert pool.rss() - before < 16 << 20, "the master's memory stays flat"
    assert len(rig.starts(ident)) <= 1
    assert pool.stop() == 0


def test_a_job_that_grows_past_the_limit_is_killed_as_a_failed_attempt(rig: Rig) -> None:
    """FAULTS 17."""
    pool = rig.start_pool("--memory-limit", "120M").wait_ready(2)
    steady = rig.enqueue("work", {"seconds": 2.5})
    ident = rig.enqueue("grow", {"mebibytes": 200})
    [start] = rig.wait_started(ident)
    wait_until(lambda: rig.is_dead(ident), 4.0)
    message = rig.inspect(ident)
    assert (message.reason, message.crashes) == ("memory-limit", 0)
    assert "its limit is 120 MiB" in (message.last_error or "")
    assert (message.died_at or 0) - start.wall < 1.0 + 0.7, "one sample, and the time to grow"
    rig.wait_drained()
    assert len(rig.starts(steady)) == len(rig.ends(steady)) == 1
    assert pool.stop() == 0


def test_memory_that_was_given_back_is_not_charged_to_the_next_job(rig: Rig) -> None:
    rig.start_pool("--memory-limit", "120M", workers=1).wait_ready(1)
    for _ in range(4):
        rig.enqueue("grow", {"mebibytes": 200, "then": 0.15})
        rig.enqueue("work", {"seconds": 0.25})
        rig.enqueue("leak", {"mebibytes": 200})
        rig.enqueue("work", {"seconds": 0.25})
    rig.wait_drained()
    assert {message.handler for message in rig.dead().values()} <= {"grow", "leak"}


def test_children_are_recycled_by_jobs(rig: Rig) -> None:
    pool = rig.start_pool("--recycle-jobs", "10", "--recycle-jitter", "0").wait_ready(2)
    rig.enqueue_many("work", [{}] * 100)
    rig.wait_drained()
    rig.account().assert_once_each()
    pids = [line.pid for line in rig.starts()]
    assert {pids.count(pid) for pid in set(pids)} <= set(range(1, 11))
    assert len(set(pids)) >= 10
    pool.wait_ready(2)
    assert pool.stop() == 0
    assert not pool.log("a child died"), "to be recycled is no death worth a warning"


def test_children_that_leak_are_recycled_by_memory(rig: Rig) -> None:
    rig.enqueue_many("leak", [{"mebibytes": 10}] * 40)
    rig.run_pool("--until-empty", "--recycle-memory", "100M", workers=1)
    assert len(rig.ends()) == 40
    assert len({line.pid for line in rig.ends()}) >= 3
    rig.account().assert_once_each()


def test_the_out_of_memory_killer_takes_children_before_the_master(one_pool: tuple[Rig, PoolProcess]) -> None:
    _, pool = one_pool
    [server] = pool.fork_servers()
    scores = [_victim_score(pid) for pid in (pool.pid, server, *pool.wait_ready(2).children())]
    assert scores[0] < scores[1] < min(scores[2:]), scores


def _victim_score(pid: int) -> int:
    with open(f"/proc/{pid}/oom_score_adj") as score:
        return int(score.read())


def test_no_child_holds_the_broker_or_its_secrets(rig: Rig) -> None:
    pool = rig.start_pool(JOBPOOL_SIGNING_KEY="do-not-tell").wait_ready(2)
    for pid in (*pool.fork_servers(), *pool.children()):
        opened = [_target(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [name for name in opened if "jobpool.db" in name]
        with open(f"/proc/{pid}/environ", "rb") as environ:
            assert b"do-not-tell" not in environ.read()
    assert pool.stop() == 0


def _target(pid: int, fd: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except FileNotFoundError:
        return ""
