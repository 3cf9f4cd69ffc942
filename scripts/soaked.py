"""Put results of scripts/soak into the table of tests/faults/rows.md.

for broker in sqlite redis postgres; do
    scripts/soak $broker --minutes 20 --seed 9 --json >$broker.json 2>$broker.log &
done; wait
python scripts/soaked.py sqlite.json redis.json postgres.json            show the section
python scripts/soaked.py sqlite.json redis.json postgres.json --write    write it
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobpool_torture.schedule import KINDS

PAGE = Path(__file__).resolve().parents[1] / "tests" / "faults" / "rows.md"
BEGIN, END = "<!-- soaked: begin -->\n", "<!-- soaked: end -->\n"
NAMES = {"sqlite": "SQLite", "redis": "Redis", "postgresql": "Postgres", "beanstalk": "beanstalkd"}
Run = dict[str, Any]


def section(runs: Sequence[Run]) -> str:
    """Return commands, circumstances and the table, between the two marks."""
    first = runs[0]
    brokers = [_scheme(run) for run in runs]
    commands = "\n".join(
        f"$ scripts/soak {_word(name)} --minutes {run['minutes']:g} --seed {run['seed']}"
        for name, run in zip(brokers, runs, strict=True)
    )
    restarts = ", ".join(
        f"{NAMES.get(name, name)} {run['faults']['by_kind'].get('broker.restart', 0)} times"
        for name, run in zip(brokers, runs, strict=True)
        if run["faults"]["by_kind"].get("broker.restart")
    )
    versions = f"jobpool {first['versions']['jobpool']}, Python {first['versions']['python']}"
    head = f"| | {' | '.join(NAMES.get(name, name) for name in brokers)} |\n|{' --- |' * (len(runs) + 1)}\n"
    lines = "".join(f"| {name} | {' | '.join(cell(run) for run in runs)} |\n" for name, cell in ROWS.items())
    killed = f" Killed with SIGKILL and started again: {restarts}." if restarts else ""
    return f"{BEGIN}\n```console\n{commands}\n```\n\n{versions}.{killed}\n\n{head}{lines}\n{END}"


def _scheme(run: Run) -> str:
    return str(run["backend"]).partition(":")[0]


def _word(scheme: str) -> str:
    return {"postgresql": "postgres"}.get(scheme, scheme)


def _job(name: str) -> Callable[[Run], str]:
    return lambda run: f"{run['jobs'][name]:,}"


def _count(*names: str) -> Callable[[Run], str]:
    return lambda run: f"{sum(run['counts'][name] for name in names):,}"


def _kinds(run: Run) -> str:
    told = f"{len(run['faults']['by_kind'])} of {len(KINDS)}"
    return f"{told}; left out: {'; '.join(whys)}" if (whys := sorted(set(run["left_out"].values()))) else told


def _descriptors(run: Run) -> str:
    more: dict[str, int] = {}
    for kinds in run["descriptors"].values():
        for kind, number in kinds.items():
            name = Path(kind).name  # of a file, wherever it was
            more[name] = more.get(name, 0) + number
    return ", ".join(f"{number:+} {kind}" for kind, number in more.items() if number) or "as before"


def _tracked(run: Run) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in run["tracked"].items()) or "none"


def _late(run: Run) -> str:
    late = run["late"]
    return f"{late['p50']:.2f} … {late['p99']:.2f} s" if late["n"] else "none"


ROWS: dict[str, Callable[[Run], str]] = {
    "jobs enqueued": _job("enqueued"),
    "runs": _job("runs"),
    "failed attempts": _job("failed"),
    "crashes": _job("crashed"),
    "dead letters, each of a job made to die": lambda run: f"{sum(run['dead'].values()):,}",
    "faults struck": lambda run: f"{run['faults']['struck']:,}",
    "kinds of fault": _kinds,
    "settlements that nobody answered": _job("unknown"),
    "settlements refused as too late": _job("refused"),
    "LOST": _count("LOST"),
    "GHOST": _count("GHOST"),
    "DOUBLE-SETTLE": _count("DOUBLE-SETTLE"),
    "RERUN": _count("RERUN"),
    "ATT": _count("ATT"),
    "CR": _count("CR"),
    "BLAMED": _count("BLAMED"),
    "RESULT, CANCEL, BATCH": _count("RESULT", "CANCEL", "BATCH"),
    "results, answers to cancels, and batches, judged by": _tracked,
    "STALLED": _count("STALLED"),
    "FENCE, KEY, POISON, LATE, STUCK, DIED, EXIT": _count(*["FENCE", "KEY", "POISON", "LATE", "STUCK", "DIED", "EXIT"]),
    "ORPHANS": _count("ORPHANS"),
    "FD": _count("FD"),
    "descriptors of the three masters, afterwards": _descriptors,
    "run more than once to the end": lambda run: f"{run['duplicates']:,}",
    "a hanging job's verdict after its timeout, p50 … p99": _late,
}


def rewritten(page: str, made: str) -> str:
    """Return the page with the section made anew."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: made, page, flags=re.DOTALL)


if __name__ == "__main__":
    found = section([json.loads(Path(path).read_text("utf-8")) for path in sys.argv[1:] if path != "--write"])
    if "--write" in sys.argv[1:]:
        PAGE.write_text(rewritten(PAGE.read_text("utf-8"), found), "utf-8")
    else:
        print(found)
