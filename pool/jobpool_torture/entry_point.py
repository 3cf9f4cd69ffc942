"""From options to a result: the checks, the folder's files, the environment, the schedule, the run; and shorter runs.

A failing schedule is shortened by delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", 2002). Ever smaller pieces are left out; a schedule that still fails without a piece stays without it. Runs
under real processes do not repeat exactly. The result is short and has failed; it need not be minimal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool_torture import schedule
from jobpool_torture.environment import Environment
from jobpool_torture.options import FAULTS_A_SECOND, Options, check_broker
from jobpool_torture.result import Result
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import KINDS, About, Fault

Part = TypeVar("Part")
SCHEDULE = "schedule.json"
SHORTEST = "shortest.json"
"""Files of a run's folder: the schedule; and the shortest part of it that has failed too."""

MAX_SHRINK_RUNS = 20
SHRINK_TAIL_S = 3.0  # seconds for which jobs still arrive after the last fault of a shorter schedule


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


class Watcher(Protocol):
    """A receiver of news. `begun`: before the pools are started; from then until `over` it may be interrupted."""

    def begun(self, run: Run, /) -> None: ...
    def tell(self, now: Phases, /) -> None: ...
    def over(self) -> None: ...


def run_once(options: Options, folder: Path, watcher: Watcher, faults: Sequence[Fault] | None = None) -> Result:
    """Run once, in an empty folder; `faults`: None = they are planned from the seed. No process is left afterwards.

    Raises:
        ConfigurationError, BackendUnavailable: Nothing was done; the text has the mend.
        JobpoolError: The pools did not come up, or the torture's own parts failed.
    """
    with ExitStack() as stack:
        wanted = options.faults or tuple(KINDS) if faults is None else {fault.kind for fault in faults}
        backend = open_backend(options.timed(options.backend))
        try:
            check_broker(backend, options)
            options = options.on_its_queue()
            found = backend.diagnose()
            told = [str(each) for each in found if each.is_bad or each.check.endswith(".server")]
            place = Environment(options, folder, backend, wanted)
        finally:
            backend.close()
        stack.callback(place.close)
        left_out = {kind: why for kind, why in place.nemesis.cannot().items() if kind in wanted}
        chosen = _plan(options, place) if faults is None else list(faults)
        (folder / SCHEDULE).write_text(schedule.dump(chosen, about(options)))
        run = Run(options, folder, place, chosen, watcher.tell, told)
        run.result.left_out = left_out
        watcher.begun(run)
        stack.callback(watcher.over)
        return run.go()


def _plan(options: Options, place: Environment) -> list[Fault]:
    wanted, cannot = options.faults or tuple(KINDS), place.nemesis.cannot()
    kinds = [kind for kind in wanted if kind not in cannot]
    if not kinds:
        reasons = {cannot[kind] for kind in wanted}
        raise ConfigurationError(f"none of these faults can be had here: {'; '.join(sorted(reasons))}")
    return schedule.plan(
        options.seed, seconds=options.seconds, pools=options.pools, kinds=kinds, ttl=options.ttl, rate=FAULTS_A_SECOND
    )


def about(options: Options) -> dict[str, Any]:
    """Return a schedule file's facts about its run."""
    return {name: getattr(options, name) for name in About.__struct_fields__}


def read_schedule(path: Path) -> tuple[list[Fault], About]:
    """Return the faults of a file, and the options that it brings along. Raises `ConfigurationError`."""
    try:
        return schedule.load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"--replay {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"--replay {path}: {error}") from error


def find_shorter(
    options: Options, folder: Path, faults: Sequence[Fault], watcher: Watcher, tell: Callable[[str], None]
) -> Path | None:
    """Replay parts of a schedule that has failed; return the file of the shortest that fails too, None = none does.

    The runs' folders are made in `folder`; `tell` is called with a line before and after each run. The file is there
    from the first failing part on, however the search ends.
    """
    tried = 0
    path = folder / SHORTEST

    def fails(part: list[Fault]) -> bool:
        nonlocal tried
        tried += 1
        one = folder / f"shrink{tried:02d}"
        if not _fails(options, one, part, watcher, lambda text: tell(f"run {tried}: {text}")):
            return False
        path.write_text(schedule.dump(part, about(replace(options, seconds=_seconds(part)))))
        return True

    longest = MAX_SHRINK_RUNS * _seconds(faults) / 60
    tell(f"looking for a shorter schedule: at most {MAX_SHRINK_RUNS} runs, of {longest:.0f} minutes of faults in all")
    with suppress(KeyboardInterrupt):
        shrink(list(faults), fails, most=MAX_SHRINK_RUNS)
    return path if path.exists() else None


def _fails(options: Options, folder: Path, part: list[Fault], watcher: Watcher, tell: Callable[[str], None]) -> bool:
    folder.mkdir(mode=0o700)
    begun = time.monotonic()
    tell(f"{len(part)} faults in {_seconds(part):.0f} s")
    try:
        result = run_once(replace(options, seconds=_seconds(part)), folder, watcher, part)
    except JobpoolError as error:
        tell(f"did not come to its end: {error}")
        return False
    found = ", ".join(f"{len(ids)} {count}" for count, ids in result.counts.items()) or result.doubt or "clean"
    tell(f"{found}, in {time.monotonic() - begun:.0f} s")
    if result.interrupted:
        raise KeyboardInterrupt
    return bool(result.counts)


def _seconds(faults: Sequence[Fault]) -> float:
    return max((fault.ends for fault in faults), default=0.0) + SHRINK_TAIL_S
