"""`jobpool torture`: pools under faults on the user's own broker, in a queue of its own, and a count of every job."""

from __future__ import annotations

import secrets
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobpool.broker.config_file import from_directory, working_directory
from jobpool.cli.options import Command, as_json, option, time_option
from jobpool.cli.output import answer_json, asks_json, columns, note, table
from jobpool.cli.session import Session

if TYPE_CHECKING:
    from jobpool_torture.options import Options
    from jobpool_torture.result import Result
    from jobpool_torture.run import Phases, Run
    from jobpool_torture.schedule import Fault

FAILED = 1
OF_THE_RUN = ("minutes", "seed", "pools", "workers", "ttl", "rate", "faults")
"""Options that a schedule file brings along."""


@click.command("torture", cls=Command, short_help="Run pools under faults on your broker; count every job.")
@option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Length of the faults.  [default: 5]"
)
@option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of faults and jobs.  [default: random]")
@option("--pools", type=int, metavar="N", help="Number of pools.  [default: 3]")
@option("-w", "--workers", type=int, metavar="N", help="Worker processes of each pool.  [default: 4]")
@option("-Q", "--queue", metavar="NAME", help="Empty queue to use.  [default: a new one, torture-…]")
@time_option("--ttl", help="Length of a lease.  [default: 5s]")
@option("--rate", type=float, metavar="N", help="Jobs enqueued each second.  [default: 20]")
@option("--faults", metavar="KIND,…|all", help="Kinds of faults; `--faults help` lists them.  [default: all]")
@option(
    "--replay",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File with the faults of an earlier run, to repeat.",
)
@option("--shrink", is_flag=True, help="After a violation, look for a shorter schedule that still fails.")
@option("--restart-broker", metavar="COMMAND", help="Shell command that restarts the broker.")
@option("--directory", type=click.Path(file_okay=False), metavar="DIR", help="Empty folder for the run, which is kept.")
@option("--keep-all", is_flag=True, help="Keep folder, jobs and dead letters.")
@as_json
@click.pass_context
def torture(ctx: click.Context, /, session: Session, replay: str | None, shrink: bool, **given: Any) -> None:
    """Run pools under kills, stops, bad networks and moved clocks on your own broker; check the end of each job.

    It works in a queue of its own and empties it at the end. No other queue is touched, and the broker is neither
    configured nor flushed. Exits 0: nothing was lost, ended twice or left behind; 1: something was, or nobody can say.
    """
    if given["faults"] == "help":
        from jobpool_torture.schedule import KINDS

        table(columns("KIND, WHAT IT DOES~"), [[name, kind.about] for name, kind in KINDS.items()])
        return
    from jobpool_torture.options import check_folder

    options, faults = _read(session, replay, given)
    if shrink and options.queue and options.keep:
        raise click.UsageError("--shrink runs in --queue again and again, which --keep-all leaves full: omit one")
    is_named = given["directory"] is not None
    folder = check_folder(Path(given["directory"])) if is_named else Path(tempfile.mkdtemp(prefix="jobpool-torture-"))
    face = _Face(options, folder, session.log_level("warning") in ("info", "debug"), asks_json())
    try:
        result = face.run(faults)
    except BaseException:  # an interrupt too: at any end the folder is named, and the error goes on
        if any(folder.glob("*.log")):
            _told(f"logs and ledger: {folder}")
        elif not is_named:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    keeps = is_named or options.keep or not result.is_clean
    with ExitStack() as whatever_happens:
        if not keeps:
            whatever_happens.callback(shutil.rmtree, folder, ignore_errors=True)
        whatever_happens.callback(face.report, folder if keeps else None)
        if shrink and result.counts and not result.interrupted:
            face.shrink()
    ctx.exit(0 if result.is_clean else FAILED)


def _read(session: Session, replay: str | None, given: dict[str, Any]) -> tuple[Options, Sequence[Fault] | None]:
    """Return the options, and the faults of a schedule file. Raises `ConfigurationError` and `click.UsageError`."""
    from msgspec.structs import asdict

    from jobpool_torture.entry_point import read_schedule
    from jobpool_torture.options import Options, check_machine

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


class _Face:
    """The user's view of runs, and their interruption."""

    def __init__(self, options: Options, folder: Path, verbose: bool, json_: bool) -> None:
        from jobpool_torture.view import Progress

        self._options = options
        self._folder = folder
        self._verbose = verbose
        self._json = json_
        self._asked: Run | None = None  # the run that was asked for; those of a search come after it
        self._run: Run | None = None  # takes an interrupt, to heal and count; None = no run is under way
        self._progress = Progress()
        self._has_said = False
        self._gives_up = False

    def run(self, faults: Sequence[Fault] | None) -> Result:
        """Make the run, with its head and its progress shown. Raises as `entry_point.prepared` and `Run.go`."""
        with _interrupts(self._interrupt), self._progress:
            return self._go(self._options, self._folder, faults)

    def shrink(self) -> None:
        """Run shorter ones, and print a line for each."""
        from jobpool_torture.shrink import find_shorter

        assert self._asked is not None
        with _interrupts(self._interrupt):
            find_shorter(self._options, self._folder, self._asked.faults, self._go, _told)

    def _go(self, options: Options, folder: Path, faults: Sequence[Fault] | None) -> Result:
        from jobpool_torture import view
        from jobpool_torture.entry_point import prepared

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
        from jobpool_torture import view
        from jobpool_torture.shrink import SHORTEST

        assert self._asked is not None
        shortest = self._folder / SHORTEST
        about = self._asked, folder, shortest if shortest.exists() else None, self._replay_command(folder)
        if self._json:
            answer_json(view.document(*about))
        else:
            view.report(*about)

    def _tell(self, now: Phases) -> None:
        """Say once that the run was interrupted, and show how far it is."""
        if now.result.interrupted and not self._has_said:
            self._has_said = True
            _told("\ninterrupted: healing, draining for a short time, and counting; again = give up")
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
        from jobpool.broker.opening import redact
        from jobpool_torture.entry_point import SCHEDULE

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


def _told(text: str) -> None:
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
