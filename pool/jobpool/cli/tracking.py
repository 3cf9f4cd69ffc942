"""`jobpool status` and `jobpool result`: what became of jobs, by their ids."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from jobpool.broker import tracking
from jobpool.broker.backend import QueueBackend
from jobpool.cli.messages import declare_queues, unseen
from jobpool.cli.options import Command, as_json, bare_id, option, time_option
from jobpool.cli.output import answer, answer_json, columns, note
from jobpool.cli.session import Session
from jobpool.errors import JobFailed, NoResult, ResultPending, Unsupported
from jobpool.message.printable import headline
from jobpool.message.results import JobState, JobStatus
from jobpool.message.units import format_duration

UNKNOWN, FAILED, NO_RESULT, PENDING = 1, 1, 3, 4  # exit codes
WATCH_S = 1.0  # seconds between two looks at progress
COUNTS = ("total", "succeeded", "failed", "cancelled")  # of a batch, in JSON

STATUS_COLUMNS = columns("ID, STATE, QUEUE~, HANDLER~, FAILED>, SINCE>, WHERE~, WHAT~")


@click.command("status", cls=Command)
@click.argument("idents", nargs=-1, required=True, metavar="ID...")
@option("--watch", is_flag=True, help="Tell it at each change, until all have ended; with --json, a document each.")
@as_json
def status(session: Session, idents: tuple[str, ...], watch: bool) -> int:
    """Tell what became of jobs: waiting, delayed, running, done, dead, expired, cancelled or unknown.

    A done job is known as long as its result is kept (result_ttl). A running one says where, since when and how far,
    once it has run for a second.

    Exit codes: 0 all are known, 1 one is not.
    """
    idents = tuple(map(bare_id, idents))
    with session.broker() as backend:
        declare_queues(session, backend, needed=False)
        states = tracking.statuses(backend, list(dict.fromkeys(idents)))
        found = [states[ident] for ident in idents]
        show = partial(answer, values=partial(_values, backend), columns=STATUS_COLUMNS, row=partial(_row, backend))
        show(found)
        while watch and not all(one.has_ended for one in found):
            before, found = found, backend.wait(idents, WATCH_S)
            if found != before:
                show(found)
        why = tracking.WHY_UNKNOWN if backend.capabilities.finds_all else unseen(backend)
    if any(one.state is JobState.UNKNOWN for one in found):
        note(f"unknown: {why}")
        return UNKNOWN
    return 0


def _values(backend: QueueBackend, one: JobStatus) -> dict[str, Any]:
    """Return what is known; of a batch, its counts too."""
    batch = backend.find_batch(one.id) if one.handler == tracking.BATCH else None
    return one.to_dict() | ({name: getattr(batch, name) for name in COUNTS} if batch else {})


def _row(backend: QueueBackend, one: JobStatus) -> list[str]:
    since = one.ended_at or one.since
    texts = [one.id, one.state.value, one.queue or "-", one.handler or "-", str(one.attempts)]
    texts += ["-" if since is None else format_duration(max(0.0, backend.time.now() - since)), one.where or "-"]
    told = one.progress or one.note
    what = f"{one.progress or 0:.0%} {one.note or ''}".strip() if told else headline(one.error) or one.reason
    if one.state is JobState.DELAYED and one.due is not None:
        what = f"in {format_duration(max(0.0, one.due - backend.time.now()))}"
    return [*texts, what or "-"]


@click.command("result", cls=Command)
@click.argument("ident", metavar="ID")
@time_option("--timeout", default="0", help="Time to wait for its end.  [default: 0]")
def result(session: Session, ident: str, timeout: float) -> int:
    """Print what a job's handler returned, as JSON; with --timeout, as soon as it did.

    Exit codes: 0 printed, 1 failed for good. 3 means no result: unknown, not kept, too large, or the broker cannot
    tell. 4 means that the job has not ended in this time.
    """
    with session.broker() as backend:
        declare_queues(session, backend, needed=False)
        try:
            answer_json(backend.result(bare_id(ident), timeout))
        except (NoResult, Unsupported) as error:
            note(f"jobpool: {error}")
            return (
                FAILED if isinstance(error, JobFailed) else PENDING if isinstance(error, ResultPending) else NO_RESULT
            )
    return 0
