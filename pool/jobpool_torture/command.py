"""`jobpool torture`: pools under faults on the user's own broker, in a queue of its own, and a count of every job."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from jobpool.cli.options import Command, as_json, option, time_option
from jobpool.cli.output import asks_json, columns, table
from jobpool.cli.session import Session

FAILED = 1


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
    # Later than the rest: `jobpool --help` imports this module.
    from jobpool_torture.entry_point import AttendedRuns, note_if_open, read_options
    from jobpool_torture.options import check_folder

    options, faults = read_options(session, replay, given)
    if shrink and options.queue and options.keep:
        raise click.UsageError("--shrink runs in --queue again and again, which --keep-all leaves full: omit one")
    is_named = given["directory"] is not None
    folder = check_folder(Path(given["directory"])) if is_named else Path(tempfile.mkdtemp(prefix="jobpool-torture-"))
    runs = AttendedRuns(options, folder, session.log_level("warning") in ("info", "debug"), asks_json())
    try:
        result = runs.run(faults)
    except BaseException:  # an interrupt too: at any end the folder is named, and the error goes on
        if any(folder.glob("*.log")):
            note_if_open(f"logs and ledger: {folder}")
        elif not is_named:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    keeps = is_named or options.keep or not result.is_clean
    with ExitStack() as whatever_happens:
        if not keeps:
            whatever_happens.callback(shutil.rmtree, folder, ignore_errors=True)
        whatever_happens.callback(runs.report, folder if keeps else None)
        if shrink and result.counts and not result.interrupted:
            runs.shrink()
    ctx.exit(0 if result.is_clean else FAILED)
