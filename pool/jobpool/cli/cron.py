"""`jobpool cron run | list | next`: fire what the app has scheduled, and see when that is."""

from __future__ import annotations

import contextlib
import heapq
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click
from msgspec import structs

from jobpool.cli.main import logged_failure
from jobpool.cli.options import COMMON_KEYS, Command, Function, as_json, option, refuse, setting
from jobpool.cli.output import answer, asks_json, columns, note
from jobpool.cli.session import Session, warn_of_secrets
from jobpool.cron.firing import Firing
from jobpool.cron.records import SILENT, SILENT_MEND, Record, load, silent_until
from jobpool.cron.scheduler import Planned, Scheduler, plan
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.message.definition import rfc3339
from jobpool.message.names import nearest_or_all
from jobpool.telemetry.logs import configure

if TYPE_CHECKING:
    from jobpool.ipc.scheduler_process import CronStart

LISTED = columns("NAME!~, EXPRESSION, ZONE, QUEUE, LAST, NEXT, FIRES~, OWNER~")
COMING = columns("TIME, LOCAL TIME, NAME!~")
FIRED = columns("NAME!, INSTANT, STATUS, MESSAGE, SECONDS>, WHY~")


def app(function: Function) -> Function:
    """Add the options of the app, and of the environment in which its schedules fire."""
    return setting("apps", "Options")(setting("cron_environment", "Options")(function))


@click.command("run", cls=Command, common=COMMON_KEYS, short_help="Run a scheduler until told to stop.")
@option("--once", is_flag=True, help="Fire due and missed schedules, and exit.")
@option("--test-time", metavar="TIME", help="Fire the schedules of this minute (ISO 8601) off the record, and exit.")
@option("--only-scheduler", is_flag=True, help="Assert that no other scheduler runs, for brokers without keys.")
@setting("cron_grace", "Options")
@app
@as_json
def run(session: Session, once: bool, test_time: str | None, **flags: Any) -> int:
    """Run the app's schedules, beside or without pools. Of any number of schedulers, one fires each instant.

    \b
      jobpool cron run --app myapp.jobs
      jobpool cron run --app myapp.jobs --test-time 2026-03-29T02:30+01:00

    Without --once or --test-time it runs until SIGTERM, SIGINT or SIGHUP; a second one ends an inline job, too. It must
    get an answer at the start, and waits out a later outage or refusal. --test-time really enqueues and runs the jobs.
    """
    from jobpool.cron.service import opened, report, runner_of, say_output, serve, warn_of_unfit

    if once and test_time is not None:
        raise click.UsageError("--once and --test-time exclude each other")
    if asks_json() and not once and test_time is None:
        raise click.UsageError("--json is for --once or --test-time; a log of JSON lines is --log-format json")
    if test_time is not None:
        refuse("is not for --test-time, which fires one minute's schedules, and makes up for none", "cron_grace")
    at = None if test_time is None else _parse_time(test_time)
    start = _start(session, flags)
    if not (once or at):
        configure(start.log_level, start.log_format).write_in_background()
        with logged_failure(start.log_format, "the scheduler ends"):
            serve(start)
        return 0
    schedulers = _schedulers(start)
    with opened(start) as backend:
        runner = runner_of(start, backend, schedulers)
        warn_of_unfit(runner, start.environment)
        firings = runner.run() if at is None else runner.try_out(at)
    for firing in firings:
        if firing.stack:
            report([firing], start.options)
        else:
            say_output(firing, start.options)
    answer(firings, lambda firing: firing.to_dict(), FIRED, _firing_cells, "nothing is due")
    return int(any(firing.status.value in ("failed", "later") for firing in firings))


@click.command("list", cls=Command, short_help="Show the schedules, and what each did last.")
@app
@as_json
def list_(session: Session, **flags: Any) -> None:
    """Show the app's schedules: where each fires, when it fired last and by whom, when it fires next here."""
    start = _start(session, flags)
    planned = plan(_schedulers(start))
    now, records = _asked(start, planned)
    rows = [_values(one, records.get(one.name), now, start.environment) for one in planned]
    answer(rows, dict, LISTED, _cells)
    _note_silent([row["name"] for row in rows if row["silent_until"]])


@click.command("next", cls=Command, short_help="Show the next instants of schedules.")
@click.argument("schedule", required=False, metavar="[NAME]")
@option("--limit", type=click.IntRange(1, 1000), default=5, metavar="N", help="Show the next N instants.  [default: 5]")
@app
@as_json
def next_(session: Session, schedule: str | None, limit: int, **flags: Any) -> None:
    """Show when one or all schedules are due next. Schedules that are disabled, or of other environments, are left out.

    Without an answer of the broker, this machine's clock counts.
    """
    start = _start(session, flags)
    planned = plan(_schedulers(start))
    if schedule:
        names = [one.name for one in planned]
        if schedule not in names:
            raise ConfigurationError(f"no schedule is named {schedule!r}{nearest_or_all(schedule, names)}")
        planned = [planned[names.index(schedule)]]
    now, silent = datetime.now(UTC), {}
    with contextlib.suppress(JobpoolError):  # no broker is needed to look ahead
        now, records = _asked(start, planned)
        silent = {name: until for name, one in records.items() if (until := silent_until(one, now))}
    ahead = [_instants(one, silent.get(one.name, now)) for one in planned if one.why_not(start.environment) is None]
    coming = [row for _, row in islice(heapq.merge(*ahead, key=itemgetter(0)), limit)]
    answer(coming, dict, COMING, _coming_cells, "nothing is due any more")
    _note_left_out(planned, start.environment)
    _note_silent(silent)


