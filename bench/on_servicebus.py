"""A pool over Service Bus beside what its SDK can do at best: receive and complete, with nothing around it."""

from __future__ import annotations

from functools import partial

from bench.contestants import Contest, costs, loop, pool
from bench.figures import Figure, Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import interleaved, rates
from bench.servicebus_peer import ServiceBusPeer, servicebus

TITLE = "Azure Service Bus, no-op jobs that were enqueued before, side by side"
NOTES = [
    "Over loopback, against the small broker of the tests: a ceiling of the SDK's own code, not of the service. Over a "
    "network each receiver completes one message a round trip.",
    "`SDK alone`: azure-servicebus in one process: receive up to 50, complete one after the other, with that many "
    "receivers in one event loop. `backend alone`: one process that fetches 64 and acks them; no pool, no handler.",
    "CPU in seconds a thousand jobs. `workers`: all processes but the broker, so the sum of `master`, `client` and "
    "`children`. The SDK has a thread of its own, which is in `master`.",
]
POOL = "pool"
RECEIVERS = (1, 2, 4)
SHARE = Target("≥", 0.7)
BATCH = 64


def run(plan: Plan) -> Section:
    """Run interleaved rounds; medians, and ratios within the rounds. The ceiling is the best of each round."""
    with plan.scratch() as scratch, servicebus(scratch) as server:
        samples = interleaved(_contestants(plan, server), plan.turns(5))
    rate = rates(samples)
    ceiling = [max(each) for each in zip(*(rate[_alone(count)] for count in RECEIVERS), strict=True)]
    figures: list[Figure] = [median(name, "jobs/s", each) for name, each in rate.items()]
    figures.append(ratio(f"{POOL} / the best of SDK alone", rate[POOL], ceiling, SHARE))
    figures += [ratio(f"{POOL} / {_alone(count)}", rate[POOL], rate[_alone(count)]) for count in RECEIVERS]
    return Section("servicebus", TITLE, figures + costs(samples), NOTES)


def _alone(receivers: int) -> str:
    return f"SDK alone, {receivers} receiver{'s' * (receivers > 1)}"


def _contestants(plan: Plan, server: ServiceBusPeer) -> dict[str, Contest]:
    jobs = plan.jobs or plan.pick(6000, 2000, 100)
    alone = partial(sample, "samples.bare_servicebus", url=server.url, jobs=jobs, broker_pid=server.pid)
    return {
        POOL: partial(pool, plan, server, jobs),
        "backend alone": partial(loop, server, BATCH, jobs),
        **{_alone(count): partial(alone, receivers=count) for count in RECEIVERS},
    }
