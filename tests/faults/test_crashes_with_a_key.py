"""Idempotency keys over two pools: of those that share a key one runs, whoever fails, crashes or is killed with it."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.poolrig import PoolProcess, Rig
from support.stalls import Stalls
from support.waiting import wait_until

TTL = 4.0
BOUND = TTL + 6.0
"""Seconds: the lease, the reaper's interval, and some for a busy machine."""

KEYS = [f"order {number}" for number in range(4)]


@pytest.mark.row(25)
@pytest.mark.on("postgres", "sqlite", "redis", "redis-cluster")
def test_each_key_runs_until_it_is_done_and_never_again(rig: Rig, figure: Figure) -> None:
    """Contended, failed, crashed, cut off with its pool; the duplicates of all of them are skipped after that."""
    first, second = start_pools(rig, 2, "--ttl", str(TTL))
    contended(rig)
    failed = rig.enqueue("fail", {"times": 1}, max_retries=2, idempotency_key="fails")
    crashed = rig.enqueue("die", {"how": "SIGSEGV"}, idempotency_key="crashes")
    rig.wait_drained()
    assert [line.attempt for line in rig.starts(failed)] == [1, 2]
    assert [line.crashes for line in rig.starts(crashed)] == [0, 1]
    survivor, seconds = cut_off(rig, first, second)
    figure("done elsewhere after its pool was killed", seconds, "s")
    skipped_from_now_on(rig, survivor, [*KEYS, "fails", "crashes", "cut off"])
    rig.account().assert_once_each()
    stop_all(rig, [survivor])


def contended(rig: Rig) -> None:
    """Five jobs a key, on four children of two pools at once: one of each runs."""
    for _ in range(5):
        for key in KEYS:
            rig.enqueue("work", {"seconds": 0.05, "tag": key}, idempotency_key=key)
    rig.wait_drained(limit=120.0)  # who meets a key that is held comes again after up to 30 s
    assert Counter(line.tag for line in rig.starts()) == dict.fromkeys(KEYS, 1)


def cut_off(rig: Rig, *pools: PoolProcess) -> tuple[PoolProcess, float]:
    """The pool that holds the key is killed, before its job has done anything; it runs again elsewhere.

    Which pool is left, and how many seconds it took.
    """
    held = rig.enqueue("again", {"first": 600, "later": 0.1}, idempotency_key="cut off")
    [begun] = rig.wait_started(held)
    owner, survivor = sorted(pools, key=lambda pool: begun.pid not in pool.slots().values())
    assert begun.pid in owner.slots().values()
    waiting = rig.enqueue("work", idempotency_key="cut off")
    wait_until(lambda: rig.lines("settled", waiting), what="it has met the key")
    assert {line.verb for line in rig.lines("settled", waiting)} == {"release"}
    assert rig.starts(waiting) == []
    with Stalls() as stalls:
        owner.stop(signal.SIGKILL)
        killed = time.monotonic()
        rig.wait_drained()
    done = [line for line in rig.ends() if line.id in (held, waiting)]
    assert len(done) == 1, "the one that waited, or the one that was cut off: whichever was there first"
    assert killed < done[0].at < killed + BOUND + stalls.allowance
    assert [line.crashes for line in rig.starts(held)[1:]] == [1] * (done[0].id == held)
    return survivor, done[0].at - killed


def skipped_from_now_on(rig: Rig, pool: PoolProcess, keys: list[str]) -> None:
    """What comes with a key that is done is acked, and not run."""
    late = [rig.enqueue("work", idempotency_key=key) for key in keys]
    rig.wait_drained()
    assert [line for line in rig.starts() if line.id in late] == []
    assert {(line.verb, line.answer) for ident in late for line in rig.lines("settled", ident)} == {("ack", "ok")}
    wait_until(lambda: pool.header().skipped >= len(late), what="all of them are counted")
