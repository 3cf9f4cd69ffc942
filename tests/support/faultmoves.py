"""What tests of faults do with pools again and again: start several on one queue, find who runs what, see them end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from support.poolrig import PoolProcess, Rig
from support.waiting import wait_until

Figure = Callable[[str, float, str], None]
"""`figure("ready again", 0.031, "s")`: the fixture that keeps what was measured."""


def start_pools(rig: Rig, count: int, *flags: str, workers: int = 2, **options: str) -> list[PoolProcess]:
    """So many pools on one queue, all ready. Options as `Rig.start_pool` takes them."""
    pools = [rig.start_pool(*flags, workers=workers, **options) for _ in range(count)]
    return [pool.wait_ready(workers) for pool in pools]


def runner_of(pid: int, pools: Sequence[PoolProcess]) -> tuple[PoolProcess, list[PoolProcess]]:
    """The pool that this child belongs to, and the others."""
    [running] = [pool for pool in pools if pid in pool.children()]
    return running, [pool for pool in pools if pool is not running]


def wait_runs(rig: Rig, ident: str, count: int, limit: float) -> None:
    """Wait until a message has begun so many times."""
    wait_until(lambda: len(rig.starts(ident)) >= count, limit, f"{ident} began {count} times")


def let_pass(seconds: float) -> None:
    """Let time pass, where time is what the test is about."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 1.0)


def stop_all(rig: Rig, pools: Sequence[PoolProcess]) -> None:
    """Each pool ends with status 0, and nothing of any is left."""
    for pool in pools:
        pool.send(15)
    assert [pool.wait() for pool in pools] == [0] * len(pools)
    rig.assert_no_processes_left()
