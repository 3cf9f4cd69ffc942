"""`python -m bench`, or `scripts/bench`: run benchmarks and show their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench import (
    charts,
    claims,
    dispatch,
    efficiency,
    enqueue,
    faults,
    guards,
    latency,
    limits,
    memory,
    mixed,
    on_beanstalk,
    on_postgres,
    on_redis,
    on_servicebus,
    pools,
    report,
    restart,
    scale,
    start,
    throughput,
    timeouts,
)
from bench.figures import Section
from bench.plan import Plan
from bench.processes import Others

BENCHMARKS: dict[str, Callable[[Plan], Section]] = {
    "throughput": throughput.run,
    "dispatch": dispatch.run,
    "redis": on_redis.run,
    "postgres": on_postgres.run,
    "beanstalkd": on_beanstalk.run,
    "servicebus": on_servicebus.run,
    "enqueue": enqueue.run,
    "scale": scale.run,
    "guards": guards.run,
    "limits": limits.run,
    "pools": pools.run,
    "claims": claims.run,
    "mixed": mixed.run,
    "latency": latency.run,
    "timeouts": timeouts.run,
    "restart": restart.run,
    "start": start.run,
    "faults": faults.run,
    "memory": memory.run,
    "efficiency": efficiency.run,
}
GROUPS = {"peers": ("dispatch", "redis", "postgres", "latency", "timeouts", "memory"), "charts": ()}
"""Names that stand for several benchmarks, or none. The charts are drawn after either."""

README = Path(__file__).with_name("README.md")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice([*BENCHMARKS, *GROUPS]), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Few samples: a look, in some minutes; do not compare with it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything to this file, as JSON.")
@click.option("--write", is_flag=True, help="Put the tables into bench/README.md, and draw; `peers` does so.")
@click.option("--url", "urls", multiple=True, help="Backend for `throughput`; may be repeated. [memory and SQLite]")
@click.option("--broker-pid", "pids", multiple=True, type=int, help="A broker's process, for its CPU time.")
@click.option("--workers", default=16, show_default=True, type=click.IntRange(1), help="Children; peers have as many.")
@click.option("--jobs", default=0, type=click.IntRange(0), help="No-op jobs in a sample. [40,000; quick 10,000]")
@click.option("--rounds", default=0, type=click.IntRange(0), help="Interleaved rounds. [3 to 7; quick 2]")
@click.option("--no-peers", is_flag=True, help="Leave other queues out; else they are installed into .venv-peers.")
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Other checkout, for `start`.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, exists=True), help="Where databases lie. [/tmp]")
def main(
    names: tuple[str, ...],
    quick: bool,
    json_file: Path | None,
    write: bool,
    urls: tuple[str, ...],
    pids: tuple[int, ...],
    workers: int,
    jobs: int,
    rounds: int,
    no_peers: bool,
    against: Path | None,
    directory: Path | None,
) -> None:
    """Run the benchmarks named, or all.

    throughput, dispatch, redis, postgres, beanstalkd, servicebus, enqueue, scale, guards, limits, pools, claims, mixed,
    latency, timeouts, restart, start, faults, memory, efficiency.

    peers: those with other queues beside jobpool; then --write, unless --quick or --no-peers. charts: draw the charts
    of docs/benchmarks.md again, from the tables.
    """
    if write and (quick or no_peers):
        raise click.UsageError("--write is for what others may compare with: leave --quick and --no-peers out")
    plan = Plan(
        quick=quick,
        workers=workers,
        urls=urls,
        jobs=jobs,
        rounds=rounds,
        directory=directory,
        broker_pids=pids,
        peers=not no_peers,
        against=against,
    )
    about = report.machine()
    write = write or ("peers" in names and not (quick or no_peers))
    sections = [_run(name, plan) for name in _expanded(names)]
    if json_file:
        json_file.write_text(report.as_json(sections, about) + "\n")
    if write:
        report.write_readme(README, sections, about)
    if write or "charts" in names:
        charts.renew()


def _expanded(names: tuple[str, ...]) -> list[str]:
    """Return the benchmarks that the names stand for, each once; no name stands for all."""
    return list(dict.fromkeys(one for name in names or BENCHMARKS for one in GROUPS.get(name, (name,))))


def _run(name: str, plan: Plan) -> Section:
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    others = Others()
    section = replace(BENCHMARKS[name](plan), others=others.share())
    report.show(section, Console(width=None if sys.stdout.isatty() else 120))
    return section


if __name__ == "__main__":
    main(prog_name="scripts/bench")
