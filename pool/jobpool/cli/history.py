"""`jobpool history`: attempts that were recorded, and what each minute or hour brought."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from jobpool.cli.messages import moment
from jobpool.cli.options import Command, as_json, option, queue_option, refuse, time_option
from jobpool.cli.output import answer, answered, asks_json, columns, note, plural, say
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError
from jobpool.message.names import nearest
from jobpool.message.outcome import Status
from jobpool.message.printable import headline, json_text, printable
from jobpool.message.setting_types import History
from jobpool.telemetry.history.places import HistoryFile, HistoryTable, Place
from jobpool.telemetry.history.row import shortened
from jobpool.telemetry.metrics.rollup import Row, rollups, summed

MAX_FIELD_CHARS = 200  # characters of a field, unless all is asked for

ENDS = [status.value for status in Status if status not in (Status.EMPTY, Status.LOST)]  # these leave no row

OF_ATTEMPTS = "limit", "status", "full"  # parameters that neither sums nor a list of names has a use for
SPANS = {"minute": 60, "hour": 3600}

ATTEMPTS = columns("START, STATUS!, ID, ATTEMPT>, SECONDS>, QUEUE, JOB, ERROR OR OUTPUT~")
ROLLED = columns("TIME, QUEUE, HANDLER~, SUCCEEDED>, FAILED>, DEAD>, CRASHED>, OTHER>, MEAN>, P50>, P95>")
SHOWN = ("succeeded", "failed", "failed_permanently", "crashed")
OTHERS = ("skipped_idempotent", "rejected_signature", "rejected_payload", "moved", "released", "lease_lost")
"""`requeued`, `timed_out` and `reaped` say more of what is counted already."""


@click.command("history", cls=Command)
@click.argument("job", required=False, metavar="[NAME]")
@option("--limit", type=click.IntRange(1, 100_000), default=20, metavar="N", help="Show the newest N.  [default: 20]")
@option("--status", type=click.Choice(ENDS), metavar="WORD", help=f"Show attempts with this end: {', '.join(ENDS)}.")
@option("--full", is_flag=True, help="Show long fields uncut.")
@option("--history", "where", metavar="WHERE", help="Place of the history: table or file:PATH.")
@option("--rollup", is_flag=True, help="Show sums by queue and handler, of all pools.")
@option(
    "--by", type=click.Choice(list(SPANS)), default="minute", help="With --rollup: span of a row.  [default: minute]"
)
@time_option("--since", default="1h", help="With --rollup: how far back.  [default: 1h]")
@queue_option("Show this queue only.")
@option("--handler", metavar="HANDLER", help="With --rollup: show this handler only.")
@as_json
def history(session: Session, job: str | None, rollup: bool, **asked: Any) -> None:
    """Show the recorded attempts of NAME, the newest first; without NAME, the names.

    \b
      jobpool history monthly-report --status dead-lettered --full
      jobpool history --rollup --by hour --since 24h

    A job without a name is recorded under its handler's. Secrets were masked when the attempt was recorded.
    """
    if rollup:
        if job is not None:
            raise click.UsageError("--rollup sums up by queue and handler: use --handler, not a name")
        refuse("is not for --rollup, which sums up all of --since", "where", *OF_ATTEMPTS)
    else:
        refuse("needs --rollup", "by", "since", "handler")
        if job is None:
            refuse("needs a NAME", "queue", *OF_ATTEMPTS)
    settings = session.settings(history=asked["where"] or None)
    if rollup:
        _show_rollups(session, asked)
        return
    with _place(session, settings.history) as place:
        if job is not None:
            _show_attempts(place, job, asked)
            return
        names = place.names()
    if not answered(names):
        for name in names:
            say(name)
        note(f"{plural(len(names), 'name')} with recorded attempts" if names else "nothing is recorded")


@contextmanager
def _place(session: Session, history: History) -> Iterator[Place]:
    if history.path is not None:
        yield HistoryFile(history.path, history.keep)
    elif history.table:
        with session.broker() as backend:
            yield HistoryTable(backend.keys, history.keep)
    else:
        raise ConfigurationError(
            "history is off: set history = 'table' or 'file:PATH' for the pools and here, or name the place: --history"
        )


def _show_attempts(place: Place, name: str, asked: dict[str, Any]) -> None:
    status, queue = asked["status"], asked["queue"]

    def wants(row: dict[str, Any]) -> bool:
        return status in (None, row["status"]) and queue in (None, row["queue"])

    rows = place.read(name, asked["limit"], wants)
    if rows and asked["full"] and not asks_json():
        for row in rows:
            _tell(row)
    else:
        near = "" if rows else nearest(name, set(place.names()) - {name}) or "; pools need the setting `history` too"
        answer(rows, dict, ATTEMPTS, _cells, f"no such attempt of {name!r} is recorded{near}")


def _cells(row: dict[str, Any]) -> list[str]:
    said = shortened(headline(row["error"]) or str(row["output"] or ""), MAX_FIELD_CHARS)
    took = "-" if row["duration"] is None else f"{row['duration']:.3f}"
    began = moment(row["start"]) or "-"
    text = {field: "" if value is None else str(value) for field, value in row.items()}
    return [began, text["status"], text["id"], text["attempt"], took, text["queue"], text["job"], said]


def _tell(row: dict[str, Any]) -> None:
    for field, value in row.items():
        if field in ("start", "end"):
            value = moment(value) or "-"
        if field == "duration" and value is not None:
            value = f"{value:.6f} s"
        text = value if isinstance(value, str) else json_text(value)
        shown = printable(text).rstrip("\n").replace("\n", f"\n{'':<10} ")
        say(f"{field:<10} {shown}")
    say("")


def _show_rollups(session: Session, asked: dict[str, Any]) -> None:
    with session.broker() as backend:
        keys = backend.keys
        now, span = backend.time.now(), SPANS[asked["by"]]
        every = rollups(keys, (now - asked["since"]) // span * span, now + 2 * span)
        queue, handler = asked["queue"], asked["handler"]
        rows = [row for row in every if queue in (None, row.queue) and handler in (None, row.handler)]
    nothing = "no rollups of that time; pools write them each minute, and when they stop"
    answer(summed(rows, span), _values, ROLLED, _sums, nothing)


def _values(row: Row) -> dict[str, Any]:
    edges = [*row.run.edges, None]
    buckets = [{"le": edge, "count": count} for edge, count in zip(edges, row.run.counts, strict=True) if count]
    about = {"start": row.start, "seconds": row.seconds, "queue": row.queue, "handler": row.handler}
    return {**about, "outcomes": row.outcomes, "runs": row.run.count, "run_seconds": row.run.total, "buckets": buckets}


def _sums(row: Row) -> list[str]:
    counts = [row.outcomes.get(word, 0) for word in SHOWN]
    other = sum(row.outcomes.get(word, 0) for word in OTHERS)
    mean = row.run.total / row.run.count if row.run.count else None
    times = [_seconds(mean, ""), *(_seconds(row.run.quantile(share), "≤") for share in (0.5, 0.95))]
    numbers = [f"{count:,}" for count in (*counts, other)]
    return [moment(row.start) or "-", row.queue or "-", row.handler or "-", *numbers, *times]


def _seconds(value: float | None, sign: str) -> str:
    if value is None:
        return "-"
    return f"{sign}{value:.3g}" if value != float("inf") else "long"
