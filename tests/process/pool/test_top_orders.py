"""Real pools, and what a person orders of one child in `top`: its stack, the end of its job, another child."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from support.poolrig import PoolProcess, Rig
from support.poolrig_brokers import BROKERS
from support.waiting import wait_until

from jobpool.broker.values import State
from jobpool.ops.runtime_dir import discover
from jobpool.ops.top import SlotRow, Watcher, order

UNLIMITED = ("--default-timeout", "600")


def rows(rig: Rig, pool: PoolProcess) -> tuple[SlotRow, ...]:
    with Watcher(partial(discover, rig.runtime)) as watcher:
        return next(sample.rows for sample in watcher.sample() if sample.pool.pid == pool.pid)


def running(rig: Rig, pool: PoolProcess, ident: str) -> SlotRow:
    """The slot that runs this job."""
    found: list[SlotRow] = wait_until(lambda: [row for row in rows(rig, pool) if row.job == ident])
    return found[0]


def idle_row(rig: Rig, pool: PoolProcess, but: int = 0) -> SlotRow:
    """A slot that is idle, once its page says so; not with the child `but`."""
    found: list[SlotRow] = wait_until(
        lambda: [row for row in rows(rig, pool) if row.state == "idle" and row.pid not in (0, but)]
    )
    return found[0]


def test_the_stack_of_a_child_shows_where_its_handler_is_and_hurts_nothing(rig: Rig) -> None:
    pool = rig.start_pool(*UNLIMITED, workers=3).wait_ready(3)
    hangs = {how: rig.enqueue("hang", {"how": how}) for how in ("hang_in_sum", "hang_in_lock")}
    rig.wait_started(*hangs.values())
    for how, ident in hangs.items():
        row = running(rig, pool, ident)
        for _ in range(2):
            stack = order(pool.note(), "stack", row)
            assert f"in {how}" in stack, stack
            assert "fork_server" not in stack
        assert running(rig, pool, ident).pid == row.pid
    idle = idle_row(rig, pool)
    assert "jobpool/child/main.py" in order(pool.note(), "stack", idle)
    os.kill(idle.pid, signal.SIGSTOP)
    assert "the child is stopped, or the kernel holds it" in order(pool.note(), "stack", idle)
    os.kill(idle.pid, signal.SIGCONT)
    assert pool.log("stack of a child") == []


def test_two_people_who_ask_at_once_both_see_the_stack(rig: Rig) -> None:
    pool = rig.start_pool(*UNLIMITED, workers=1).wait_ready(1)
    ident = rig.enqueue("hang", {"how": "hang_in_sum"})
    rig.wait_started(ident)
    row = running(rig, pool, ident)
    with ThreadPoolExecutor(2) as people:
        stacks = list(people.map(lambda _: order(pool.note(), "stack", row), range(2)))
    assert ["in hang_in_sum" in stack for stack in stacks] == [True, True], stacks


def test_the_job_of_a_child_is_cancelled(rig: Rig) -> None:
    pool = rig.start_pool(*UNLIMITED, "--kill-grace", "0.5", workers=1).wait_ready(1)
    for how in ("hang_in_sleep", "hang_in_sum"):
        ident = rig.enqueue("hang", {"how": how}, max_retries=5)
        rig.wait_started(ident)
        said = order(pool.note(), "cancel", running(rig, pool, ident))
        assert said == f"job {ident} is told to end; after 0.5s it is killed"
        wait_until(lambda ident=ident: rig.is_dead(ident))  # type: ignore[misc]
        message = rig.inspect(ident)
        assert (message.reason, message.attempts, message.crashes) == ("cancelled", 0, 0)
    after = rig.enqueue("work")
    rig.wait_drained()
    assert len(rig.ends(after)) == 1
    assert pool.stop() == 0


def test_a_child_is_replaced_once_its_job_has_ended(rig: Rig) -> None:
    rig.witness = True
    pool = rig.start_pool(*UNLIMITED, workers=1).wait_ready(1)
    idle = idle_row(rig, pool)
    assert order(pool.note(), "restart", idle) == f"child {idle.pid} is replaced"
    idle_row(rig, pool, but=idle.pid)
    ident = rig.enqueue("work", {"seconds": 6.0})
    behind = rig.enqueue("work")
    rig.wait_started(ident)
    busy = running(rig, pool, ident)
    assert order(pool.note(), "restart", busy) == f"child {busy.pid} is replaced after job {ident}"
    assert order(pool.note(), "restart", busy) == "refused: the child leaves already"
    rig.wait_drained()
    [line], [other] = rig.ends(ident), rig.ends(behind)
    assert line.pid == busy.pid != other.pid
    wait_until(lambda: pool.header().succeeded == 2)
    assert pool.header().crashed == 0
    assert pool.stop() == 0
    assert list(rig.runtime.iterdir()) == []
    rig.account().assert_once_each()


def test_an_order_about_what_has_gone_is_refused(rig: Rig) -> None:
    pool = rig.start_pool(*UNLIMITED, workers=1).wait_ready(1)
    ident = rig.enqueue("hang", {"how": "hang_in_sleep"})
    rig.wait_started(ident)
    row, note = running(rig, pool, ident), pool.note()
    gone = "is not in slot"
    for other in (replace(row, pid=row.pid + 1), replace(row, slot=10**6), replace(row, slot=-1), replace(row, slot=1)):
        assert all(gone in order(note, verb, other) for verb in ("stack", "cancel", "restart"))
    assert order(note, "cancel", replace(row, job="another")) == "too late: job another does not run there any more"
    assert order(note, "dance", row) == "refused: this jobpool does not know 'dance'"
    assert rig.inspect(ident).state is State.LEASED
    pool.send(signal.SIGSTOP)
    assert "the master has not answered for 3 s" in order(note, "restart", row)
    pool.send(signal.SIGCONT)
    pool.process.kill()
    pool.wait()
    assert "the pool cannot be asked" in order(note, "restart", row)
    assert list(discover(rig.runtime)) == []
    assert list(rig.runtime.iterdir()) == []


def test_a_stack_is_told_and_a_job_ended_while_the_broker_is_silent(tmp_path: Path) -> None:
    with BROKERS["redis"].on_shared_server() as broker, Rig(tmp_path, broker.url) as rig:
        host = broker.host()
        pool = rig.start_pool(*UNLIMITED, workers=1, url=host.url).wait_ready(1)
        ident = rig.enqueue("hang", {"how": "hang_in_sleep"})
        rig.wait_started(ident)
        row = running(rig, pool, ident)
        host.proxy.black_hole()
        assert "in hang_in_sleep" in order(pool.note(), "stack", row)
        assert "is told to end" in order(pool.note(), "cancel", row)
        wait_until(lambda: [each.job for each in rows(rig, pool)] == [""])
        host.proxy.restore()
        wait_until(lambda: rig.is_dead(ident))
