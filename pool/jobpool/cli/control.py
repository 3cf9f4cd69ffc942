"""`jobpool pause`, `resume`, `pools`, `cancel` and `edit`: requests of a person to all pools of a broker at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

import click
from msgspec import structs

from jobpool.broker import control, editing
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import LIVE, UNHELD, MessageFilter, State
from jobpool.cli import bulk
from jobpool.cli.enqueue import note_unserved
from jobpool.cli.messages import declare_queues, moment
from jobpool.cli.options import SIGNER, Command, as_json, confirmed, option, time_option
from jobpool.cli.output import answer, answered, asks_json, columns, note, plural, say
from jobpool.cli.session import Session
from jobpool.message.batches import BatchStatus
from jobpool.message.names import check_queue, nearest_or_all
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration, parse_duration

LOST, NOT_KNOWN = 4, 5  # exit codes of `cancel`, `edit` and `pools drain`

POOLS = columns("ID, NAME!, HOST~, PID>, STATE, QUEUES~, CHILDREN>, BUSY>, MARGIN>, SEEN>, VERSION")


def _until(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | float | None:
    """Read a duration, or a time in RFC 3339."""
    if text is None:
        return None
    with suppress(ValueError):
        return parse_duration(text)
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    raise click.BadParameter(f"{text!r} is not a time: write 2h, or 2026-07-01T08:00+02:00")


# All names are checked before anything is done to the first.
queues_argument = click.argument(
    "queues", nargs=-1, required=True, metavar="QUEUE...", callback=lambda *given: tuple(map(check_queue, given[2]))
)


@click.command("pause", cls=Command)
@queues_argument
@option("--reason", default="", metavar="TEXT", help="Reason, which `jobpool stats` shows.")
@option("--until", callback=_until, metavar="TIME", help="Resume by itself then: 2h, or 2026-07-01T08:00+02:00.")
@as_json
def pause(session: Session, queues: tuple[str, ...], reason: str, until: Any) -> None:
    """Keep all pools, on all hosts, from fetching from these queues. Running jobs go on; jobs are enqueued as before.

    It lasts until `jobpool resume`, also over restarts. A second pause replaces the first.
    """
    with session.broker() as backend:
        made = [control.pause(backend, queue, reason, until) for queue in queues]
        unknown = _note_unknown(session, backend, queues)
    if not answered([asdict(one) for one in made]):
        for one in made:
            say(one_line(f"{one.queue} is paused" + (f" until {moment(one.until)}" if one.until else "")))
    for queue in queues:
        if queue not in unknown:
            note_unserved(session, queue, "the pause is for")


def _note_unknown(session: Session, backend: QueueBackend, queues: tuple[str, ...]) -> set[str]:
    """Say which queues neither hold a message nor are served by a pool of any host, and return them."""
    if not backend.capabilities.makes_queues:  # then nothing can be done with one that is not there
        return set()
    served = {queue for pool in control.pools(backend) for queue in pool.queues} | set(session.queues_served())
    known = sorted({*backend.queues(), *served})
    unknown = [queue for queue in dict.fromkeys(queues) if queue not in known]
    for queue in unknown:
        note(f"queue {queue!r} holds no message, and no pool serves it{nearest_or_all(queue, known)}")
    return set(unknown)


@click.command("resume", cls=Command)
@queues_argument
@as_json
def resume(session: Session, queues: tuple[str, ...]) -> None:
    """Let pools fetch from these queues again."""
    with session.broker() as backend:
        was_paused = {queue: control.resume(backend, queue) for queue in queues}
    if not answered([{"queue": queue, "resumed": was} for queue, was in was_paused.items()]):
        for queue, was in was_paused.items():
            (say if was else note)(f"{queue} is resumed" if was else f"{queue} was not paused")


@click.command("list", cls=Command)
@as_json
def pools_list(session: Session) -> None:
    """List the pools of the broker on all hosts, also those that have fallen silent: without a word for 30 s.

    MARGIN: time until the first of its leases would end. A killed pool is listed for a day.
    """
    with session.broker() as backend:
        found, now = control.pools(backend), backend.control_time()
    answer(found, asdict, POOLS, lambda pool: _row(pool, now), "no pool has a record at this broker")


def _row(pool: control.PoolRecord, now: float) -> list[str]:
    margin = "-" if pool.lease_margin is None else format_duration(max(0.0, pool.lease_margin))
    return [
        *(pool.id, pool.name, pool.host, str(pool.pid), "SILENT" if pool.silent else pool.state),
        *(",".join(pool.queues), str(pool.children), str(pool.busy), margin),
        *(format_duration(max(0.0, now - pool.seen)), pool.version),
    ]


@click.command("drain", cls=Command)
@click.argument("ident", metavar="ID")
@as_json
def pools_drain(session: Session, ident: str) -> int:
    """Let a pool fetch nothing more, wherever it runs. Its jobs run to their end, and it waits for `pools resume`.

    Exits 0 if it is asked, 1 if it is unknown. 5 means that it is SILENT, and may never read this.
    """
    with session.broker() as backend:
        if not control.drain(backend, ident):
            raise _no_pool(ident)
        found, now = control.pools(backend), backend.control_time()
    silent = [pool for pool in found if pool.id == ident and pool.silent]
    if not answered({"id": ident, "silent": bool(silent)}):
        say(f"{ident} is asked to drain")
    for pool in silent:
        note(f"{ident} has been SILENT for {format_duration(now - pool.seen)}: it may never read this")
    return NOT_KNOWN if silent else 0


def _no_pool(ident: str) -> click.ClickException:
    return click.ClickException(f"no pool {ident!r} has a record at this broker: `jobpool pools` lists them")


@click.command("resume", cls=Command)
@click.argument("ident", metavar="ID")
@as_json
def pools_resume(session: Session, ident: str) -> None:
    """Let a drained pool fetch again."""
    with session.broker() as backend:
        was = control.undrain(backend, ident)
        if not was and all(pool.id != ident for pool in control.pools(backend)):
            raise _no_pool(ident)
    if not answered({"id": ident, "resumed": was}):
        (say if was else note)(f"{ident} is resumed" if was else f"{ident} was not drained")


@click.command("cancel", cls=Command)
@bulk.selecting
@option("--purge", is_flag=True, help="Remove them, in place of dead letters with the reason cancelled.")
@time_option("--wait", default="10s", help="Wait for pools so long.  [default: 10s]")
@confirmed
def cancel(session: Session, wait: float, **asked: Any) -> int:
    """Cancel jobs by id, or by a FILTER as in `jobpool list`. One that runs is ended by its pool.

    Exits 0 if it is cancelled, now or before, 1 if it is unknown, 4 if it ended first, is dead or claimed. 5 means that
    its pool was asked and has not answered. Of several codes the highest counts.
    """
    where = bulk.chosen(asked)
    if State.DEAD in where.states:
        raise click.UsageError("dead letters cannot be cancelled: `jobpool dead purge` removes them")
    with session.broker() as backend:
        declare_queues(session, backend, where.queue, needed=False)
        live = structs.replace(where, states=where.states or LIVE)
        matching = partial(control.cancel_matching, backend, purge=asked["purge"], wait=wait)
        by_id = partial(control.cancel, backend, where.ids, purge=asked["purge"], wait=wait)
        sweep = bulk.Answered(backend, live, "cancel", act=matching)
        if asked["dry_run"] and _is_bare(where) and (batches := _batches(sweep)):
            _preview_batches(sweep, batches, asked)
            return 0
        return _carry_out(where, sweep, by_id, asked)


def _is_bare(where: MessageFilter) -> bool:
    """Return whether there are ids and nothing else."""
    return bool(where.ids) and structs.replace(where, ids=()) == MessageFilter()


def _batches(sweep: bulk.Answered) -> list[BatchStatus]:
    """Return those of the sweep's ids that no message has and a batch has. Raises `ClickException`: one has ended."""
    found = map(sweep.backend.find_batch, sweep.where.ids)
    batches = [batch for batch in found if batch and sweep.backend.inspect(batch.id) is None]
    if ended := [batch.id for batch in batches if batch.has_ended]:
        raise click.ClickException(f"nothing was changed: {', '.join(ended)}: the batch has ended")
    return batches


