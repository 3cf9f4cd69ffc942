"""A pool over beanstalkd beside a bare loop of the same commands, on one connection and on as many as the pool has."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.beanstalk_server import BeanstalkServer, beanstalkd
from bench.contestants import Contest, costs, loop, pool
from bench.figures import Figure, Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import interleaved, rates

TITLE = "beanstalkd, no-op jobs that were enqueued before, side by side"
NOTES = [
    "`bare loop`: greenstalk in one process, a thread a connection: reserve, stats-job, delete, and nothing else.",
    "`backend alone`: one process that fetches 64 and acks them, with no pool and no handler.",
    "`binlog`: `-b`, synced every 50 ms, the default; elsewhere beanstalkd keeps nothing on its disk.",
    "CPU in seconds a thousand jobs. `workers`: all processes but the server, so the sum of `master`, `client` and "
    "`children`.",
]
POOL = "pool"
CONNECTIONS = (1, 2, 4)
"""Of the bare loops. A pool has four: that hold leases, wait, count and put, whichever is free."""

SHARE = Target("≥", 0.6)
THOUSANDS = Target("≥", 1000)
BATCH = 64


def run(plan: Plan) -> Section:
    """Run interleaved rounds; medians, and ratios within the rounds."""
    with plan.scratch() as one, plan.scratch() as two, beanstalkd(one) as quick, beanstalkd(two, binlog=True) as logged:
        samples = interleaved(_contestants(plan, quick, logged), plan.turns(5))
    rate = rates(samples)
    figures: list[Figure] = [
        median(name, "jobs/s", each, THOUSANDS if name == POOL else None) for name, each in rate.items()
    ]
    figures += [ratio(f"{POOL} / {_bare(count)}", rate[POOL], rate[_bare(count)], SHARE) for count in CONNECTIONS]
    return Section("beanstalkd", TITLE, figures + costs(samples), NOTES)


def _bare(connections: int) -> str:
    return f"bare loop, {connections} connection{'s' * (connections > 1)}"


def _contestants(plan: Plan, quick: BeanstalkServer, logged: BeanstalkServer) -> dict[str, Contest]:
    jobs = plan.jobs or plan.pick(20_000, 5000, 200)
    return {
        POOL: partial(pool, plan, quick, jobs),
        f"{POOL}, binlog": partial(pool, plan, logged, jobs),
        "backend alone": partial(loop, quick, BATCH, jobs),
        **{_bare(count): partial(_loop, quick, count, jobs) for count in CONNECTIONS},
    }


def _loop(server: BeanstalkServer, connections: int, jobs: int) -> dict[str, Any]:
    with server.fresh() as url:
        return sample("samples.bare_beanstalk", url=url, connections=connections, jobs=jobs, broker_pid=server.pid)
