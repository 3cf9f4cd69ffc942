"""A program's first second: a pool with one job, `import jobpool`, a producer's first job. `--against`: two checkouts.

Each sample is a program of its own, whose modules are in the kernel's cache. The checkouts take turns.
"""

from __future__ import annotations

import compileall
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import servers
from bench.figures import Figure, Section, Target, median, ratio
from bench.plan import Plan
from bench.programs import LIMIT, ROOT, clean_environment
from bench.rounds import Contestants, Samples, interleaved
from jobpool.client.jobs import Jobs

TITLE = "start: a pool of 2 with one job in its queue, until it is empty; `import jobpool`; a producer's first job"
SAID = "the first job runs"
APP = f"""\
import jobpool

@jobpool.handler
def first(ctx: jobpool.JobContext) -> None:
    print({SAID!r})
"""
FIRST_ENQUEUE = "import jobpool, sys; jobpool.Jobs(sys.argv[1]).define('none', {}).queue('other').dispatch()"

MILLISECONDS = {"first": Target("≤", 500), "import jobpool CPU": Target("≤", 24), "enqueue": Target("≤", 195)}


def run(plan: Plan) -> Section:
    """Start programs by turns."""
    checkouts = {"": ROOT} | ({"before: ": plan.against} if plan.against else {})
    with plan.scratch() as directory, ExitStack() as stack:
        (directory / "firstapp.py").write_text(APP)
        for root in checkouts.values():  # a user's installation is compiled
            compileall.compile_dir(root / "pool", quiet=2)
            compileall.compile_dir(root / "backends", quiet=2)
        brokers = {"sqlite": f"sqlite:///{directory}/start.db"}
        try:
            brokers["redis"] = stack.enter_context(servers.redis(directory)).url
        except servers.ServerFailed as error:
            print(f"bench: {error}", file=sys.stderr)
        contestants: Contestants = {
            f"{checkout}{name}": sample
            for checkout, root in checkouts.items()
            for name, sample in _samples(root, directory, brokers)
        }
        samples = interleaved(contestants, plan.turns(15, 5))
    return Section("start", TITLE, _figures(samples))


def _samples(root: Path, directory: Path, brokers: dict[str, str]) -> list[tuple[str, Any]]:
    python = partial(_program, root, directory)
    found: list[tuple[str, Any]] = [("import jobpool", partial(python, "-c", "import jobpool"))]
    if "redis" in brokers:
        found.append(("enqueue", partial(python, "-c", FIRST_ENQUEUE, brokers["redis"])))
    return found + [(name, partial(_pool, python, url)) for name, url in brokers.items()]


def _pool(python: Any, url: str) -> dict[str, float]:
    with Jobs(url) as jobs:
        jobs.define("first", {}).dispatch()
    words = ("-A", "firstapp", "-b", url, "-w", "2", "--until-empty", "-Q", "default")
    found: dict[str, float] = python("-m", "jobpool", *words)
    return found


def _program(root: Path, directory: Path, *words: str) -> dict[str, float]:
    """Return the wall-clock and CPU time of a program in milliseconds, `first` = until its first job's line."""
    python = root / ".venv" / "bin" / "python"
    environment = clean_environment(JOBPOOL_RUNTIME_DIR=str(directory / "run"))
    found: dict[str, float] = {}
    before, begun = _cpu_s(), time.monotonic()
    with subprocess.Popen(
        [python if python.exists() else sys.executable, *words],
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None
        log = ""
        for line in program.stderr:
            log += line
            if SAID in line:
                found.setdefault("first", (time.monotonic() - begun) * 1e3)
        if program.wait(LIMIT):
            raise RuntimeError(f"{' '.join(words)} ended with {program.returncode}:\n{log[-2000:]}")
    ended = (time.monotonic() - begun) * 1e3
    if "first" in found:
        found["end"] = ended - found["first"]
    return found | {"wall": ended, "CPU": (_cpu_s() - before) * 1e3}


def _cpu_s() -> float:
    """Return the CPU seconds of ended programs, of which a pool awaits its own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


MEANS = {"first": "to the first job's line", "end": "from there to the exit", "wall": "in all", "CPU": "CPU"}


def _figures(samples: Samples) -> list[Figure]:
    found = []
    for name, rounds in samples.items():
        for key in rounds[0]:
            target = MILLISECONDS.get(f"{name} {key}") or MILLISECONDS.get(key)
            found.append(median(f"{name}, {MEANS[key]}", "ms", [one[key] for one in rounds], target))
            if before := samples.get(f"before: {name}"):
                both = [one[key] for one in rounds], [one[key] for one in before]
                found.append(ratio(f"{name}, {MEANS[key]}, against before", *both))
    return found
