"""How long an idle pool takes to begin a job, and what it costs to be idle; its peers beside it."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bench import servers
from bench.beanstalk_server import beanstalkd
from bench.figures import Figure, Section, Target, median, percentile, ratio
from bench.live_pool import LivePool, live_pool, wait_for_notes
from bench.peers import environment, fleet, running
from bench.plan import Plan
from bench.processes import total_cpu
from bench.programs import ROOT, SampleFailed
from bench.samples.bare_way import Way, open_way

TITLE = "idle pools of 16: from the call of enqueue to the handler's first line"
PEERS = ("celery", "dramatiq", "huey", "pgqueuer")
SHORTEST_GAP = 0.02
LONGEST_GAP = 0.2

REST = 1.5
"""Seconds between the last job and what is taken for idleness."""


SQLITE = (Target("≤", 1.8), Target("≤", 50))
REDIS = (Target("≤", 1), Target("≤", 4))
POSTGRES = (Target("≤", 2.5), Target("≤", 6))
BEANSTALKD = (Target("≤", 5), None)
"""Of the median and of the 99th percentile, in milliseconds."""

Targets = tuple[Target | None, Target | None]


def run(plan: Plan) -> Section:
    """Sample at random distances, so that they meet every phase of timers."""
    if plan.peers:
        environment.ensure()
    figures = _of_pool(plan, "SQLite", SQLITE)
    with plan.scratch() as scratch, servers.redis(scratch) as server:
        figures += _of_pool(plan, "Redis", REDIS, server)
        for name, peer in {"Huey": fleet.HUEY, "Celery": fleet.CELERY, "Dramatiq": fleet.DRAMATIQ}.items():
            figures += _of_peer(plan, f"Redis, {name}", peer, server)
    with plan.scratch() as scratch, servers.postgres(scratch) as server:
        figures += _of_pool(plan, "Postgres", POSTGRES, server)
        figures += _of_peer(plan, "Postgres, PgQueuer", fleet.PGQUEUER, server)
    with plan.scratch() as scratch, beanstalkd(scratch) as server:
        figures += _of_pool(plan, "beanstalkd", BEANSTALKD, server)
    return Section("latency", TITLE, figures, [environment.versions(PEERS if plan.peers else ())])


def _workers(plan: Plan) -> int:
    return plan.pick(16, 16, 2)


def _of_pool(plan: Plan, name: str, targets: Targets, server: servers.Server | None = None) -> list[Figure]:
    if server is None:
        return _figures(plan, name, targets, None, "")
    with server.fresh() as url:
        return _figures(plan, name, targets, server, url)


def _figures(plan: Plan, name: str, targets: Targets, server: servers.Server | None, url: str) -> list[Figure]:
    with live_pool(plan, _workers(plan), broker=url) as pool:
        figures = _waits(plan, name, targets, pool, url)
        rest, seconds = (0.1, 0.2) if plan.tiny else (REST, plan.pick(15, 5))
        figures += _idle(pool, name, rest, seconds, server, url)
    return figures


def _waits(plan: Plan, name: str, targets: Targets, pool: LivePool, url: str) -> list[Figure]:
    """Let the pool and the bare way take turns: the pace of a machine drifts."""
    turns, jobs = plan.pick(8, 2, 1), plan.pick(26, 26, 4)
    notes = pool.notes.with_name("bare-notes")
    ours: list[list[Start]] = []
    least: list[list[Start]] = []
    with _bare_way(url or f"sqlite:///{notes}.db", notes) as way:
        for turn in range(turns):
            numbers = range(turn * jobs, (turn + 1) * jobs)
            ours.append(_starts(lambda number: pool.enqueue("stamp", path=str(pool.notes), number=number), numbers))
            least.append(_starts(way.put, numbers))
        waits, bare_waits = _until_first_lines(ours, pool.notes), _until_first_lines(least, notes)
    calls = [start.call_ms for turn in ours for start in turn]
    medians, bare_medians = map(statistics.median, waits), map(statistics.median, bare_waits)
    return [
        *_percentiles(name, list(chain(*waits)), targets),
        percentile(f"{name}: of it, until enqueue returned", "ms", calls, 50),
        percentile(f"{name}: the bare way", "ms", list(chain(*bare_waits)), 50),
        ratio(f"{name}: pool / bare way", list(medians), list(bare_medians)),
    ]


def _percentiles(name: str, waits: list[float], targets: Targets) -> list[Figure]:
    what = f"{name}: enqueue → first line"
    return [percentile(what, "ms", waits, rank, target) for rank, target in zip((50, 99), targets, strict=True)]


class Start(NamedTuple):
    """A job that was enqueued. `called`: CLOCK_MONOTONIC seconds. `call_ms`: for how long the call blocked."""

    number: int
    called: float
    call_ms: float


def _starts(put: Callable[[int], object], numbers: range) -> list[Start]:
    """Enqueue at random distances. The first is left out: it comes after a longer rest, or opens the broker."""
    starts = []
    for number in numbers:
        time.sleep(random.uniform(SHORTEST_GAP, LONGEST_GAP))
        called = time.monotonic()
        put(number)
        starts.append(Start(number, called, (time.monotonic() - called) * 1e3))
    return starts[1:]


def _until_first_lines(turns: list[list[Start]], notes: Path) -> list[list[float]]:
    """Return milliseconds from each call to the job's own line. The last job is the last to write one."""
    begun = {int(number): float(at) for number, at in wait_for_notes(notes, turns[-1][-1].number + 1)}
    return [[(begun[start.number] - start.called) * 1e3 for start in turn] for turn in turns]


@contextmanager
def _bare_way(url: str, notes: Path) -> Iterator[Way]:
    """Yield the producer's end; the taker and its child are processes of their own."""
    command = [sys.executable, "-m", "bench.samples.bare_way", json.dumps({"url": url, "notes": str(notes)})]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as taker:
        try:
            if not (taker.stdout and taker.stdout.readline()):
                raise SampleFailed("the taker of the bare way did not start")
            with closing(open_way(url)) as way:
                yield way
        finally:
            taker.kill()


def _idle(
    pool: LivePool, name: str, rest: float, seconds: float, server: servers.Server | None, url: str
) -> list[Figure]:
    """Return the cost of idleness: of all processes of the pool, and of its broker."""
    pool.jobs.close()  # Postgres counts a session's transactions when it is over, or some time later
    time.sleep(rest)
    pids = pool.processes()
    with server.asked(url) if server else nullcontext(servers.Asked()) as asked:
        cpu, begun = total_cpu(pids), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begun
        share = (total_cpu(pids) - cpu) / passed * 100
    figures = [median(f"{name}: CPU of the idle pool, all processes", "% of a core", [share], Target("≤", 1))]
    if server:
        rate = asked.commands / passed
        figures.append(median(f"{name}: broker commands of the idle pool", "/s", [rate], Target("≤", 10)))
    if asked.within:
        figures.append(median(f"{name}: and inside its scripts", "/s", [asked.within / passed]))
    return figures


def _of_peer(plan: Plan, name: str, peer: fleet.Peer, server: servers.Server) -> list[Figure]:
    if not plan.peers:
        return []
    gaps = (SHORTEST_GAP, LONGEST_GAP)
    with plan.scratch() as scratch:
        waits = running.latencies(peer, server, _workers(plan), plan.pick(100, 30, 3), scratch, gaps=gaps)
    return _percentiles(name, [wait * 1e3 for wait in waits], (None, None))
