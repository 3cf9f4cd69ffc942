"""What verbs do where a broker can do less than others: they use what there is, and say what they cannot tell.

Each case is a field of `Capabilities`. What is refused is an `Unsupported` with the mend; what is only less than asked
for is said on stderr.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jobpool.cli.output import note

if TYPE_CHECKING:
    from jobpool.broker.backend import QueueBackend
    from jobpool.broker.values import Message, MessageFilter
    from jobpool.cli.session import Session
    from jobpool.message.definition import JobDefinition


def meet_queues(session: Session, backend: QueueBackend, queue: str | None = None) -> list[str]:
    """The queues that a verb is about which names none; a broker that cannot list them is told of the settings'.

    Raises:
        click.UsageError: One of those is not there.

    Blocks for a round trip a queue, if at all.
    """
    from jobpool.errors import ConfigurationError

    if queue is not None:
        return [queue]
    if backend.capabilities.makes_queues:
        return backend.queues()
    names = [name for name, _ in session.settings().queues]
    cannot = f"{backend.scheme}:// cannot list its queues (Capabilities.makes_queues)"
    for name in names:
        try:
            backend.stats(name)
        except ConfigurationError as error:
            raise click.UsageError(f"name the queue: {cannot}, and of the setting `queues`: {error}") from None
    note(f"{cannot}: this is about {', '.join(names)}, of the setting `queues`; name others to see them")
    return names


def listable(backend: QueueBackend, where: MessageFilter) -> MessageFilter:
    """`where`, less what the broker cannot list. Raises `Unsupported` when nothing is left."""
    from jobpool.broker.values import State
    from jobpool.errors import Unsupported

    if backend.capabilities.lists_live or where.states == (State.DEAD,):
        return where
    cannot = f"{backend.scheme}:// shows dead letters alone (Capabilities.lists_live)"
    if where.states and State.DEAD not in where.states:
        raise Unsupported(f"{cannot}, not what is {' or '.join(where.states)}: `jobpool stats` counts that")
    note(f"{cannot}: `jobpool stats` counts the other messages")
    return replace(where, states=(State.DEAD,))


def find(backend: QueueBackend, ident: str, queue: str | None) -> Message | None:
    """The message with this id, in this queue or in any; None when it cannot be seen."""
    from jobpool.broker.values import MessageFilter, State

    if queue is None:
        return backend.inspect(ident)
    states = () if backend.capabilities.lists_live else (State.DEAD,)
    where = MessageFilter(queue=queue, ids=(ident,), states=states)
    return next(iter(backend.list_messages(where, limit=1)), None)


def unseen(backend: QueueBackend) -> str:
    """What it means that a message with some id was not found."""
    if backend.capabilities.lists_live:
        return "it is done and gone, or never was on this broker"
    only = f"{backend.scheme}:// shows dead letters alone"
    return f"no dead letter is called so, and {only} (Capabilities.lists_live); `jobpool stats` counts the others"


def goes_whole(backend: QueueBackend, where: MessageFilter) -> bool:
    """Whether what is to be purged can be deleted by whole queues only.

    Raises `Unsupported` if `where` picks out some of the messages that are not dead.
    """
    from jobpool.broker.values import State
    from jobpool.errors import Unsupported

    if backend.capabilities.keeps_records or where.states == (State.DEAD,):
        return False
    if replace(where, queue=None, states=()) == type(where)():
        return True
    raise Unsupported(
        f"{backend.scheme}:// deletes what is waiting or delayed by whole queues only (Capabilities.keeps_records):"
        " leave all terms but queue: and state: out; `jobpool dead purge` takes any filter"
    )


def tell_of_stats(backend: QueueBackend) -> None:
    """What the counts cannot tell."""
    if not backend.capabilities.exact_counts:
        note(f"{backend.scheme}:// counts what others have leased as waiting (Capabilities.exact_counts)")


def tell_of_job(backend: QueueBackend, job: JobDefinition) -> None:
    """What of a job's wishes has no meaning there."""
    from jobpool.message.definition import JobDefinition

    if job.priority != JobDefinition(job.handler).priority and not backend.capabilities.priorities:
        note(f"{backend.scheme}:// knows no priorities (Capabilities.priorities): the job waits behind those before it")
    if job.identifier is not None and not backend.capabilities.keeps_records:
        note(f"{backend.scheme}:// knows no ids (Capabilities.keeps_records): enqueued again, it is a second message")
