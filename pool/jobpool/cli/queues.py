"""`jobpool stats` and `jobpool reap`; and the queues that verbs work on where a broker can do less than others.

Each such case is a field of `Capabilities`. A refusal is an `Unsupported` with the mend. An answer that is
less than asked for is told on stderr.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from jobpool.cli.options import Command, as_json, option
from jobpool.cli.output import answer_json, columns, note, plural, say, table
from jobpool.cli.session import Session
from jobpool.errors import ConfigurationError, Unsupported
from jobpool.message.names import check_queue
from jobpool.message.printable import one_line
from jobpool.message.units import format_duration

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.values import MessageFilter, QueueStats

FULL_REAP = 1000
"""Messages that one reap returns at most; a full answer means that there may be more."""

COLUMNS = columns("QUEUE!, WAITING>, DELAYED>, LEASED>, DEAD>, OLDEST>")
POSTED = columns("POSTED>")
"""Shown where there is one: most people post nothing."""

names_argument = click.argument("names", nargs=-1, metavar="[QUEUE]...")
names_option = option("-Q", "--queue", "more", multiple=True, metavar="NAME", help="The same as QUEUE.")


@click.command("stats", cls=Command, short_help="Count the messages of queues.")
@names_argument
@names_option
@as_json
def stats(session: Session, names: tuple[str, ...], more: tuple[str, ...], json_: bool) -> None:
    """Count waiting, delayed, leased, dead and posted messages, in these queues or in all."""
    with session.broker() as backend:
        found = {queue: backend.stats(queue) for queue in _named(session, backend, names + more)}
        if not backend.capabilities.exact_counts:
            note(f"{backend.scheme}:// counts messages that others have leased as waiting (Capabilities.exact_counts)")
    if json_:
        answer_json([{"queue": queue, **asdict(counts)} for queue, counts in found.items()])
    elif any(counts.posted for counts in found.values()):
        table(COLUMNS + POSTED, [[*_row(queue, counts), f"{counts.posted:,}"] for queue, counts in found.items()])
    elif found:
        table(COLUMNS, [_row(queue, counts) for queue, counts in found.items()])
    else:
        note("every queue is empty")


@click.command("reap", cls=Command, short_help="Give back messages whose lease has expired.")
@names_argument
@names_option
@as_json
def reap(session: Session, names: tuple[str, ...], more: tuple[str, ...], json_: bool) -> None:
    """Give back the messages whose lease has expired, in these queues or in all. Every pool does this by itself."""
    from jobpool.broker.values import Leases, ReapPolicy
    from jobpool.message.death import cause_values

    policy = ReapPolicy(session.settings().max_crashes)
    reaped = []
    with session.broker() as backend:
        for queue in _named(session, backend, names + more):
            reaped += (batch := backend.reap(queue, policy))
            while len(batch) >= FULL_REAP:
                reaped += (batch := backend.reap(queue, policy))
        if backend.capabilities.leases is not Leases.OURS:
            note(f"{backend.scheme}:// gives back messages with an expired lease by itself (Capabilities.leases)")
    if json_:
        answer_json([{**asdict(one), "cause": cause_values(one.cause)} for one in reaped])
        return
    for one in reaped:
        say(one_line(f"{one.id}  {one.queue}  {'dead' if one.dead else 'waiting'}  crashes={one.crashes}"))
    note(f"{plural(len(reaped), 'message')} reaped")


def _named(session: Session, backend: QueueBackend, names: tuple[str, ...]) -> list[str]:
    parts = [part.strip() for name in names for part in name.split(",")]
    return [check_queue(part) for part in dict.fromkeys(parts)] if parts else meet_queues(session, backend)


def _row(queue: str, counts: QueueStats) -> list[str]:
    numbers = (counts.waiting, counts.delayed, counts.leased, counts.dead)
    shown = [f"{number:,}+" if counts.cap and number >= counts.cap else f"{number:,}" for number in numbers]
    return [queue, *shown, "-" if counts.oldest is None else format_duration(counts.oldest)]


def meet_queues(session: Session, backend: QueueBackend, queue: str | None = None) -> list[str]:
    """Return the queues for a verb that names none; a broker that cannot list queues is told of the settings'.

    Raises:
        click.UsageError: One of those is not there.

    Blocks for a round trip a queue, if at all.
    """
    if queue is not None:
        return [queue]
    if backend.capabilities.makes_queues:
        return backend.queues()
    names = session.settings().queue_names
    cannot = f"{backend.scheme}:// cannot list its queues (Capabilities.makes_queues)"
    for name in names:
        try:
            backend.stats(name)
        except ConfigurationError as error:
            raise click.UsageError(f"name the queue: {cannot}, and of the setting `queues`: {error}") from None
    note(f"{cannot}: shown are {', '.join(names)}, of the setting `queues`; name others to see them")
    return list(names)


def listable(backend: QueueBackend, where: MessageFilter) -> MessageFilter:
    """Return `where`, less the states that the broker cannot list. Raises `Unsupported` when nothing is left."""
    from jobpool.broker.values import State

    if backend.capabilities.lists_live or where.states == (State.DEAD,):
        return where
    cannot = f"{backend.scheme}:// shows dead letters alone (Capabilities.lists_live)"
    if where.states and State.DEAD not in where.states:
        raise Unsupported(f"{cannot}, not what is {' or '.join(where.states)}: `jobpool stats` counts that")
    note(f"{cannot}: `jobpool stats` counts the other messages")
    return replace(where, states=(State.DEAD,))


def unseen(backend: QueueBackend) -> str:
    """Return why a message with some id may not be found."""
    if backend.capabilities.lists_live:
        return "it is done and gone, or never was on this broker"
    only = f"{backend.scheme}:// shows dead letters alone"
    return f"no dead letter is called so, and {only} (Capabilities.lists_live); `jobpool stats` counts the others"
