"""From options to a result: the checks, the folder's files, the environment, the schedule, the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool_torture import schedule
from jobpool_torture.environment import Environment
from jobpool_torture.options import FAULTS_A_SECOND, Options, check_broker
from jobpool_torture.result import Result
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import KINDS, About, Fault

SCHEDULE = "schedule.json"  # the file of a run's folder with its faults


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
        about = {name: getattr(options, name) for name in About.__struct_fields__}
        (folder / SCHEDULE).write_text(schedule.dump(chosen, about))
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


def read_schedule(path: Path) -> tuple[list[Fault], About]:
    """Return the faults of a file, and the options that it brings along. Raises `ConfigurationError`."""
    try:
        return schedule.load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"--replay {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"--replay {path}: {error}") from error
