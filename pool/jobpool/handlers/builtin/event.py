"""The built-in handler `event`: its payload names an event, and the listeners of that event run.

All listeners run, even if one before has failed; only the hard timeout ends them early. Then the attempt fails if any
of them has failed. A retry runs all of them again, so a listener must bear repeats, like any handler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from typing import Any

from msgspec.structs import replace

from jobpool.errors import Retry, Snooze
from jobpool.handlers.binding import F, bind
from jobpool.handlers.builtin import Failure, Kit, Refused, Registered, kind_of
from jobpool.handlers.ending import below_ours
from jobpool.message.context import JobContext
from jobpool.message.names import check_name


def register(listeners: dict[str, list[Registered]], function: F, event: str) -> F:
    """Add a function to those of an event, and return it. The same again (a module imported twice) replaces itself.

    Raises `ConfigurationError`: its parameters cannot be filled; `InvalidJob`: the event's name is none.
    """
    found = listeners.setdefault(check_name(event, "event name"), [])
    name = getattr(function, "__name__", type(function).__name__)
    listener = Registered(function, event, "listener of event", partial(bind, function, name, "listener"))
    places = [known.place for known in found]
    at = places.index(listener.place) if listener.place in places else len(found)
    found[at : at + 1] = [listener]
    return function


def make(kit: Kit) -> Callable[[JobContext], dict[str, Any] | None]:
    """Return the handler. Its output: the results of listeners, by their names, if any returned something."""

    def run(ctx: JobContext) -> dict[str, Any] | None:
        event, data = _read(ctx.payload)
        if event not in kit.allowances.allowed_events:
            known = ", ".join(kit.allowances.allowed_events) or "none"
            raise Refused(f"event {event!r:.80} is not allowed here; allowed_events names {known}")
        listeners = kit.listeners.get(event)
        if not listeners:
            known = ", ".join(sorted(kit.listeners)) or "no event at all"
            raise Failure(f"nothing listens to event {event!r} here; there are listeners of {known}")
        return _fire(event, listeners, ctx, data)

    return run


def _read(payload: object) -> tuple[str, Any]:
    if not isinstance(payload, dict):
        raise Refused(f'the payload of an event must be an object {{"name": …, "data": …}}, not {kind_of(payload)}')
    name = payload.get("name")
    if not isinstance(name, str) or not name:
        raise Refused(f"field 'name' of an event must be the event's name, not {name!r:.80}")
    for field in payload:
        if field not in ("name", "data"):
            raise Refused(f"field {field!r:.80} of an event is unknown; it has 'name' and 'data'")
    return name, payload.get("data", {})


def _fire(event: str, listeners: list[Registered], ctx: JobContext, data: Any) -> dict[str, Any] | None:
    values: dict[str, Any] = {}
    failed: dict[str, Exception | SystemExit] = {}
    pid = os.getpid()
    for listener in list(listeners):
        try:
            own = copy(ctx)  # with the event's data as its payload, of which each listener has a copy of its own
            own._envelope = replace(ctx._envelope, payload=deepcopy(data), ended=None)
            value = listener.bound(own)
        except (Exception, SystemExit) as error:  # the others are to run all the same
            if os.getpid() != pid:  # the end of a process that the listener forked
                raise
            failed[f"{listener.name} ({listener.place})"] = error
        else:
            if value is not None:
                values[listener.place if listener.name in values else listener.name] = value
    if not failed:
        return values or None
    errors = [error.with_traceback(below_ours(error.__traceback__)) for error in failed.values()]
    delays = [error for error in errors if isinstance(error, Retry | Snooze)]
    if len(delays) == len(errors):  # all that it needs is time
        raise max(delays, key=lambda error: (isinstance(error, Retry), error.after))
    text = f"{len(failed)} of {len(listeners)} listeners of event {event!r} failed: {', '.join(failed)}"
    raise BaseExceptionGroup(text, errors)
