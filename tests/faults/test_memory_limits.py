"""Handlers that grow past the memory limit, or leak slowly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.faultmoves import Figure, start_pools, stop_all
from support.poolrig import APP, Rig, wait_gone
from support.stalls import Stalls
from support.waiting import wait_until

MISUSE = str(APP.with_name("apps_misuse.py"))
LIMIT = 120
"""MiB that a child may have."""

GONE = 30.0
"""Seconds for what was killed to be gone: far more than it takes."""

SAMPLE = 1.0
"""Seconds between two looks at a child's memory."""

SLACK = 0.5
"""Seconds on top for the kill itself and what it settles, beside those for which the machine keeps all waiting."""


@pytest.mark.row(17)
@pytest.mark.on("sqlite")
def test_a_job_that_grows_past_the_limit_is_killed_as_a_failed_attempt(rig: Rig, figure: Figure) -> None:
    pools = start_pools(rig, 1, "--memory-limit", f"{LIMIT}M", workers=3, app=MISUSE)
    steady = rig.enqueue("work", {"seconds": 2.5})
    rig.wait_started(steady)
    with Stalls() as stalls:
        ids = rig.enqueue_many("outgrow", [{"mebibytes": 150}] * 2, max_retries=1)
        rig.wait_drained()
    for ident in ids:
        assert [(line.attempt, line.crashes) for line in rig.starts(ident)] == [(1, 0), (2, 0)]
        message = rig.inspect(ident)
        assert (message.reason, message.crashes) == ("memory-limit", 0)
        assert f"its limit is {LIMIT} MiB" in (message.last_error or "")
    waits = [seconds for ident in ids for seconds in seen_after(rig, ident)]
    assert len(waits) >= 2, "two of four at least were above the limit for long enough to say so"
    for seconds in waits:
        figure("killed and settled after it had grown", seconds, "s")
        assert seconds < SAMPLE + SLACK + stalls.allowance
    assert len(rig.starts(steady)) == len(rig.ends(steady)) == 1, "its neighbours go on"
    wait_gone([line.pid for ident in ids for line in rig.starts(ident)], GONE)
    rig.account().assert_once_each()
    stop_all(rig, [pool.wait_ready(3) for pool in pools])


def seen_after(rig: Rig, ident: str) -> list[float]:
    """Seconds from where each attempt is above its limit to its settlement; of those that said so before they died."""
    asked = {line.fence: line.at for line in rig.lines("asked", ident)}
    assert asked.keys() == {1, 2}
    above: dict[int, float] = {}
    for line in rig.lines("effect", ident):
        if line.tag == "all" or int(line.tag) >= LIMIT:
            above.setdefault(line.fence, line.at)
    return [asked[fence] - at for fence, at in above.items()]


def runs_by_child(rig: Rig) -> list[int]:
    """How many attempts each child ran that is dead by now, when the queue has drained."""
    alive = {pid for pool in rig.pools for pid in pool.children()}
    return [count for pid, count in Counter(line.pid for line in rig.ends()).items() if pid not in alive]


@pytest.mark.row(17)
@pytest.mark.on("sqlite")
def test_children_are_recycled_by_jobs_not_all_at_once(rig: Rig, figure: Figure) -> None:
    """20 jobs a child, more or less a tenth: drawn anew for each child."""
    pools = start_pools(rig, 1, "--recycle", "jobs=20")
    rig.enqueue_many("work", [{}] * 230)
    rig.wait_drained()
    runs = runs_by_child(rig)
    for count in runs:
        figure("jobs of a child", count, "")
    assert len(runs) >= 8
    assert 18 <= min(runs) < max(runs) <= 22
    rig.account().assert_once_each()
    stop_all(rig, [pool.wait_ready(2) for pool in pools])
    assert not [entry for pool in pools for entry in pool.log("a child died")], "to be recycled is not a death"


@pytest.mark.row(17)
@pytest.mark.on("sqlite")
def test_children_that_leak_are_recycled_by_memory(rig: Rig, figure: Figure) -> None:
    """Nobody is killed for it: 10 MiB a job, gone above 100 MiB."""
    pools = start_pools(rig, 1, "--recycle", "memory=100M", "--memory-limit", "400M", workers=1)
    rig.enqueue_many("leak", [{"mebibytes": 10}] * 35)
    rig.wait_drained()
    runs = runs_by_child(rig)
    for count in runs:
        figure("jobs of a child that leaks 10 MiB a job, above 100 MiB", count, "")
    assert len(runs) >= 3
    assert max(runs) <= 10
    assert not rig.dead()
    rig.account().assert_once_each()
    stop_all(rig, [pool.wait_ready(1) for pool in pools])


@pytest.mark.row(17)
@pytest.mark.on("sqlite")
def test_the_out_of_memory_killer_takes_children_before_the_master(rig: Rig, figure: Figure) -> None:
    """By what the kernel goes by, `oom_score`: of the sizes that they have, and while a child has grown."""
    [pool] = start_pools(rig, 1, app=MISUSE)
    ident = rig.enqueue("outgrow", {"mebibytes": 200})
    wait_until(lambda: [line for line in rig.lines("effect", ident) if line.tag == "all"], what="it has grown")
    [server] = pool.fork_servers()
    children = pool.wait_ready(2).children()
    adjusted = [_number(pid, "oom_score_adj") for pid in (pool.pid, server, *children)]
    assert adjusted[0] < adjusted[1] < min(adjusted[2:]), adjusted
    scores = [_number(pid, "oom_score") for pid in (pool.pid, server, *children)]
    figure("score of a master", scores[0], "")
    figure("lowest score of a child", min(scores[2:]), "")
    assert scores[0] < min(scores[2:]), scores


def _number(pid: int, name: str) -> int:
    return int(Path(f"/proc/{pid}/{name}").read_text())
