"""How a torture looks: its head, its progress (live on a terminal, a line now and then in a pipe), and its report."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from msgspec.structs import asdict

from jobpool.broker.opening import redact
from jobpool.cli.output import columns, cut, note, plural, say, table
from jobpool.message.printable import printable
from jobpool.message.units import format_duration
from jobpool_torture.baseline import listed
from jobpool_torture.result import MEANINGS, Result, quantiles
from jobpool_torture.run import Phases, Run

PROGRESS_EVERY_S = 10.0
SHOWN_IDS = 10


def head(run: Run, *, with_schedule: bool) -> None:
    """Show the run's plan, on stderr."""
    options = run.options
    note(f"torture of {redact(options.backend)}, queue {options.queue}, seed {options.seed}")
    kinds = sorted({fault.kind for fault in run.faults})
    note(
        f"{plural(options.pools, 'pool')} with {plural(options.workers, 'worker')} each, ttl {options.ttl:g} s,"
        f" {options.rate:g} jobs/s, {plural(len(run.faults), 'fault')} in {format_duration(options.seconds)}"
        f": {', '.join(kinds) or 'none'}"
    )
    for text in [*(f"the broker: {said}" for said in run.broker), *left_out(run.result)]:
        note(text)
    if with_schedule:
        for fault in run.faults:
            note(
                f"  {fault.at:8.2f} s  {fault.kind:<16} pool{fault.pool + 1}  {fault.seconds:6.2f} s"
                f"  pick {fault.pick}  amount {fault.amount:g}"
            )


def left_out(result: Result) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for kind, why in result.left_out.items():
        by_reason.setdefault(why, []).append(kind)
    for why, kinds in by_reason.items():
        yield f"left out: {', '.join(kinds)}: {why}"


class Progress:
    """The display of a run until `close`, as long as stderr is open: a closed terminal does no harm."""

    def __init__(self) -> None:
        self._is_drawn = False
        self._written = 0.0
        self._phase = ""

    def tell(self, now: Phases) -> None:
        with suppress(OSError):
            if sys.stderr.isatty():
                self._show(now)
            elif now.phase != self._phase or time.monotonic() - self._written >= PROGRESS_EVERY_S:
                self._written, self._phase = time.monotonic(), now.phase
                note(line(now))

    def _show(self, now: Phases) -> None:
        """Draw in place of what was shown before. The cursor goes back to its beginning, for what others may print."""
        room = shutil.get_terminal_size().columns - 1
        lines = [cut(printable(text), room) for text in (line(now), *(f"  {said}" for said in now.last))]
        sys.stderr.write("\r\x1b[J" + "\n".join(lines) + "\x1b[A" * (len(lines) - 1) + "\r")
        sys.stderr.flush()
        self._is_drawn = True

    def close(self) -> None:
        """Remove what is drawn."""
        with suppress(OSError):
            if self._is_drawn:
                sys.stderr.write("\r\x1b[J")
                sys.stderr.flush()


def line(now: Phases) -> str:
    """Return how far the run is, in one line."""
    tally = now.result.tally
    left = "" if (seconds := now.left) is None else f" {format_duration(seconds)} left"
    pending = "" if now.pending is None else f", {now.pending:,} to do"
    return (
        f"{now.phase}{left}: {tally.enqueued:,} enqueued, {tally.done:,} done, {tally.dead:,} dead{pending};"
        f" {tally.failed:,} failures, {tally.crashed:,} crashes, {tally.refused:,} refused,"
        f" {tally.unknown:,} unanswered; {plural(now.result.struck.total(), 'fault')}"
    )


def report(run: Run, folder: Path | None, shortest: Path | None, again: str) -> None:
    """Print the report for people, on stdout."""
    result = run.result
    table(
        columns("COUNT, >, MEANS~"),
        [[name, str(len(result.counts.get(name, ()))), means] for name, means in MEANINGS.items()],
    )
    for name, found in result.counts.items():
        for each in found[:SHOWN_IDS]:
            say(f"{name}: {each}")
        if len(found) > SHOWN_IDS:
            say(f"{name}: … and {len(found) - SHOWN_IDS} more")
    for text in _figures(result):
        say(text)
    say(f"{_verdict(result)}  jobpool {version('jobpool')}, Python {python_version()}")
    if folder is not None:
        say(f"ledger, logs, schedule.json, strikes.jsonl and left.jsonl: {folder}")
    if shortest is not None:
        say(f"the shortest schedule that failed too: {shortest}")
    say(f"again: {again}")


def _figures(result: Result) -> Iterator[str]:
    tally = result.tally
    yield (
        f"jobs: {tally.enqueued:,} enqueued, and follow-ups; {tally.runs:,} runs, {tally.done:,} done,"
        f" {tally.failed:,} failed, {tally.crashed:,} crashes, {tally.dead:,} dead, {result.duplicates:,} run twice,"
        f" {result.overlaps:,} beside themselves"
        f"{f', {result.excused:,} not judged by their counters' if result.excused else ''}"
    )
    yield f"dead letters: {', '.join(f'{count} {reason}' for reason, count in result.dead.items()) or 'none'}"
    if result.tracked:
        yield f"tracked: {', '.join(f'{count:,} {name}' for name, count in result.tracked.items())}"
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(result.struck.items()))
    missed = f"; {result.missed} found nothing to strike" if result.missed else ""
    yield f"faults: {result.struck.total()} ({struck or 'none'}){missed}"
    late = quantiles(result.late)
    if late["n"]:
        yield (
            f"timeouts: {late['n']:g} in pools that nothing held up, given their verdict {late['p50']:.2f} s (p50),"
            f" {late['p99']:.2f} s (p99), {late['max']:.2f} s (max) past their time"
        )
    descriptors = ", ".join(f"{pool} {listed(kinds)}" for pool, kinds in result.descriptors.items())
    yield f"descriptors: {descriptors or 'not compared'}"
    yield f"seconds: {', '.join(f'{name} {seconds:.0f}' for name, seconds in result.seconds.items())}"
    yield from left_out(result)
    yield from (f"problem: {text}" for text in result.problems)


def _verdict(result: Result) -> str:
    if result.counts:
        return f"{plural(result.violations, 'violation')}."
    if result.doubt:
        return f"no violation, and not clean: {result.doubt}."
    left = f"; {plural(result.left, 'job')} not done" if result.left else ""
    return f"clean, as far as it came{left}." if result.interrupted else "clean."


def document(run: Run, folder: Path | None, shortest: Path | None, again: str) -> dict[str, Any]:
    options = run.options
    told = ("queue", "seed", "pools", "workers", "ttl", "rate")
    return {
        "backend": redact(options.backend),
        **{name: getattr(options, name) for name in told},
        "minutes": options.seconds / 60,
        **run.result.to_dict(),
        "schedule": [asdict(fault) for fault in run.faults],
        "folder": None if folder is None else str(folder),
        "shortest": None if shortest is None else str(shortest),
        "broker": list(run.broker),
        "versions": {"jobpool": version("jobpool"), "python": python_version()},
        "again": again,
    }
