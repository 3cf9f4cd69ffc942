"""From the words of a command line to results: the checks, the environment, the schedule, the runs, and interrupts."""

from __future__ import annotations

import secrets
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from jobpool.broker.config_file import from_directory, working_directory
from jobpool.broker.opening import open_backend, redact
from jobpool.cli.output import answer_json, note
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError
from jobpool_torture import schedule, shrink, view
from jobpool_torture.environment import Environment
from jobpool_torture.options import FAULTS_A_SECOND, Options, check_broker, check_machine
from jobpool_torture.result import Result
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import KINDS, About, Fault

SCHEDULE = "schedule.json"  # the file of a run's folder with its faults
OF_THE_RUN = ("minutes", "seed", "pools", "workers", "ttl", "rate", "faults")
"""Options that a schedule file brings along."""


def read_options(session: Session, replay: str | None, given: dict[str, Any]) -> tuple[Options, Sequence[Fault] | None]:
    """Return the options, and the faults of a schedule file. Raises `ConfigurationError` and `click.UsageError`."""
    run = {name: given[name] for name in OF_THE_RUN if given[name] is not None}
    faults: Sequence[Fault] | None = None
    if replay is not None:
        if run:
            raise click.UsageError(f"--replay takes --{next(iter(run))} from its file: leave it out")
        faults, about = read_schedule(Path(replay))
        run = asdict(about)
    else:
        run = _translated(run)
    options = Options(
        from_directory(session.settings().backend, working_directory()),
        **run,
        queue=given["queue"] or "",
        restart_broker=given["restart_broker"] or "",
        keep=given["keep_all"],
    )
    check_machine(options, Path(given["directory"] or tempfile.gettempdir()))
    return options, faults


def _translated(run: dict[str, Any]) -> dict[str, Any]:
    run = {"seed": secrets.randbelow(1 << 31), **run}
    if "minutes" in run:
        run["seconds"] = 60 * run.pop("minutes")
    if "faults" in run:
        words = [word.strip() for word in run["faults"].split(",") if word.strip()]
        if not words:
            raise click.UsageError("--faults names no kind: leave it out for all of them")
        run["faults"] = () if "all" in words else tuple(dict.fromkeys(words))
    return run


def read_schedule(path: Path) -> tuple[list[Fault], About]:
    """Return the faults of a file, and the options that it brings along. Raises `ConfigurationError`."""
    try:
        return schedule.load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"--replay {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"--replay {path}: {error}") from error


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
        (folder / SCHEDULE).write_text(schedule.dump(faults, options.about()))
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


class AttendedRuns:
    """Runs that a person looks at, and may interrupt."""

    def __init__(self, options: Options, folder: Path, verbose: bool, json_: bool) -> None:
        self._options = options
        self._folder = folder
        self._verbose = verbose
        self._json = json_
        self._asked: Run | None = None  # the run that was asked for; those of a search come after it
        self._run: Run | None = None  # takes an interrupt, to heal and count; None = no run is under way
        self._progress = view.Progress()
        self._has_said = False
        self._gives_up = False

    def run(self, faults: Sequence[Fault] | None) -> Result:
        """Make the run, with its head and its progress shown. Raises as `prepared` and `Run.go`."""
        with _interrupts(self._interrupt), closing(self._progress):
            return self._go(self._options, self._folder, faults)

    def shrink(self) -> None:
        """Run shorter ones, and print a line for each."""
        assert self._asked is not None
        with _interrupts(self._interrupt):
            shrink.find_shorter(self._options, self._folder, self._asked.faults, self._go, note_if_open)

    def _go(self, options: Options, folder: Path, faults: Sequence[Fault] | None) -> Result:
        self._has_said = False
        with prepared(options, folder, self._tell, faults) as run:
            self._run = run
            try:
                if self._asked is None:
                    self._asked = run
                    with suppress(OSError):
                        view.head(run, with_schedule=self._verbose)
                return run.go()
            finally:
                self._run = None

    def report(self, folder: Path | None) -> None:
        """Print the answer. `folder`: None = it is removed."""
        assert self._asked is not None
        shortest = self._folder / shrink.SHORTEST
        about = self._asked, folder, shortest if shortest.exists() else None, self._replay_command(folder)
        if self._json:
            answer_json(view.document(*about))
        else:
            view.report(*about)

    def _tell(self, now: Phases) -> None:
        """Say once that the run was interrupted, and show how far it is."""
        if now.result.interrupted and not self._has_said:
            self._has_said = True
            note_if_open("\ninterrupted: healing, draining for a short time, and counting; again = give up")
        if self._run is self._asked:
            self._progress.tell(now)

    def _interrupt(self, number: int) -> None:
        """Interrupt the run. Called by a signal, in the middle of anything: it writes nothing."""
        if self._gives_up:  # processes are being killed: an interrupt now would leave some behind
            return
        if self._run is None:
            self._gives_up = True
            raise KeyboardInterrupt
        if not self._run.result.interrupted:
            self._run.interrupt()
        elif number != signal.SIGHUP:  # of one closed terminal there may be two: the kernel's, and the shell's
            self._gives_up = True
            raise KeyboardInterrupt

    def _replay_command(self, folder: Path | None) -> str:
        """Return the command that strikes the same faults again: of the file if it is kept, else of the seed."""
        options = self._options
        flags: dict[str, object] = {"backend": redact(options.backend)}
        if folder is not None:
            flags["replay"] = folder / SCHEDULE
        else:
            flags |= {"minutes": f"{options.seconds / 60:g}", "seed": options.seed, "pools": options.pools}
            flags |= {"workers": options.workers, "ttl": f"{options.ttl:g}", "rate": f"{options.rate:g}"}
            flags["faults"] = ",".join(options.faults)
        flags |= {"queue": options.queue, "restart-broker": options.restart_broker}
        told = [(f"--{flag}", str(value)) for flag, value in flags.items() if value != ""]
        return shlex.join(["jobpool", "torture", *chain.from_iterable(told)])


def note_if_open(text: str) -> None:
    """Print a line on stderr, if it is open: a closed terminal does not end a run."""
    with suppress(OSError):
        note(text)


@contextmanager
def _interrupts(handle: Callable[[int], None]) -> Iterator[None]:
    """Let Ctrl-C, TERM, and HUP of a closed terminal call `handle`, unless they are ignored (nohup)."""
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, lambda number, _: handle(number)) for number in heard}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
