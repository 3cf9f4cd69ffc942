"""How quick producers are, against a bare client that sends the same commands; and how quick the peers' are."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench import servers
from bench.contestants import Contest
from bench.figures import Figure, Section, Target, median, ratio
from bench.peers import environment, fleet, running
from bench.plan import Plan
from bench.programs import sample
from bench.rounds import interleaved

TITLE = "jobs a second of one producer, signed: one by one, and a thousand at a time"
NOTES = [
    "`bare client`: redis-py or psycopg alone, sending the commands that jobpool has sent, by turns with jobpool.",
    "Of the peers, PgQueuer and Procrastinate enqueue a thousand in one statement; the others know single jobs only.",
]
KINDS = ("single", "bulk", "bulk, defined")
TARGET = Target("≥", 0.6)
BLOCKS = 10

PEERS = {
    "Redis": {"Celery": fleet.CELERY, "Dramatiq": fleet.DRAMATIQ, "Huey": fleet.HUEY},
    "Postgres": {"PgQueuer": fleet.PGQUEUER, "Procrastinate": fleet.PROCRASTINATE},
}


def run(plan: Plan) -> Section:
    """Run interleaved rounds, in each of them many blocks by turns; ratios within the blocks."""
    if plan.peers:
        environment.ensure()
    with servers.both(plan) as brokers:
        contestants: dict[str, Contest] = {}
        for name, server in brokers.items():
            contestants[name] = partial(_jobpool, plan, server)
            if plan.peers:
                contestants |= {
                    f"{name}, {who}": partial(_peer, plan, server, which) for who, which in PEERS[name].items()
                }
        samples = interleaved(contestants, plan.turns(3))
    figures = [figure for name, each in samples.items() for figure in _figures(name, each)]
    peers = [who.lower() for each in PEERS.values() for who in each] if plan.peers else []
    return Section("enqueue", TITLE, figures, [*NOTES, environment.versions(peers)])


def _jobpool(plan: Plan, server: servers.Server) -> dict[str, Any]:
    with server.fresh() as url:
        return sample("samples.enqueue", url=url, blocks=plan.pick(BLOCKS, 4, 2), single=plan.pick(500, 100, 5), bulk=2)


def _peer(plan: Plan, server: servers.Server, which: fleet.Peer) -> dict[str, Any]:
    with server.fresh() as url:
        found = running.produce(
            which, url, "enqueue", single=plan.pick(2000, 500, 20), bulk=plan.pick(10_000, 2000, 20)
        )
    return {kind: [rate] for kind, rate in found.items()}


def _figures(name: str, samples: list[dict[str, Any]]) -> list[Figure]:
    figures = []
    for kind in KINDS:
        ours, bare = _all(samples, kind), _all(samples, f"bare {kind}")
        if ours:
            figures.append(median(f"{name}: {kind}", "jobs/s", ours))
        if bare:
            figures.append(median(f"{name}, bare client: {kind}", "jobs/s", bare))
            figures.append(ratio(f"{name} / bare client: {kind}", ours, bare, TARGET))
    return figures


def _all(samples: list[dict[str, Any]], kind: str) -> list[float]:
    return [rate for found in samples for rate in found.get(kind, [])]
