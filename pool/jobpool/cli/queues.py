"""`jobpool stats` and `jobpool reap`: whole queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jobpool.cli.lacking import meet_queues, tell_of_stats
from jobpool.cli.options import Command, as_json, common, option
from jobpool.cli.output import Column, answer_json, note, plural, say, table
from jobpool.cli.session import Session
from jobpool.message.printable import one_line

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.values import QueueStats, Reaped, ReapPolicy

FULL_REAP = 1000
"""Messages that one reap returns at most; a full answer means that there may be more."""

COLUMNS = (
    Column("QUEUE", style="bold"),
    *(Column(title, right=True) for title in ("WAITING", "DELAYED", "LEASED", "DEAD", "OLDEST")),
)
POSTED = Column("POSTED", right=True)
"""Shown where there is one: most people post nothing."""


@click.command("stats", cls=Command, short_help="Count the messages of queues.")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@option("-Q", "--queue", "more", multiple=True, metavar="NAME", help="The same as QUEUE.")
@as_json
@common
def stats(session: Session, names: tuple[str, ...], more: tuple[str, ...], json_: bool) -> None:
    """Count what is waiting, delayed, leased and dead, in these queues or in all; and what was posted for claims."""
    with session.broker() as backend:
        found = {queue: backend.stats(queue) for queue in _queues(session, backend, names + more)}
        tell_of_stats(backend)
    if json_:
        answer_json([{"queue": queue, **asdict(counts)} for queue, counts in found.items()])
    elif found:
        rows = [_row(queue, counts) for queue, counts in found.items()]
        if any(counts.posted for counts in found.values()):
            table((*COLUMNS, POSTED), [[*row, f"{found[row[0]].posted:,}"] for row in rows])
        else:
            table(COLUMNS, rows)
    else:
        note("every queue is empty")


@click.command("reap", cls=Command, short_help="Give back what has an expired lease.")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@option("-Q", "--queue", "more", multiple=True, metavar="NAME", help="The same as QUEUE.")
@as_json
@common
def reap(session: Session, names: tuple[str, ...], more: tuple[str, ...], json_: bool) -> None:
    """Give back the messages whose lease has expired, in these queues or in all. Every pool does this by itself."""
    from jobpool.broker.values import Leases, ReapPolicy
    from jobpool.message.death import cause_values

    policy = ReapPolicy(session.settings().max_crashes)
    with session.broker() as backend:
        reaped = [one for queue in _queues(session, backend, names + more) for one in _reap(backend, queue, policy)]
        if backend.capabilities.leases is not Leases.OURS:
            note(f"{backend.scheme}:// gives back what has an expired lease by itself (Capabilities.leases)")
    if json_:
        answer_json([{**asdict(one), "cause": cause_values(one.cause)} for one in reaped])
        return
    for one in reaped:
        say(one_line(f"{one.id}  {one.queue}  {'dead' if one.dead else 'waiting'}  crashes={one.crashes}"))
    note(f"{plural(len(reaped), 'message')} reaped")


def _queues(session: Session, backend: QueueBackend, names: tuple[str, ...]) -> list[str]:
    from jobpool.message.names import check_queue

    parts = [part.strip() for name in names for part in name.split(",")]
    return [check_queue(part) for part in dict.fromkeys(parts)] if parts else meet_queues(session, backend)


def _reap(backend: QueueBackend, queue: str, policy: ReapPolicy) -> list[Reaped]:
    reaped = backend.reap(queue, policy)
    every = list(reaped)
    while len(reaped) >= FULL_REAP:
        reaped = backend.reap(queue, policy)
        every.extend(reaped)
    return every


def _row(queue: str, counts: QueueStats) -> list[str]:
    from jobpool.message.units import format_duration

    numbers = (counts.waiting, counts.delayed, counts.leased, counts.dead)
    shown = [f"{number:,}+" if counts.cap and number >= counts.cap else f"{number:,}" for number in numbers]
    return [queue, *shown, "-" if counts.oldest is None else format_duration(counts.oldest)]
