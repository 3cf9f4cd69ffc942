"""A pool over Postgres beside Procrastinate and PgQueuer over the same server, and beside a bare loop."""

from __future__ import annotations

from functools import partial

from bench import servers
from bench.contestants import Contest, costs, loop, peer, pool
from bench.figures import Figure, Section, Target, median, ratio
from bench.peers import environment, fleet
from bench.plan import Plan
from bench.rounds import interleaved, rates

TITLE = "Postgres, no-op jobs that were enqueued before, side by side"
NOTES = [
    "`fsync = on`, `synchronous_commit = on`. PgQueuer does not fence: who has lost a job can still end it.",
]
POOL = "pool"
PEERS = ("procrastinate", "pgqueuer")
LOOPS = (10, 100)

RATIOS = {
    "Procrastinate": Target("≥", 15),
    "PgQueuer": Target("≥", 1.3),
    "PgQueuer, batches of 100": Target("≥", 1.05),
    "fetch and ack, batches of 10": None,
    "fetch and ack, batches of 100": None,
}


def run(plan: Plan) -> Section:
    """Run interleaved rounds; medians, and ratios within the rounds."""
    if plan.peers:
        environment.ensure()
    with plan.scratch() as scratch, servers.postgres(scratch) as server:
        samples = interleaved(_contestants(plan, server), plan.turns(5))
    rate = rates(samples)
    versions = environment.versions(PEERS if plan.peers else ())
    figures: list[Figure] = [median(name, "jobs/s", each) for name, each in rate.items()]
    figures += [
        ratio(f"{POOL} / {other}", rate[POOL], rate[other], target) for other, target in RATIOS.items() if other in rate
    ]
    return Section("postgres", TITLE, figures + costs(samples), [*NOTES, versions])


def _contestants(plan: Plan, server: servers.Server) -> dict[str, Contest]:
    found: dict[str, Contest] = {POOL: partial(pool, plan, server, plan.noops())}
    if plan.peers:
        found |= {
            "Procrastinate": partial(peer, plan, server, fleet.PROCRASTINATE, plan.pick(2000, 1000, 50)),
            "PgQueuer": partial(peer, plan, server, fleet.PGQUEUER, plan.pick(20_000, 6000, 400)),
            "PgQueuer, batches of 100": partial(
                peer, plan, server, fleet.PGQUEUER_BATCHES, plan.pick(40_000, 10_000, 600)
            ),
        }
    return found | {
        f"fetch and ack, batches of {n}": partial(loop, server, n, plan.pick(20_000, 5000, 100)) for n in LOOPS
    }
