"""A handler that hangs in C code: when it is dead, and when its place is filled again; and when it is dead in peers."""

from __future__ import annotations

from bench import servers
from bench.figures import Figure, Section, Target, percentile
from bench.hanging_jobs import AT_ONCE, GIVE_UP, TIMEOUT
from bench.live_pool import LivePool, live_pool
from bench.peers import environment, fleet, running
from bench.plan import Plan
from bench.processes import death_of
from bench.programs import sample

TITLE = f"hang in C, timeout {TIMEOUT:g} s, grace 1 s: from the handler's first line"
NOTES = [f"The peers have the same timeout, and no grace. `never`: it still ran after {GIVE_UP:g} s."]
PEERS = ("celery", "dramatiq", "huey", "Pebble")


def run(plan: Plan) -> Section:
    """Hang two at a time, so that both cores are busy when the pool has to act."""
    deaths: list[float] = []
    replacements: list[float] = []
    with live_pool(plan, AT_ONCE) as pool:
        for turn in range(_turns(plan)):
            for dead, ready in _hang(pool, turn):
                deaths.append(dead)
                replacements.append(ready)
    figures = [
        percentile("dead", "s", deaths, 50),
        percentile("dead", "s", deaths, 99, Target("≤", 2.5)),
        percentile("successor ready", "s", replacements, 50),
        percentile("successor ready", "s", replacements, 99, Target("≤", 2.5)),
    ]
    if not plan.peers:
        return Section("timeouts", TITLE, figures, [environment.versions()])
    return Section("timeouts", TITLE, figures + _of_peers(plan), [*NOTES, environment.versions(PEERS)])


def _turns(plan: Plan) -> int:
    return plan.pick(12, 2)


def _hang(pool: LivePool, turn: int) -> list[tuple[float, float]]:
    """Return seconds from each handler's first line to its death, and to its successor's readiness."""
    for _ in range(AT_ONCE):
        pool.enqueue("hang", path=str(pool.notes))
    lines = pool.lines((turn + 1) * AT_ONCE)[-AT_ONCE:]
    begun = [(int(pid), float(at)) for pid, at in lines]
    watched = [(pid, at, pool.slot_of(pid), death_of(pid)) for pid, at in begun]
    found = [(ended() - at, pool.ready_after(slot, pid) - at) for pid, at, slot, ended in watched]
    pool.wait_ready(AT_ONCE)
    return found


def _of_peers(plan: Plan) -> list[Figure]:
    """Return when the handlers of peers are dead, if ever."""
    environment.ensure()
    limit = 3.0 if plan.tiny else GIVE_UP
    found: dict[str, list[float]] = {}
    with plan.scratch() as scratch, servers.redis(scratch) as server:
        for name, peer in {"Celery": fleet.CELERY, "Dramatiq": fleet.DRAMATIQ, "Huey": fleet.HUEY}.items():
            with plan.scratch() as directory:
                found[name] = running.deaths(peer, server, _turns(plan), limit, directory)
    python = environment.program("python")
    found["Pebble"] = sample("peers.pools", python=python, do="hang", turns=_turns(plan), limit=limit)["dead"]
    return [percentile(f"{name}: dead", "s", samples, 50) for name, samples in found.items()]
