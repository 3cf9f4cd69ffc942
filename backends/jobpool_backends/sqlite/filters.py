"""A `MessageFilter` as SQL, and as index ranges.

Every range is read in enqueue order, and bounded by the page. So one page costs the same at any length of the queue, if
the filter asks for queues and states. A handler, a reason, an age or a text is looked for message by message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from jobpool.broker.values import MessageFilter, State
from jobpool_backends.shared import micros
from jobpool_backends.sqlite.schema import DEAD, DELAYED, LEASED, POST_DELAYED, POSTED, WAITING

ANY_STATE = tuple(State)


def living(now: str) -> str:
    """Return SQL that holds for messages without an end, or not yet at it."""
    return f"(ends_at IS NULL OR ends_at > {now})"


LIVING = living(":now")
"""Left out where only jobs or dead letters can be met, so that these are counted without a look at each."""

_STORED = {State.WAITING: (WAITING, POSTED), State.DELAYED: (DELAYED, POST_DELAYED), State.LEASED: (LEASED,)}
_STORED[State.DEAD] = (DEAD,)
_CAN_END = (POSTED, POST_DELAYED, LEASED)
_CONDITIONS = {
    State.WAITING: "(state IN (0, 4) OR (state IN (1, 5) AND available_at <= :now))",
    State.DELAYED: "(state IN (1, 5) AND available_at > :now)",
    State.LEASED: "state = 2",
    State.DEAD: "state = 3",
}


@dataclass(slots=True)
class Search:
    """`where` holds for each living message that is wanted; `ranges` are FROM clauses that together hold them all."""

    where: str
    ranges: list[str]
    arguments: dict[str, object] = field(default_factory=dict)


def search(wanted: MessageFilter, queues: list[str], now: int) -> Search:
    """Return the search for `wanted`.

    Args:
        wanted: The filter.
        queues: All queues, for a filter that names none.
        now: Unix time in microseconds.
    """
    arguments: dict[str, object] = {"now": now}
    conditions = list(_conditions(wanted, arguments))
    return Search(" AND ".join(["1", *conditions]), _ranges(wanted, queues, arguments), arguments)


def _conditions(wanted: MessageFilter, arguments: dict[str, object]) -> list[str]:
    conditions = []

    def require(condition: str, **values: object) -> None:
        conditions.append(condition)
        arguments.update(values)

    if wanted.queue is not None:
        require("queue = :queue", queue=wanted.queue)
    if wanted.handler is not None:
        require("handler = :handler", handler=wanted.handler)
    if wanted.reason is not None:
        require("reason = :reason", reason=wanted.reason)
    if wanted.states:
        require("(" + " OR ".join(_CONDITIONS[State(state)] for state in wanted.states) + ")")
    if wanted.older_than is not None:
        require("coalesce(died_at, enqueued_at) <= :now - :older", older=micros(wanted.older_than))
    if wanted.newer_than is not None:
        require("coalesce(died_at, enqueued_at) >= :now - :newer", newer=micros(wanted.newer_than))
    if wanted.ids:
        require("id IN (SELECT value FROM json_each(:ids))", ids=json.dumps(wanted.ids))
    if wanted.text is not None:
        body = "(SELECT body FROM bodies WHERE bodies.seq = messages.seq)"
        require(f"jobpool_contains(:text, {body}, last_error, cause, forfeited)", text=wanted.text)
    return conditions


def _ranges(wanted: MessageFilter, queues: list[str], arguments: dict[str, object]) -> list[str]:
    if wanted.ids:
        return [f"messages INDEXED BY messages_by_id WHERE {LIVING} AND"]
    if wanted.queue is None and not wanted.states:
        return [f"messages NOT INDEXED WHERE {LIVING} AND"]
    ranges = []
    for number, queue in enumerate(queues if wanted.queue is None else [wanted.queue]):
        name = f"range{number}"
        arguments[name] = queue
        ranges += [source.format(name=name) for source in _sources(wanted.states or ANY_STATE)]
    return ranges


def _sources(states: tuple[State, ...]) -> list[str]:
    sources = [_listed(stored) for state in dict.fromkeys(states) for stored in _STORED[State(state)]]
    if State.WAITING in states and State.DELAYED not in states:  # delayed, fallen due, and not fetched since
        sources += [
            "messages INDEXED BY messages_due WHERE queue = :{name} AND state = 1 AND available_at <= :now AND",
            "messages INDEXED BY messages_posts_due WHERE queue = :{name} AND state = 5 AND available_at <= :now"
            f" AND {LIVING} AND",
        ]
    return sources


def _listed(stored: int) -> str:
    living = f"{LIVING} AND" if stored in _CAN_END else ""
    return f"messages INDEXED BY messages_listed WHERE queue = :{{name}} AND state = {stored} AND {living}"
