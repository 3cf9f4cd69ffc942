"""The messages that are left at the end of a run, and how its queue is emptied: of the run's own, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from msgspec import structs

from jobpool.broker.backend import QueueBackend
from jobpool.broker.filters import PAGE_MESSAGES, matching
from jobpool.broker.values import LIVE, UNHELD, Message, MessageFilter, QueueStats, State, Verb
from jobpool.message.results import Record
from jobpool_torture.ledger import Line

MAX_DELETED_MESSAGES = 1000
SHOWN_IDS = 5
LEFTOVERS_LOOK_S = 0.5
OURS = ("try", "enq", "start")
"""Events of messages that this run has enqueued, or whose handlers it has run. Jobs that others put into its queue are
not signed with its key, and never begin.
"""


def kept(backend: QueueBackend, queue: str) -> list[Message]:
    """Return all messages that the broker shows of the queue: dead ones, and live ones where it can list them."""
    states = () if backend.capabilities.lists_live else (State.DEAD,)
    return list(matching(backend, MessageFilter(queue=queue, states=states)))


def results(backend: QueueBackend, idents: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rest = iter(idents)
    while some := list(islice(rest, PAGE_MESSAGES)):
        found |= {ident: orjson.loads(Record.read(record).text) for ident, record in backend.kept(some).items()}
    return found


def stuck(backend: QueueBackend, queue: str) -> list[str]:
    """Return the messages that are not done, with state and counters; counts alone where they are not listed."""
    if not backend.capabilities.lists_live:
        stats = backend.stats(queue)
        counts = {state.value: getattr(stats, state.value) for state in LIVE}
        return [f"{count} {state}" for state, count in counts.items() if count]
    return [
        f"{message.id}: {message.state.value}, {message.handler}, attempts {message.attempts},"
        f" crashes {message.crashes}, deliveries {message.deliveries}"
        for message in matching(backend, MessageFilter(queue=queue, states=LIVE))
    ]


def dump(messages: Iterable[Message], file: Path) -> None:
    """Write one JSON line a message, without its body: purged ones cannot be looked at any more. Raises OSError."""
    with file.open("w") as stream:
        for message in messages:
            fields = {name: value for name, value in structs.asdict(message).items() if name not in ("body", "cursor")}
            stream.write(json.dumps(fields | {"bytes": len(message.body)}) + "\n")


def own_ids(lines: Iterable[Line]) -> set[str]:
    """Return the ids of all messages that a run has put into its queue, as far as its ledger knows."""
    history = list(lines)
    follow_ups = {line.tag for line in history if line.event == "follow"}
    return follow_ups | {line.id for line in history if line.event in OURS}


def empty(backend: QueueBackend, queue: str, ours: Collection[str], rest: Callable[[float], None], limit: float) -> str:
    """Delete a run's messages; return those still there, as a sentence. Raises `BackendUnavailable`.

    Messages of other ids than `ours` are left alone where the broker can tell them apart. Leased ones are waited for,
    `limit` seconds at most: a lease may outlive the pool that was killed with it. `rest` waits between two looks.
    """
    give_up = time.monotonic() + limit
    while True:
        strangers = _delete(backend, queue, ours)
        stats = backend.stats(queue)
        if not stats.leased or time.monotonic() >= give_up:
            return _left(queue, stats, strangers)
        rest(LEFTOVERS_LOOK_S)
        backend.reap_expired(queue)


def _delete(backend: QueueBackend, queue: str, ours: Collection[str]) -> list[str]:
    """Make one pass; return the ids of strangers' messages, as far as they are listed."""
    where = MessageFilter(queue=queue)
    if not backend.capabilities.keeps_records:
        _delete_all(backend, MessageFilter(queue=queue, states=UNHELD))
        where = MessageFilter(queue=queue, states=(State.DEAD,))
    found = [message.id for message in matching(backend, where) if message.state is not State.LEASED]
    own = [ident for ident in found if ident in ours]
    for start in range(0, len(own), PAGE_MESSAGES):
        _delete_all(backend, structs.replace(where, ids=tuple(own[start : start + PAGE_MESSAGES])))
    return [ident for ident in found if ident not in ours]


def _delete_all(backend: QueueBackend, where: MessageFilter) -> None:
    while backend.bulk(where, Verb.DELETE, limit=MAX_DELETED_MESSAGES):
        pass


def _left(queue: str, stats: QueueStats, strangers: list[str]) -> str:
    counts = {name: count for name, count in asdict(stats).items() if name not in ("oldest", "cap") and count}
    if not counts:
        return ""
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    whose = f", {len(strangers):,} of them not this run's ({', '.join(strangers[:SHOWN_IDS])})" if strangers else ""
    return f"queue {queue} still holds {told}{whose}: `jobpool purge -Q {queue}` deletes what nobody holds"
