"""What tests of faults do with pools again and again: start several on one queue, find who runs what, see them end."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jobpool_torture.ledger import Line
from jobpool_torture.processes import descriptors, send, state
from support.poolrig import LIMIT, PoolProcess, Rig, measured, wait_gone
from support.poolrig_brokers import Host
from support.stalls import Stalls
from support.waiting import wait_until

Figure = Callable[[str, float, str], None]
"""`figure("ready again", 0.031, "s")`: the fixture that keeps what was measured."""


def start_pools(rig: Rig, count: int, *flags: str, workers: int = 2, **options: Any) -> list[PoolProcess]:
    """So many pools on one queue, all ready. Options as `Rig.start_pool` takes them."""
    pools = [rig.start_pool(*flags, workers=workers, **options) for _ in range(count)]
    return [pool.wait_ready(workers) for pool in pools]


def start_on(hosts: Sequence[Host], rig: Rig, *flags: str, workers: int = 2, **options: Any) -> list[PoolProcess]:
    """A pool on each of these hosts, all ready."""
    pools = [rig.start_pool(*flags, workers=workers, url=host.url, **options) for host in hosts]
    return [pool.wait_ready(workers) for pool in pools]


def gated(rig: Rig, first: Path, later: Path | None = None, **options: Any) -> str:
    """A job whose first delivery ends when that file is there, and any other with the second file, or at once."""
    files = {"until": str(first), "then": str(later or "")}
    return rig.enqueue("again", {"first": 0, "later": 0, **files}, **options)


def fed(rig: Rig, until: Callable[[], Any], seconds: float, least: int) -> bool:
    """Whether it is so; meanwhile there are always so many jobs, of so many seconds each, that wait."""
    if rig.stats().waiting < least:
        rig.enqueue_many("work", [{"seconds": seconds}] * (least + 100))
    return bool(until())


def runner_of(pid: int, pools: Sequence[PoolProcess]) -> tuple[PoolProcess, list[PoolProcess]]:
    """The pool that this child belongs to, and the others."""
    [running] = [pool for pool in pools if pid in pool.children()]
    return running, [pool for pool in pools if pool is not running]


def wait_runs(rig: Rig, ident: str, count: int, limit: float) -> None:
    """Wait until a message has begun so many times."""
    wait_until(lambda: len(rig.starts(ident)) >= count, limit, f"{ident} began {count} times")


def freeze(pool: PoolProcess) -> None:
    """SIGSTOP to its master, which stands still afterwards."""
    pool.send(signal.SIGSTOP)
    wait_until(lambda: state(pool.pid) == "T", LIMIT, "it is stopped")


def under_way(rig: Rig, pool: PoolProcess) -> set[str]:
    """What it had been given, and was not answered to have settled.

    By the owner tokens of leases: beanstalkd may give a message twice under one number.
    """
    fetched = {(line.id, line.owner) for line in rig.lines("fetched") if line.pid == pool.pid}
    settled = {(line.id, line.owner) for line in rig.lines("settled") if line.pid == pool.pid}
    return {ident for ident, _ in fetched - settled}


def in_time(action: Callable[[], object], bound: float, what: str = "done") -> float:
    """Seconds that it took: fewer than the bound, and those for which the machine kept this one waiting."""
    with Stalls() as stalls:
        took = measured(action)
    assert took < bound + stalls.allowance, f"{what} after {took:.2f} s, and {stalls.seconds:.2f} s were the machine's"
    return took


def seconds_until_gone(pids: Iterable[int], bound: float) -> float:
    """How long these processes still run, within the bound as above."""
    return in_time(lambda: wait_gone(list(pids), LIMIT), bound, "dead")


THREADS = 6
"""Of a master, which may all use its database at once; each connection is kept for later."""


def opened_late(pool: PoolProcess) -> Counter[str]:
    """Descriptors that a pool may first have after a while.

    The scoreboard's are for the line `at work`, which first comes after 10 s: a fast machine sees none. On SQLite,
    threads that have met at the database have a connection each.
    """
    files = [name for name in descriptors(pool.pid) if name.endswith((".db", ".db-wal"))]
    return Counter({pool.note().board: 2, **dict.fromkeys(files, THREADS)})


def begin_peak(pool: PoolProcess) -> int:
    """From here on its peak is counted anew; bytes that its master has now."""
    Path(f"/proc/{pool.pid}/clear_refs").write_text("5")
    return pool.rss()


def peak(pool: PoolProcess) -> int:
    """Most bytes that its master has had at a time."""
    [line] = [line for line in Path(f"/proc/{pool.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def is_reloaded(pool: PoolProcess, before: list[int]) -> bool:
    """Whether it has one fork server, and those it had before are gone, and their children with them."""
    now = pool.fork_servers()
    return len(now) == 1 and now != before


def kill_fork_server(pool: PoolProcess) -> int:
    """SIGKILL to the one that it has; its pid."""
    [server] = pool.fork_servers()
    assert send(server, signal.SIGKILL, lambda pid: pid in pool.fork_servers())
    return server


def most_at_once(lines: Iterable[Line]) -> int:
    """The most runs at the same time, by the `start` and `end` lines among these."""
    events = sorted((line.at, line.event) for line in lines if line.event in ("start", "end"))
    return max(accumulate(1 if event == "start" else -1 for _, event in events))


def let_pass(seconds: float) -> None:
    """Let time pass, where time is what the test is about."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 1.0)


def stop_all(rig: Rig, pools: Sequence[PoolProcess]) -> None:
    """Each pool ends with status 0, and nothing of any is left."""
    for pool in pools:
        pool.send(signal.SIGTERM)
    assert [pool.wait() for pool in pools] == [0] * len(pools)
    rig.assert_no_processes_left()


def assert_unharmed(rig: Rig) -> None:
    """Every job has run once, and no crash was charged to any: no lease had to run out."""
    account = rig.account()
    account.assert_once_each()
    assert set(account.crashes.values()) == {0}


def end_unharmed(rig: Rig, pools: Sequence[PoolProcess], limit: float = LIMIT) -> None:
    """Let the pools do the rest and stop: every job has run once, without a crash."""
    rig.wait_drained(limit)
    stop_all(rig, pools)
    assert_unharmed(rig)