def _parse_time(text: str) -> datetime:
    """Return an ISO 8601 moment with an offset. Raises `click.UsageError`."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.utcoffset() is None:
            raise click.UsageError(
                f"--test-time {text!r} has no time zone: write {moment:%Y-%m-%dT%H:%M}Z, or an offset, +01:00"
            )
        return moment.astimezone(UTC)
    except ValueError:
        raise click.UsageError(
            f"--test-time {text!r} is not a date and time: write 2026-03-29T02:30Z, or with an offset, +01:00"
        ) from None
    except OverflowError:
        raise click.UsageError(f"--test-time {text!r} is outside the years 1 to 9999 in UTC") from None


def _start(session: Session, flags: dict[str, Any]) -> CronStart:
    from jobpool.master.run import cron_start

    only = flags.pop("only_scheduler", False)
    pool = session.pool(flags)
    configure(pool.log_level, pool.log_format)
    warn_of_secrets(pool, session.config_file())
    return structs.replace(cron_start(pool), only=only, log_format=pool.log_format)


def _schedulers(start: CronStart) -> list[Scheduler]:
    """Import the app, whose output goes to stderr: stdout is for answers."""
    from jobpool.cron.service import schedules_of

    with contextlib.redirect_stdout(sys.stderr):
        return schedules_of(start.options)


def _asked(start: CronStart, planned: list[Planned]) -> tuple[datetime, dict[str, Record]]:
    """Return the time and the records of these schedules, if the broker keeps any."""
    from jobpool.broker.opening import missing_database
    from jobpool.cron.runner import CronTime
    from jobpool.cron.service import opened

    if missing_database(start.backend):
        return datetime.now(UTC), {}
    with opened(start) as backend:
        now = CronTime(backend).now()
        if not backend.capabilities.key_store:
            return now, {}
        return now, load(backend.keys, (one.name for one in planned))


def _instants(planned: Planned, after: datetime) -> Iterator[tuple[datetime, dict[str, str]]]:
    while (at := planned.schedule.next(after)) is not None:
        yield at, {"name": planned.name, "at": rfc3339(at), "zone": planned.schedule.zone}
        after = at


def _coming_cells(row: dict[str, str]) -> list[str]:
    local = datetime.fromisoformat(row["at"]).astimezone(ZoneInfo(row["zone"]))
    return [row["at"], f"{local:%a %Y-%m-%d %H:%M %Z}", row["name"]]


def _note_left_out(wanted: list[Planned], environment: str | None) -> None:
    """Say how many of them never fire here, and why."""
    out = [planned for planned in wanted if planned.why_not(environment) is not None]
    disabled = sum(not planned.definition.enabled for planned in out)
    names = {name for planned in out if planned.definition.enabled for name in planned.definition.environments}
    reasons = [f"{disabled} disabled"] if disabled else []
    if names:
        elsewhere = f"{len(out) - disabled} only in other environments, see --environment: "
        reasons.append(elsewhere + ", ".join(sorted(names)))
    if reasons:
        note(f"{len(out)} left out: {'; '.join(reasons)}")


def _note_silent(names: Iterable[str]) -> None:
    if told := ", ".join(names):
        note(f"{told}: {SILENT}; {SILENT_MEND}")


def _firing_cells(firing: Firing) -> list[str]:
    took = "-" if firing.took is None else f"{firing.took:.3f}"
    return [firing.name, rfc3339(firing.at), firing.status.value, firing.id or "-", took, firing.why or ""]


def _values(planned: Planned, record: Record | None, now: datetime, environment: str | None) -> dict[str, Any]:
    fires_here = planned.why_not(environment) is None
    due = planned.schedule.next(max(now, record.seen) if record else now) if fires_here else None
    owner = record.owner if record else None
    until = silent_until(record, now) if fires_here else None
    # The end of an enqueued job is known to its pool alone.
    failed = record.failed if record and (record.failed or planned.is_inline) else None
    not_fired = record.seen if record and record.failed and record.seen != record.last else None
    return {
        "name": planned.name,
        "expression": planned.schedule.expression,
        "zone": planned.schedule.zone,
        "queue": planned.definition.queue,
        "enabled": planned.definition.enabled,
        "environments": list(planned.definition.environments),
        "fires_here": fires_here,
        "misfire": planned.misfire.text,
        "last": rfc3339(record.last) if record and record.last else None,
        "lateness": record.lateness if record and record.last else None,
        "id": record.id if record else None,
        "failed": failed,
        "not_fired": rfc3339(not_fired) if not_fired else None,
        "next": rfc3339(due) if due else None,
        "silent_until": rfc3339(until) if until else None,
        "owner": structs.asdict(owner) if owner else None,
        "declared": planned.entry.place,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    owner = row["owner"]
    shown = f"{owner['name']} {owner['host']}:{owner['pid']}" if owner else "-"
    queue = row["queue"] or "(inline)"
    where = f"in {', '.join(row['environments'])}" if row["environments"] else "everywhere"
    last = f"{row['last'] or '-'}{' failed' if row['failed'] else ''}"
    last = f"{row['not_fired']} not fired" if row["not_fired"] else last
    times = [last, f"{'silent until ' if row['silent_until'] else ''}{row['next'] or '-'}"]
    return [row["name"], row["expression"], row["zone"], queue, *times, where if row["enabled"] else "disabled", shown]
