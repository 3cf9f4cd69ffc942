"""The demo: enqueue, run a pool, sum up. Exit 0 when all is as it should be, else 1.

python -m stdlib_reports [--workers N] [--output FOLDER] [--reports N]
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import jobpool
from stdlib_reports import page, pool
from stdlib_reports.shelf import Shelf
from stdlib_reports.summary import Picture, differences, lines

PATIENCE = 120.0
"""Seconds after which the pool is told to stop: the demo takes a tenth of it on two cores."""

REPOSITORY = Path(__file__).resolve().parents[3]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit status."""
    options = _options(arguments)
    shelf = Shelf(options.output)
    clear(shelf)
    enqueued = pool.enqueue(shelf, options.reports)
    print(f"{enqueued.count} jobs enqueued: {len(enqueued.reports)} reports, and three jobs that misbehave")
    print(f"$ {shlex.join(pool.command(shelf, options.workers))}")
    began, cpu_before = time.monotonic(), _children_cpu()
    try:
        pool_exit = _work(shelf, options.workers, enqueued.count)
    except KeyboardInterrupt:
        print("stopped; what has not run is in the queue")
        return 130
    cost = f"{time.monotonic() - began:.1f} s, {_children_cpu() - cpu_before:.1f} s of processor time"
    shelf.put_index(page.index(shelf.totals()))
    return _sum_up(pool.picture(shelf, enqueued, pool_exit), shelf, cost)


def clear(shelf: Shelf) -> None:
    """Throw away what an earlier demo left in the folder, and nothing else."""
    shelf.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(shelf.reports, ignore_errors=True)
    for old in [shelf.ledger, *shelf.folder.glob("jobs.db*"), shelf.folder / "jobpool.log"]:
        old.unlink(missing_ok=True)
    shelf.prepare()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/demo", description="A report on every package of the standard library.")
    parser.add_argument(
        "-w", "--workers", type=int, default=max(4, len(os.sched_getaffinity(0))), help="child processes"
    )
    parser.add_argument("-o", "--output", type=Path, default=REPOSITORY / "demo-output", help="where everything is put")
    parser.add_argument("-r", "--reports", type=int, help="how many reports to write; as a default, all")
    return parser.parse_args(arguments)


def _work(shelf: Shelf, workers: int, count: int) -> int:
    """Run the pool until the queue is empty, and tell how far it is; its exit status."""
    with closing(jobpool.open_backend(pool.url_of(shelf))) as backend, pool.running(shelf, workers) as process:
        give_up = time.monotonic() + PATIENCE
        while not _ended(process, 0.2) and time.monotonic() < give_up:
            if sys.stdout.isatty():
                print(f"\r{count - pool.left(backend)} of {count} jobs", end="", flush=True)
    return process.returncode


def _ended(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _children_cpu() -> float:
    """Seconds; of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sum_up(picture: Picture, shelf: Shelf, cost: str) -> int:
    print(f"\n{picture.enqueued} jobs in {cost}\n")
    for line in lines(picture):
        print(f"  {line.what:<13} {line.count:>4}   {line.why}".rstrip())
        for inner in line.inner:
            print(f"  {'':<21} {inner}")
    _point(picture, shelf)
    wrong = differences(picture)
    for text in wrong:
        print(f"not as expected: {text}")
    return 1 if wrong else 0


def _point(picture: Picture, shelf: Shelf) -> None:
    jobpool_command = f"{Path(sys.executable).with_name('jobpool')} --backend {shlex.quote(pool.url_of(shelf))}"
    print(f"\nThe reports   {shelf.reports / 'index.html'}")
    print(f"The log       {shelf.folder / 'jobpool.log'}")
    print("Look next\n")
    for verb in ("stats", "dead list", f"inspect {picture.hang}", "dead retry reason:timeout --dry-run"):
        print(f"  {jobpool_command} {verb}")
    print("  jobpool top, in a second terminal, while the demo runs\n")


if __name__ == "__main__":
    sys.exit(main())
