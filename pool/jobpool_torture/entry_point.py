"""From options to a result: the checks, the folder's files, the environment, the schedule, the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from jobpool.broker.opening import open_backend
from jobpool.errors import ConfigurationError
from jobpool_torture import schedule
from jobpool_torture.environment import Environment
from jobpool_torture.options import FAULTS_A_SECOND, Options, check_broker
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import KINDS, About, Fault

SCHEDULE = "schedule.json"  # the file of a run's folder with its faults


@contextmanager
def prepared(
    options: Options, folder: Path, tell: Callable[[Phases], None], faults: Sequence[Fault] | None = None
) -> Iterator[Run]:
    """Yield a run, to go in an empty folder and `tell` how far it is. No process is left afterwards.

    `faults`: None = they are planned from the seed. Raises `ConfigurationError` or `BackendUnavailable`: nothing was
    done; the text has the mend.
    """
    wanted = options.faults or tuple(KINDS) if faults is None else {fault.kind for fault in faults}
    with closing(open_backend(options.timed(options.backend))) as backend:
        check_broker(backend, options)
        options = options.on_its_queue()
        told = [str(each) for each in backend.diagnose() if each.is_bad or each.check.endswith(".server")]
        environment = Environment(options, folder, backend, wanted)
    with closing(environment):
        left_out = {kind: why for kind, why in environment.nemesis.cannot().items() if kind in wanted}
        if faults is None:
            faults = _plan(options, [kind for kind in wanted if kind not in left_out], left_out)
        (folder / SCHEDULE).write_text(schedule.dump(faults, about(options)))
        run = Run(environment, faults, tell, told)
        run.result.left_out = left_out
        yield run


def _plan(options: Options, kinds: Sequence[str], left_out: Mapping[str, str]) -> list[Fault]:
    if not kinds:
        reasons = "; ".join(sorted(set(left_out.values())))
        raise ConfigurationError(f"none of these faults can be had here: {reasons}")
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
