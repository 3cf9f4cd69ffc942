"""Many pools on one broker: what a job costs the broker, how the pools share, and what they ask at rest.

The machine is full long before the broker is. So the figures to go by are the broker's own: CPU time and requests a
job. Jobs a second are those that the pools could make of what was left of the machine.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench import servers
from bench.broker_counts import read_counts, timed_verbs, track_verbs
from bench.contestants import KEY
from bench.figures import Figure, Section, median
from bench.job_counters import VARIABLE, JobCounters
from bench.live_pool import QUEUE, several, wait_for
from bench.plan import Plan
from bench.processes import descendants, family_seconds
from bench.rounds import Samples, interleaved
from bench.servers import Server
from jobpool.client.jobs import Jobs
from jobpool_torture.network import Proxy, find_route
from jobpool_torture.network_process import Counts

TITLE = "1 to 8 pools of 2 children on one broker"
NOTES = [
    "Signed jobs, enqueued before. `5 ms`: the handler sleeps, so that more pools do more. `requests`: on Redis times"
    " that it read from a client, on Postgres transactions that wrote. `fewest`, `most`: jobs of one pool, against the"
    " mean of all.",
    "`model`: the broker's CPU time a job is `a job` + requests a job times `a request`, both fitted to all rows. Then"
    " what that gives for each row, against what was measured.",
    "`idle`: nothing waits. `holding`: each child has one long job. Leases of 3 s, so renewals and reaps are ten times"
    " as many as with the default of 30 s. `CPU broker` is that of all pools together.",
]
WORKERS = 2
NAP = 0.005
LEASE = 3.0

Spec = tuple[str, str, int]
"""Broker, kind of jobs, pools."""

BUSY = {
    "rate": ("jobs/s", ""),
    "server": ("µs/job", ": CPU broker"),
    "pools": ("µs/job", ": CPU pools"),
    "requests": ("/job", ": requests"),
    "asked": ("/s", ": requests a pool"),
    "fewest": ("", ": fewest"),
    "most": ("", ": most"),
}
"""Key of a sample → unit, and the figure's name behind that of the contest."""

SHARES = ("fewest", "most")
"""Of those, the ones that say nothing about one pool."""

REST = {
    "idle: requests": ("/s", "idle: requests a pool"),
    "idle: cpu": ("% of a core", "idle: CPU broker"),
    "holding: renew": ("/s", "holding: renewals a pool"),
    "holding: renew took": ("ms", "holding: server time of a renewal"),
    "holding: reap": ("/s", "holding: reaps a pool"),
    "holding: reap took": ("ms", "holding: server time of a reap"),
}


