"""Signals in great number, and all children of a pool dying at once, beside a pool that nobody touches (row 22)."""

from __future__ import annotations

import random
import signal
import time
from functools import partial

import pytest
from support.faultmoves import (
    Figure,
    end_unharmed,
    fed,
    is_reloaded,
    let_pass,
    seconds_until_gone,
    start_pools,
    stop_all,
)
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.seeds import printed_seed
from support.stalls import Stalls
from support.waiting import wait_until

MANY = 50
FIRST = MANY // 2
"""Children at the start: TTIN at most doubles them."""

STORM = 50
APART = 0.01
"""Seconds between two signals, so that most do not meet."""

AT_ONCE = 1.0
"""Seconds in which the dead are gone."""

READY_AGAIN = 10.0
"""Seconds in which all of them have successors, each 10 ms of a processor's work: 0.5 s where nothing else runs."""


def bring_to(pool: PoolProcess, number: signal.Signals, count: int) -> None:
    """Send as many as are lacking; then what is still lacking, because signals that meet are one."""
    while lacking := abs(count - pool.header().workers):
        for _ in range(lacking):
            pool.send(number)
            let_pass(APART)
        published_again(pool)


def published_again(pool: PoolProcess) -> None:
    """Wait until the scoreboard shows what was sent until now: it is written four times a second."""
    for _ in range(2):
        last = pool.header().loop_at
        wait_until(lambda seen=last: pool.header().loop_at > seen)  # type: ignore[misc]


@pytest.mark.row(22)
def test_fifty_children_by_ttin_are_killed_at_once_and_end_by_ttou(rig: Rig, figure: Figure) -> None:
    pool = rig.start_pool("--max-crashes", "0", workers=FIRST)
    other = rig.start_pool("--max-crashes", "0", workers=1)
    for one, count in ((pool, FIRST), (other, 1)):
        one.wait_ready(count)
    wait_until(lambda: fed(rig, lambda: len(rig.ends()) > 20, 0.1, 100))
    bring_to(pool, signal.SIGTTIN, MANY)
    for _ in range(FIRST):
        pool.send(signal.SIGTTIN)  # one more is too many
    wait_until(lambda: fed(rig, lambda: pool.ready() == MANY, 0.1, 100), LIMIT, f"{MANY} children")

    with Stalls() as stalls:
        doomed = pool.children()
        assert len(doomed) == MANY
        killed = time.monotonic()
        assert sum(kill_child(pool, pid) for pid in doomed) == MANY
        seconds_until_gone(doomed, AT_ONCE)
        wait_until(lambda: not set(pool.slots().values()) & set(doomed) and pool.ready() == MANY, LIMIT)
        took = time.monotonic() - killed
    figure(f"{MANY} children ready again", took, "s")
    assert took < READY_AGAIN + stalls.allowance

    bring_to(pool, signal.SIGTTOU, 1)
    pool.send(signal.SIGTTOU)  # one stays, whatever comes
    published_again(pool)
    wait_until(lambda: pool.header().workers == pool.ready() == len(pool.children()) == 1, LIMIT, "one is left")
    pool.send(signal.SIGTTIN)
    pool.wait_ready(2)
    rig.wait_drained()
    account = rig.account()
    account.assert_clean()
    assert {line.attempt for line in rig.starts()} == {1}
    assert sum(account.crashes.values()) <= MANY, "what left in good order has crashed nothing"
    assert not other.log("a child died")
    stop_all(rig, [pool, other])


@pytest.mark.row(22)
def test_a_storm_of_signals(rig: Rig) -> None:
    """Apart, because signals of one kind that meet are one; and jobs run all the while, and until reloads are done."""
    rng = random.Random(printed_seed())
    pools = start_pools(rig, 2, "--max-crashes", "0")
    first = {pool.name: pool.fork_servers() for pool in pools}
    storm = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT, signal.SIGCHLD, signal.SIGWINCH)
    sizes = set[int]()
    blows = [(pool, number) for pool in pools for number in storm]  # each of them once at least
    blows += [(rng.choice(pools), rng.choice(storm)) for _ in range(STORM - len(blows))]
    rng.shuffle(blows)
    for struck, number in blows:
        fed(rig, lambda: True, 0.01, 100)
        struck.send(number)
        sizes.add(struck.header().workers)
        let_pass(rng.uniform(0, APART))
    for pool in pools:
        reloaded = partial(is_reloaded, pool, first[pool.name])
        wait_until(lambda r=reloaded: fed(rig, r, 0.01, 100), LIMIT, "it is reloaded")  # type: ignore[misc]
        wait_until(lambda p=pool: p.log("stack of a child"))  # type: ignore[misc]
    assert len(sizes) > 1, "children came or went"
    rig.wait_drained()
    for pool in pools:
        wait_until(lambda p=pool: len(p.fork_servers()) == 1, LIMIT)  # type: ignore[misc]
        pool.wait_ready(pool.header().workers)
    end_unharmed(rig, pools)
    assert not any(pool.log("a child died") for pool in pools)
