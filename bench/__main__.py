"""`python -m bench`, or `scripts/bench`: run benchmarks and show their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench import dispatch, efficiency, latency, memory, report, restart, throughput, timeouts
from bench.figures import Section
from bench.plan import Plan
from bench.processes import Others

BENCHMARKS: dict[str, Callable[[Plan], Section]] = {
    "throughput": throughput.run,
    "dispatch": dispatch.run,
    "latency": latency.run,
    "timeouts": timeouts.run,
    "restart": restart.run,
    "memory": memory.run,
    "efficiency": efficiency.run,
}
README = Path(__file__).with_name("README.md")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Few samples: a look, in about a minute; do not compare with it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything to this file, as JSON.")
@click.option("--write", is_flag=True, help="Put the tables into bench/README.md; only with all benchmarks, in full.")
@click.option("--url", "urls", multiple=True, help="Backend for `throughput`; may be repeated. [memory and SQLite]")
@click.option("--broker-pid", "pids", multiple=True, type=int, help="A broker's process, for its CPU time.")
@click.option("--workers", default=16, show_default=True, type=click.IntRange(1), help="In throughput and dispatch.")
@click.option("--jobs", default=0, type=click.IntRange(0), help="No-op jobs in a sample. [40,000; quick 10,000]")
@click.option("--rounds", default=0, type=click.IntRange(0), help="Interleaved rounds. [3 to 7; quick 2]")
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
    directory: Path | None,
) -> None:
    """Run the benchmarks named, or all: throughput, dispatch, latency, timeouts, restart, memory, efficiency."""
    if write and (names or quick):
        raise click.UsageError("--write is for a full run of all benchmarks: leave the names and --quick out")
    plan = Plan(
        quick=quick, workers=workers, urls=urls, jobs=jobs, rounds=rounds, directory=directory, broker_pids=pids
    )
    about = report.machine()
    sections = [_run(name, plan) for name in names or BENCHMARKS]
    if json_file:
        json_file.write_text(report.as_json(sections, about) + "\n")
    if write:
        report.write_readme(README, sections, about)


def _run(name: str, plan: Plan) -> Section:
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    others = Others()
    section = replace(BENCHMARKS[name](plan), others=others.share())
    report.show(section, Console(width=None if sys.stdout.isatty() else 120))
    return section


if __name__ == "__main__":
    main(prog_name="scripts/bench")