def run(plan: Plan) -> Section:
    """Run all sizes and kinds by turns on each broker, then pools at rest, then pools behind a proxy."""
    with servers.both(plan) as brokers:
        sizes, turns = (1, 2) if plan.tiny else (1, 2, 4, 8), plan.turns(5)
        specs = [(broker, kind, pools) for broker in brokers for kind in _kinds(plan) for pools in sizes]
        busy = interleaved({_name(s): partial(_busy, plan, brokers[s[0]], s[1], s[2]) for s in specs}, turns)
        quiet = {f"{name}, {_so_many(n)}": partial(_rest, plan, brokers[name], n) for name in brokers for n in sizes}
        rest = interleaved(quiet, max(1, turns // 2))
        wire = {kind: _busy(plan, brokers["Postgres"], kind, 1, proxied=True)["wire"] for kind in _kinds(plan)}
    figures = [figure for spec in specs for figure in _columns(_name(spec), busy[_name(spec)], _shown(spec[2]))]
    for broker in brokers:
        figures += _places(broker, {s: busy[_name(s)] for s in specs if s[0] == broker}, wire)
        figures += _model(broker, {_name(s): busy[_name(s)] for s in specs if s[0] == broker})
    figures += [figure for name, found in rest.items() for figure in _columns(f"{name}, ", found, REST)]
    return Section("pools", TITLE, figures, NOTES)


def _kinds(plan: Plan) -> dict[str, tuple[str, dict[str, Any], int, int]]:
    """Return, by name: handler, payload, jobs, and jobs more for each pool."""
    return {
        "no-op": ("counted", {}, plan.noops(), 0),
        "5 ms": ("counted nap", {"seconds": NAP}, 0, plan.pick(1500, 500, 20)),
    }


def _name(spec: Spec) -> str:
    broker, kind, pools = spec
    return f"{broker}, {kind}, {_so_many(pools)}"


def _so_many(pools: int) -> str:
    return "1 pool" if pools == 1 else f"{pools} pools"


def _busy(plan: Plan, server: Server, kind: str, pools: int, *, proxied: bool = False) -> dict[str, Any]:
    """Preload jobs, start pools, let them in when each child has a job, and count until nothing is left.

    `proxied`: a proxy counts the bytes of the pools' connections, at the price of CPU time.
    """
    handler, payload, fixed, each = _kinds(plan)[kind]
    jobs = fixed + each * pools
    with contextlib.ExitStack() as stack:
        scratch, url = stack.enter_context(plan.scratch()), stack.enter_context(server.fresh())
        producer = stack.enter_context(Jobs(url, signing_key=KEY))
        empty = read_counts(server, url)
        producer.enqueue_many(producer.define(handler, payload).queue(QUEUE) for _ in range(jobs))
        full = read_counts(server, url)
        counters = stack.enter_context(contextlib.closing(JobCounters(scratch / "counters")))
        words = {VARIABLE: str(counters.path), "JOBPOOL_SIGNING_KEY": KEY}
        route = find_route(url) if proxied else ""
        proxy = None if isinstance(route, str) else stack.enter_context(Proxy(route.host, route.port))
        way = url if proxy is None or isinstance(route, str) else route.to("127.0.0.1", proxy.port)
        processes = stack.enter_context(several(scratch, way, pools, WORKERS, "-Q", QUEUE, **words))
        stage = _Stage(server, url, producer, counters, [process.pid for process in processes], proxy)
        found = stage.run(jobs)
    found["connections"] = (found["connections"] - full.connections) / pools
    return found | {"waiting": (full.stored - empty.stored) / jobs}


@dataclass(frozen=True, slots=True)
class _Stage:
    """Pools, their masters' pids, and all that is asked about them."""

    server: Server
    url: str
    producer: Jobs
    counters: JobCounters
    masters: list[int]
    proxy: Proxy | None

    def run(self, jobs: int) -> dict[str, Any]:
        """Open the gate, and return what the jobs took."""
        wait_for(lambda: len(self.counters.counts()) == len(self.masters) * WORKERS or None, "a job in each child")
        before, cpu = read_counts(self.server, self.url), self._spent()
        begun = self.counters.open_gate()
        wait_for(lambda: self.counters.done()[0] >= jobs or None, f"{jobs} jobs")
        wait_for(lambda: not self.producer.stats(QUEUE).pending or None, "the last settlement")
        server, pools, wire = (now - then for now, then in zip(self._spent(), cpu, strict=True))
        after = read_counts(self.server, self.url)
        rate = jobs / (self.counters.done()[1] - begun)
        counts = self.counters.counts()
        done = [sum(counts.get(pid, 0) for pid in descendants(master)) for master in self.masters]
        requests = (after.requests - before.requests) / jobs
        return {
            "rate": rate,
            "server": server / jobs * 1e6,
            "pools": pools / jobs * 1e6,
            "requests": requests,
            "asked": requests * rate / len(done),
            "fewest": min(done) / statistics.mean(done),
            "most": max(done) / statistics.mean(done),
            "traffic": (after.traffic - before.traffic) / jobs,
            "connections": after.connections,
            "wire": wire / jobs,
        }

    def _spent(self) -> tuple[float, float, float]:
        """Return CPU seconds of the server and of the pools, and bytes that the proxy has passed on."""
        sent = self.proxy.counts() if self.proxy else Counts()
        pools = sum(map(family_seconds, self.masters))
        return self.server.cpu_seconds(), pools, sent.bytes_up + sent.bytes_down


def _rest(plan: Plan, server: Server, pools: int) -> dict[str, Any]:
    """Return what pools ask while they do nothing, and while each of their children has a job."""
    seconds, children = plan.pick(10, 5, 2), pools * WORKERS
    with contextlib.ExitStack() as stack:
        scratch, url = stack.enter_context(plan.scratch()), stack.enter_context(server.fresh())
        track_verbs(server, url)
        lease = ("-Q", QUEUE, "--ttl", f"{LEASE:g}s")
        stack.enter_context(several(scratch, url, pools, WORKERS, *lease, JOBPOOL_SIGNING_KEY=KEY))
        idle = _window(server, url, pools, seconds)
        with Jobs(url, signing_key=KEY) as producer:
            nap = producer.define("nap", {"path": str(scratch / "notes"), "seconds": 10 * seconds})
            producer.enqueue_many([nap.queue(QUEUE)] * children)
            wait_for(lambda: producer.stats(QUEUE).leased == children or None, "a long job in each child")
        holding = _window(server, url, pools, seconds)
    return {f"idle: {what}": n for what, n in idle.items()} | {f"holding: {what}": n for what, n in holding.items()}


def _window(server: Server, url: str, pools: int, seconds: float) -> dict[str, float]:
    """Return what is asked meanwhile, a second; the counts come a second late at most (Postgres)."""
    with timed_verbs(server, url) as verbs:
        time.sleep(1.0)  # what was asked for this question is told by then
        with server.asked(url) as asked:
            cpu = server.cpu_seconds()
            time.sleep(seconds)
            cpu = server.cpu_seconds() - cpu
    found = {"requests": asked.commands / seconds / pools, "cpu": 100 * cpu / seconds}
    for name, verb in verbs.items():
        found[name] = verb.calls / (seconds + 1.0) / pools
        found[f"{name} took"] = verb.took / max(1, verb.calls)
    return found


def _shown(pools: int) -> dict[str, tuple[str, str]]:
    return {key: value for key, value in BUSY.items() if pools > 1 or key not in SHARES}


def _columns(name: str, samples: Sequence[dict[str, Any]], names: dict[str, tuple[str, str]]) -> list[Figure]:
    """Return a figure for each of the names."""
    return [median(f"{name}{what}", unit, [s[key] for s in samples]) for key, (unit, what) in names.items()]


def _places(broker: str, samples: dict[Spec, list[dict[str, Any]]], wire: dict[str, float]) -> list[Figure]:
    """Return bytes and connections, whatever the number of pools."""
    everything = [sample for each in samples.values() for sample in each]
    figures = [
        median(f"{broker}: connections a pool", "", [sample["connections"] for sample in everything]),
        median(f"{broker}: a job that waits", "B", [sample["waiting"] for sample in everything]),
    ]
    for kind in wire:
        traffic = [s["traffic"] for (_, jobs, _), each in samples.items() if jobs == kind for s in each]
        if broker == "Redis":
            figures.append(median(f"{broker}, {kind}: on the wire, both ways", "B/job", traffic))
        else:
            figures.append(median(f"{broker}, {kind}: on the wire, both ways", "B/job", [wire[kind]]))
            figures.append(median(f"{broker}, {kind}: write-ahead log", "B/job", traffic))
    return figures


def _model(broker: str, samples: Samples) -> list[Figure]:
    """Return the two constants of the broker, and what they give for each contest against what was measured."""
    points = {
        name: (statistics.median(s["requests"] for s in each), statistics.median(s["server"] for s in each))
        for name, each in samples.items()
    }
    job, request = fitted(list(points.values()))
    figures = [median(f"{broker}, model: {what}", "µs", [n]) for what, n in (("a job", job), ("a request", request))]
    given = {name: (job + request * requests) / cost for name, (requests, cost) in points.items()}
    return figures + [median(f"{name}: model / measured", "", [share]) for name, share in given.items()]


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b such that a + b x comes nearest to all y of the points (x, y), by the errors' share of y."""
    ones = sum(1 / y**2 for _, y in points)
    both = sum(x / y**2 for x, y in points)
    squares = sum((x / y) ** 2 for x, y in points)
    first, second = sum(1 / y for _, y in points), sum(x / y for x, y in points)
    whole = ones * squares - both**2
    return (first * squares - second * both) / whole, (second * ones - first * both) / whole
