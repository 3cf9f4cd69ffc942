"""A pool over Redis beside Celery, Dramatiq and Huey over the same server, and beside pools that have no broker."""

from __future__ import annotations

from functools import partial

from bench import servers
from bench.contestants import Contest, costs, local, peer, pool
from bench.figures import Figure, Section, Target, median, ratio
from bench.peers import environment, fleet
from bench.plan import Plan
from bench.rounds import interleaved, rates

TITLE = "Redis, no-op jobs that were enqueued before, side by side"
NOTES = [
    "CPU in seconds a thousand jobs, which is milliseconds a job. `workers`: all processes but the server, and so the "
    "sum of the pool's `master`, `client` and `children`.",
    "`every second`: `appendonly yes`, `appendfsync everysec`; elsewhere Redis keeps nothing on its disk.",
]
POOL = "pool"
PEERS = ("celery", "dramatiq", "huey", "Pebble")
EVERY_SECOND = "every second"
CPU_TARGET = Target("≤", 0.04)

RATIOS = {
    (POOL, "Celery"): Target("≥", 30),
    (POOL, "Celery, acks late"): None,
    (POOL, "Dramatiq"): Target("≥", 4),
    (POOL, "Huey"): None,
    (POOL, "Pebble, no broker"): Target(">", 1),
    (POOL, "executor, no broker"): Target(">", 1),
    (f"{POOL}, {EVERY_SECOND}", f"Dramatiq, {EVERY_SECOND}"): Target("≥", 2.5),
}


def run(plan: Plan) -> Section:
    """Run interleaved rounds; medians, and ratios within the rounds."""
    if plan.peers:
        environment.ensure()
    with (
        plan.scratch() as one,
        plan.scratch() as two,
        servers.redis(one) as quick,
        servers.redis(two, servers.EVERY_SECOND) as logged,
    ):
        samples = interleaved(_contestants(plan, quick) | _logged(plan, logged), plan.turns(5))
    rate = rates(samples)
    versions = environment.versions(PEERS if plan.peers else ())
    figures: list[Figure] = [median(name, "jobs/s", each) for name, each in rate.items()]
    figures += [
        ratio(f"{one} / {other}", rate[one], rate[other], target)
        for (one, other), target in RATIOS.items()
        if other in rate
    ]
    return Section("redis", TITLE, figures + costs(samples, CPU_TARGET), [*NOTES, versions])


def _contestants(plan: Plan, server: servers.Server) -> dict[str, Contest]:
    found: dict[str, Contest] = {POOL: partial(pool, plan, server, plan.noops())}
    if plan.peers:
        found |= {
            "Celery": partial(peer, plan, server, fleet.CELERY, _slow(plan)),
            "Celery, acks late": partial(peer, plan, server, fleet.CELERY_LATE, _slow(plan)),
            "Dramatiq": partial(peer, plan, server, fleet.DRAMATIQ, _quick(plan)),
            "Huey": partial(peer, plan, server, fleet.HUEY, _quick(plan)),
            "Pebble, no broker": partial(local, plan, "pebble", plan.noops()),
            "executor, no broker": partial(local, plan, "executor", plan.noops()),
        }
    return found


def _logged(plan: Plan, server: servers.Server) -> dict[str, Contest]:
    found: dict[str, Contest] = {f"{POOL}, {EVERY_SECOND}": partial(pool, plan, server, plan.noops())}
    if plan.peers:
        found[f"Dramatiq, {EVERY_SECOND}"] = partial(peer, plan, server, fleet.DRAMATIQ, _quick(plan))
    return found


def _slow(plan: Plan) -> int:
    """Return how many jobs keep a peer of some thousand a second busy for some seconds."""
    return plan.pick(2500, 1500, 100)


def _quick(plan: Plan) -> int:
    """Return the same, for one of some thousands."""
    return plan.pick(20_000, 6000, 400)
