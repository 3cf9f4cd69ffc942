"""Row 2: children are killed at every phase of a job, and at random moments; the message and the others do not mind."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from support import apps_pool
from support.faultmoves import Figure, gated, let_pass, start_pools, stop_all
from support.poolrig import LIMIT, PoolProcess, Rig, kill_child
from support.seeds import printed_seed
from support.stalls import Stalls
from support.waiting import wait_until, whole_lines

APP = Path(apps_pool.__file__).with_name("apps_phases.py")
PHASES = (
    *("frame read", "frame taken", "in user code"),
    *("result computed", "half an answer written", "answer written"),
)
CHARGED = {"frame taken", "in user code", "result computed", "half an answer written"}
"""In the others the master has not been told of a start, or has been told of the end."""

ENDED = {"result computed", "half an answer written"}
"""The handler had ended, and the master never heard of it: it runs again."""

FLAGS = ("--max-crashes", "0")
KILLS = 100
KILLS_OF_MIXED = 15
POISON = 8
OF_EACH = {"sqlite": 25}
"""Kills at each phase; elsewhere `FEW`, because children die the same whatever the broker is."""

FEW = 6
IDLE_ROUNDS = 3
SUCCESSOR = 1.0
"""Seconds within which a killed child has a ready successor, each of them; half of them in half of it."""


@pytest.mark.row(2)
@pytest.mark.on("redis", "sqlite", "postgres", "beanstalk", "servicebus")
def test_children_killed_at_every_phase_of_a_job(rig: Rig, figure: Figure, request: pytest.FixtureRequest) -> None:
    """Each job kills its child once, at its phase; jobs that go on beside them notice nothing."""
    seed = printed_seed()
    gate = rig.directory / "gate"
    pools = start_pools(rig, 2, *FLAGS, workers=3, app=str(APP))
    steady = [gated(rig, gate, gate) for _ in range(2)]
    runners = {line.pid for line in rig.wait_started(*steady)}
    with Stalls() as stalls:
        doomed = _enqueue_doomed(rig, random.Random(seed), OF_EACH.get(request.node.callspec.params["broker"], FEW))
        wait_until(lambda: {line.id for line in rig.ends()} >= set(doomed), LIMIT, "each has run again")
        wait_until(lambda: rig.stats().pending <= len(steady), what="all are settled")
        wait_until(lambda: _killed(rig) == doomed, what="each died at its phase")
        _kill_idle_children(rig, pools, runners)
    assert runners <= {pid for pool in pools for pid in pool.slots().values()}, "no other slot is disturbed"
    gate.touch()
    rig.wait_drained()

    for ident, phase in doomed.items():
        runs = [(line.attempt, line.crashes) for line in rig.starts(ident)]
        assert runs[-1] == (1, phase in CHARGED), phase
        assert len(rig.ends(ident)) == 1 + (phase in ENDED), phase
    assert [len(rig.starts(ident)) for ident in steady] == [1, 1]
    account = rig.account()
    account.assert_apart()
    assert sum(account.crashes.values()) == sum(phase in CHARGED for phase in doomed.values()), "CR = kills of runs"
    assert not rig.dead()
    _check_successors(rig, stalls, figure)
    stop_all(rig, pools)


def _enqueue_doomed(rig: Rig, rng: random.Random, of_each: int) -> dict[str, str]:
    """Id → phase, in no order."""
    phases = [phase for phase in PHASES for _ in range(of_each)]
    rng.shuffle(phases)
    return dict(zip(rig.enqueue_many("phased", [{"phase": phase} for phase in phases]), phases, strict=True))


def _kill_idle_children(rig: Rig, pools: list[PoolProcess], busy: set[int]) -> None:
    """All that have nothing to do, at once, again and again."""
    killed = 0
    for _ in range(IDLE_ROUNDS):
        for pool in pools:
            pool.wait_ready(3)
        killed += sum(_kill_idle_child(rig, pool, slot, pid) for pool, slot, pid in _idle_children(pools, busy))
    assert killed > IDLE_ROUNDS
    for pool in pools:
        pool.wait_ready(3)


def _idle_children(pools: list[PoolProcess], busy: set[int]) -> list[tuple[PoolProcess, int, int]]:
    """Pool, slot and pid."""
    return [(pool, slot, pid) for pool in pools for slot, pid in pool.slots().items() if pid not in busy]


def _kill_idle_child(rig: Rig, pool: PoolProcess, slot: int, pid: int) -> bool:
    """False: it had died of the job before."""
    [server] = pool.fork_servers()
    killed_at = time.monotonic()
    done = kill_child(pool, pid)
    if done:
        _tell_killed(rig, server, slot, killed_at)
    return done


def _tell_killed(rig: Rig, server: int, slot: int, at: float) -> None:
    line = {"event": "killed", "id": "", "phase": "idle", "server": server, "slot": slot, "at": at}
    with (rig.directory / "phases").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _events(rig: Rig) -> list[dict[str, Any]]:
    return sorted(map(json.loads, whole_lines(rig.directory / "phases")), key=lambda event: event["at"])


def _killed(rig: Rig) -> dict[str, str]:
    """Id → phase at which its child died."""
    return {event["id"]: event["phase"] for event in _events(rig) if event["event"] == "killed" and event["id"]}


def _check_successors(rig: Rig, stalls: Stalls, figure: Figure) -> None:
    """A successor tells it right after its pool has heard that it is ready, so the last ones may be about to."""
    took = wait_until(lambda: _seconds_to_successors(_events(rig)), what="each has a successor that is ready")
    for seconds in took:
        figure("successor ready", seconds, "s")
    assert statistics.median(took) < SUCCESSOR / 2 + stalls.longest
    assert max(took) < SUCCESSOR + stalls.allowance, (sorted(took)[-10:], stalls.seconds)


def _seconds_to_successors(events: list[dict[str, Any]]) -> list[float]:
    """From each kill to the next child of that slot that has said that it is ready; none yet, if one is missing."""
    successors: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in events:
        if event["event"] == "ready":
            successors[event["server"], event["slot"]].append(event["at"])
    took = [
        min((at for at in successors[event["server"], event["slot"]] if at > event["at"]), default=math.inf)
        - event["at"]
        for event in events
        if event["event"] == "killed"
    ]
    return [] if math.inf in took else took


@pytest.mark.more
@pytest.mark.row(2)
@pytest.mark.on("sqlite", "redis-cluster")
def test_children_killed_at_random_moments(rig: Rig) -> None:
    """The sleeps are short, so that kills meet every phase, and the moments between two."""
    rng = random.Random(printed_seed())
    pools = start_pools(rig, 2, *FLAGS)
    rig.enqueue_many("work", [{"seconds": rng.choice((0, 0, 0.005, 0.02))} for _ in range(1500)])
    kills = 0
    give_up = time.monotonic() + 90
    while kills < KILLS and time.monotonic() < give_up:
        time.sleep(rng.uniform(0, 0.02))
        pool = rng.choice(pools)
        if children := pool.children():
            kills += kill_child(pool, rng.choice(children))
        if rig.stats().waiting < 300:
            rig.enqueue_many("work", [{"seconds": 0.005}] * 500)
    assert kills == KILLS
    rig.wait_drained()
    account = rig.account()
    account.assert_apart()
    assert sum(account.crashes.values()) <= kills
    assert not rig.dead(), "no limit, no dead letter"
    assert {line.attempt for line in rig.starts()} == {1}, "a crash is not a failed attempt"
    stop_all(rig, pools)


@pytest.mark.row(2)
@pytest.mark.on("sqlite", "redis")
def test_children_killed_and_frozen_while_others_take_what_waits_behind_their_long_jobs(rig: Rig) -> None:
    """Quick jobs with long ones among them, so that the master takes back all the time; and some poison behind."""
    rng = random.Random(printed_seed())
    [pool] = start_pools(rig, 1, *FLAGS, workers=4)
    poison: list[str] = []
    for _ in range(POISON):
        rig.enqueue_many("work", _mixed(rng, 100))
        poison.append(rig.enqueue("die", {"how": "SIGSEGV"}))
    kills = 0
    while kills < KILLS_OF_MIXED:
        let_pass(rng.uniform(0.01, 0.06))
        if children := pool.children():
            kills += kill_child(pool, rng.choice(children))
        if rig.stats().waiting < 100:
            rig.enqueue_many("work", _mixed(rng, 200))
    pool.wait_ready(4)
    _freeze_a_child_until_others_have_done_the_rest(rig, pool, rng)
    rig.wait_drained()
    account = rig.account()
    account.assert_apart()
    assert sum(account.crashes.values()) <= kills + POISON
    assert all(rig.ends(ident) for ident in poison), "also what dies in its first delivery, if it begins that"
    runs = Counter(line.id for line in rig.starts())
    assert all(count <= 1 + account.crashes[ident] for ident, count in runs.items()), "nothing ran that was taken back"
    assert {line.attempt for line in rig.starts()} == {1}
    stop_all(rig, [pool])


def _mixed(rng: random.Random, count: int) -> list[dict[str, float]]:
    return [{"seconds": rng.choice((0.12, *[0.001] * 19))} for _ in range(count)]


def _freeze_a_child_until_others_have_done_the_rest(rig: Rig, pool: PoolProcess, rng: random.Random) -> None:
    """It keeps what it had begun, at most; and the master waits for it without spinning."""
    rig.enqueue_many("work", _mixed(rng, 300))
    frozen = rng.choice(pool.children())
    os.kill(frozen, signal.SIGSTOP)
    wait_until(lambda: rig.stats().pending <= 1, LIMIT, "the others have done the rest")
    used = pool.cpu_seconds()
    let_pass(1.0)
    assert pool.cpu_seconds() - used < 0.3
    os.kill(frozen, signal.SIGCONT)