def _preview_batches(sweep: bulk.Answered, batches: list[BatchStatus], asked: dict[str, Any]) -> None:
    """Tell what a cancel of these batches, and of the sweep's other ids, would do."""
    members = sum(batch.left for batch in batches)
    if jobs := tuple(ident for ident in sweep.where.ids if ident not in {batch.id for batch in batches}):
        bulk.confirm_and_run(replace(sweep, where=structs.replace(sweep.where, ids=jobs)), asked, members)
    else:
        answered({"matched": members, "cancelled": 0})
    if not asks_json():
        for batch in batches:
            say(one_line(f"would cancel batch {batch.id}: {plural(batch.left, 'member')}"))


@click.command("edit", cls=Command, common=SIGNER)
@bulk.selecting
@option("--at", callback=_until, metavar="TIME", help="Run then: 2h from now, or 2026-07-01T08:00+02:00.")
@option("--now", is_flag=True, help="Run now.")
@option("-p", "--priority", type=click.IntRange(0, 255), metavar="N", help="Set the priority; smaller runs sooner.")
@option("--move", metavar="QUEUE", help="Move to this queue, signed for it.")
@confirmed
def edit(session: Session, at: datetime | float | None, priority: int | None, move: str | None, **asked: Any) -> int:
    """Edit jobs that wait or are delayed, by id or by a FILTER as in `jobpool list`. Others are left as they are.

    One that is put off beyond its expiry dies of that.

    Exits 0 if it is edited or was so already, 1 if it is unknown. 4 means that it runs, has ended, is dead or
    claimed, is a duplicate where it was to go, or cannot be signed. Of several codes the highest counts.
    """
    if at is None and priority is None and move is None and not asked["now"]:
        raise click.UsageError("say what to change: --at or --now, --priority, --move")
    if at is not None and asked["now"]:
        raise click.UsageError("--at and --now exclude each other")
    where = bulk.chosen(asked)
    if not set(where.states) <= set(UNHELD):
        raise click.UsageError("only jobs that wait or are delayed can be edited; `jobpool dead retry` is for the dead")
    with session.broker() as backend:
        changes = editing.read_changes(backend, 0 if asked["now"] else at, priority, move)
        live = structs.replace(where, states=where.states or UNHELD)
        sweep = bulk.Answered(backend, live, "edit", act=partial(editing.edit_matching, backend, changes))
        if move is not None:
            note_unserved(session, move, "what is moved waits in")
        return _carry_out(where, sweep, partial(editing.edit, backend, changes, where.ids), asked)


def _carry_out(
    where: MessageFilter, sweep: bulk.Answered, by_id: Callable[[], Mapping[str, StrEnum]], asked: dict[str, Any]
) -> int:
    """Do it by ids at once, or to what matches once it is confirmed; return the exit code."""
    if asked["dry_run"] or not _is_bare(where):
        bulk.confirm_and_run(sweep, asked)
        return max(map(_exit_code, sweep.answers), default=0)
    answers = by_id()
    if not answered(answers):
        for ident, answer in answers.items():
            say(one_line(f"{ident}  {answer}"))
    return max(map(_exit_code, answers.values()), default=0)


def _exit_code(answer: StrEnum) -> int:
    codes = {"cancelled": 0, "already cancelled": 0, "edited": 0, "unchanged": 0, "unknown": 1, "asked": NOT_KNOWN}
    return codes.get(answer, LOST)
