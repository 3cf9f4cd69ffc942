"""The search for a shorter schedule that fails too, by delta debugging.

Ever smaller pieces are left out; a schedule that still fails without a piece stays without it. See "Simplifying and
Isolating Failure-Inducing Input" by Zeller and Hildebrandt, 2002. Runs of real processes do not repeat exactly. So the
result is short and has failed, and need not be minimal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from jobpool.errors import JobpoolError
from jobpool_torture import schedule
from jobpool_torture.options import Options
from jobpool_torture.result import Result
from jobpool_torture.schedule import Fault

Part = TypeVar("Part")
Go = Callable[[Options, Path, Sequence[Fault]], Result]
"""Makes one run in an empty folder, with these faults."""

SHORTEST = "shortest.json"  # the file of a run's folder with the shortest part of its schedule that has failed too
MAX_RUNS = 20
TAIL_S = 3.0  # seconds for which jobs still arrive after the last fault of a shorter schedule


def shrink(faults: Sequence[Part], fails: Callable[[list[Part]], bool], *, most: int = 100) -> list[Part]:
    """Return a part of `faults`, in their order, for which `fails` was true: as short as `most` runs let it become.

    `fails` runs a part, and says whether it failed; it is never asked for the same one twice, nor for all of them.
    """
    known: set[tuple[int, ...]] = set()
    kept = list(faults)
    pieces = 2

    def ask(part: list[Part]) -> bool:
        key = tuple(map(id, part))
        if len(known) >= most or key in known:
            return False
        known.add(key)
        return fails(part)

    while kept and len(known) < most:
        shorter = next((part for part in _without_one(kept, pieces) if ask(part)), None)
        if shorter is not None:
            kept, pieces = shorter, max(2, pieces - 1)
        elif pieces >= len(kept):
            break
        else:
            pieces = min(len(kept), 2 * pieces)
    return kept


def _without_one(items: list[Part], pieces: int) -> Iterator[list[Part]]:
    """Yield `items` without each of `pieces` pieces of nearly the same length; nothing if there is only one item."""
    pieces = min(pieces, len(items))
    edges = [len(items) * index // pieces for index in range(pieces + 1)]
    for begin, end in itertools.pairwise(edges):
        yield items[:begin] + items[end:]


def find_shorter(
    options: Options, folder: Path, faults: Sequence[Fault], go: Go, tell: Callable[[str], None]
) -> Path | None:
    """Replay parts of a schedule that has failed; return the file of the shortest that fails too, None = none does.

    The runs' folders are made in `folder`; `tell` is called with a line before and after each run. The file is there
    from the first failing part on, however the search ends.
    """
    numbers = itertools.count(1)
    path = folder / SHORTEST

    def fails(part: list[Fault]) -> bool:
        number, shorter = next(numbers), replace(options, seconds=_seconds(part))
        own, begun = folder / f"shrink{number:02d}", time.monotonic()
        own.mkdir(mode=0o700)
        tell(f"run {number}: {len(part)} faults in {shorter.seconds:.0f} s")
        try:
            result = go(shorter, own, part)
        except JobpoolError as error:
            tell(f"run {number}: did not come to its end: {error}")
            return False
        found = ", ".join(f"{len(ids)} {count}" for count, ids in result.counts.items()) or result.doubt or "clean"
        tell(f"run {number}: {found}, in {time.monotonic() - begun:.0f} s")
        if result.interrupted:
            raise KeyboardInterrupt
        if result.counts:
            path.write_text(schedule.dump(part, shorter.about()))
        return bool(result.counts)

    longest = MAX_RUNS * _seconds(faults) / 60
    with suppress(KeyboardInterrupt):
        tell(f"looking for a shorter schedule: at most {MAX_RUNS} runs, of {longest:.0f} minutes of faults in all")
        shrink(list(faults), fails, most=MAX_RUNS)
    return path if path.exists() else None


def _seconds(faults: Sequence[Fault]) -> float:
    return max((fault.at + fault.seconds for fault in faults), default=0.0) + TAIL_S
