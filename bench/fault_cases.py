"""The faults of the benchmark: each strikes once, and says after how many seconds what was noticed, and mended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bench.fault_stage import WORKERS, Stage
from bench.live_pool import wait_for
from bench.processes import death_of
from jobpool_torture.fleet import Pool
from jobpool_torture.ledger import Line

Strike = Callable[[Stage], dict[str, float]]
"""Seconds by what they are to. Everything is as before when it returns."""

TIMEOUT = 1.0

HOLE = 3.0
"""Seconds for which nothing passes."""

MANY, FEW = 100, 40
"""Jobs of 10 ms: a quarter of a second for two pools, and a tenth."""


# --- processes ----------------------------------------------------------------------------------------------------


def child_killed(stage: Stage) -> dict[str, float]:
    """Send SIGKILL to a child at work."""
    [ident] = stage.enqueue(1, 0.2)
    begun = stage.started(ident)
    struck = stage.send(begun.pid, signal.SIGKILL)
    noted = stage.line("asked", lambda line: line.id == ident)
    again = stage.started(ident, 2)
    return {"its end is noted": noted.at - struck, "its message runs again": again.at - struck}


def child_stopped(stage: Stage) -> dict[str, float]:
    """Send SIGSTOP to a child, in a job with a timeout."""
    [ident] = stage.enqueue(1, 60.0, TIMEOUT)
    begun = stage.started(ident)
    pool = stage.pool_of(begun.pid)
    ended = death_of(begun.pid)
    stage.send(begun.pid, signal.SIGSTOP)
    due = begun.at + TIMEOUT
    return {"killed, after its timeout": ended() - due, "its place is filled": _replaced(stage, pool, begun.pid) - due}


def _replaced(stage: Stage, pool: Pool, child: int) -> float:
    wait_for(lambda: child not in pool.children() or None, f"{child} is gone")
    return stage.wait_ready(pool)


def fork_server_killed(stage: Stage) -> dict[str, float]:
    """Send SIGKILL to the parent of a pool's children, of which one is at work."""
    [ident] = stage.enqueue(1, 0.2)
    pool = stage.pool_of(stage.started(ident).pid)
    old = set(pool.children())
    struck = stage.send(pool.fork_servers()[-1], signal.SIGKILL)
    wait_for(lambda: not old & set(pool.children()) or None, "the old children are gone")
    ready = stage.wait_ready(pool)
    again = stage.started(ident, 2)
    stage.drain()
    return {"new children are ready": ready - struck, "its message runs again": again.at - struck}


def master_killed(stage: Stage) -> dict[str, float]:
    """Kill a master whose children are at work; the other pool goes on, and another is started afterwards."""
    doomed, mine = _occupied(stage, 0.3)
    ends = [death_of(pid) for pid in [*doomed.children(), *doomed.fork_servers()]]
    struck = stage.send(doomed.pid, signal.SIGKILL)
    gone = max(ended() for ended in ends)
    came = _redelivered(stage, mine)
    stage.start()
    stage.drain()
    return {
        "its children are gone": gone - struck,
        "the first message is redelivered": min(came) - struck,
        "all messages are redelivered": max(came) - struck,
    }


def master_stopped(stage: Stage) -> dict[str, float]:
    """Stop a master until its lease is another's, then continue it; its child is at work all the time."""
    [ident] = stage.enqueue(1, 3 * stage.ttl)
    begun = stage.started(ident)
    frozen = stage.pool_of(begun.pid)
    ended = death_of(begun.pid)
    struck = stage.send(frozen.pid, signal.SIGSTOP)
    [came] = _redelivered(stage, [ident])
    woken = stage.send(frozen.pid, signal.SIGCONT)
    dropped = ended()
    stage.drain()
    stage.wait_ready(frozen)
    return {"its message is redelivered": came - struck, "awake, it has killed what it lost": dropped - woken}


def _occupied(stage: Stage, seconds: float) -> tuple[Pool, list[str]]:
    """Return the first pool, and its messages, when all children of both are at work."""
    begun = [stage.started(ident) for ident in stage.enqueue(2 * WORKERS, seconds)]
    pool = stage.pools[0]
    children = pool.children()
    return pool, [line.id for line in begun if line.pid in children]


def _redelivered(stage: Stage, idents: Iterable[str]) -> list[float]:
    return [stage.line("fetched", lambda line, i=ident: line.id == i and line.fence > 1).at for ident in idents]  # type: ignore[misc]


# --- the network, the broker ----------------------------------------------------------------------------------------


def connections_cut(stage: Stage) -> dict[str, float]:
    """Reset every connection of both pools, in a stream of jobs."""
    with _stream(stage, FEW):
        struck = time.monotonic()
        for proxy in stage.proxies:
            proxy.cut()
        return {"the next ack is accepted": stage.acked(struck).at - struck}


def black_hole(stage: Stage, seconds: float = HOLE) -> dict[str, float]:
    """Let nothing pass for some seconds; it arrives late."""
    with _stream(stage):
        for proxy in stage.proxies:
            proxy.black_hole()
        _pass(seconds)
        restored = _restored(stage)
        return {"after it, the first ack is accepted": stage.acked(restored).at - restored}


def half_open(stage: Stage) -> dict[str, float]:
    """Lose all bytes of half a second; connections that have lost some never work again."""
    with _stream(stage):
        struck = time.monotonic()
        for proxy in stage.proxies:
            proxy.black_hole(keep=False)
        _pass(0.5)
        restored = _restored(stage)
        return {"the next ack is accepted": stage.acked(restored).at - struck}


def reply_cut(stage: Stage) -> dict[str, float]:
    """Break the connection after the broker has settled, before it says so."""
    return _reply_dropped(stage, silent=False)


def reply_swallowed(stage: Stage) -> dict[str, float]:
    """Lose the broker's answer to a settlement."""
    return _reply_dropped(stage, silent=True)


def _reply_dropped(stage: Stage, *, silent: bool) -> dict[str, float]:
    assert stage.broker is not None
    with _stream(stage, FEW):
        struck = time.monotonic()
        for proxy in stage.proxies:
            proxy.drop_replies(1, match=stage.broker.settle_calls, then="silent" if silent else "cut")
        known = stage.line("settled", lambda line: line.answer == "already", struck)
        asked = stage.line("asked", lambda line: (line.id, line.fence) == (known.id, known.fence))
        for proxy in stage.proxies:
            proxy.drop_replies(0)
        return {"that settlement is known": known.at - asked.at}


def broker_killed(stage: Stage) -> dict[str, float]:
    """Kill the server in a stream of jobs, and start it again after a second."""
    assert stage.broker is not None
    with _stream(stage):
        stage.broker.server.kill()
        _pass(1.0)
        stage.broker.bring_back()
        answers = time.monotonic()
        return {"since it answers, the first ack is accepted": stage.acked(answers).at - answers}


@contextmanager
def _stream(stage: Stage, jobs: int = MANY) -> Iterator[Line]:
    """Yield the first ack of many; the others are waited for at the end."""
    begun = time.monotonic()
    stage.enqueue(jobs, 0.01)
    yield stage.acked(begun)
    stage.drain()


def _restored(stage: Stage) -> float:
    for proxy in stage.proxies:
        proxy.restore()
    return time.monotonic()


def _pass(seconds: float) -> None:
    """Let the fault last: the only time that is waited for by the clock."""
    time.sleep(seconds)
