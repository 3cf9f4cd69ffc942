"""The built-in handler `event`: its payload names an event, and the listeners of that event run.

All listeners run, whatever becomes of those before them; only the hard timeout ends it. Then the attempt fails if any
of them has failed, and a retry runs all of them again: a listener has to bear that, like any handler.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from jobpool.errors import Retry, Snooze
from jobpool.handlers.builtin import Failure, Refused, kind_of
from jobpool.handlers.ending import below_ours
from jobpool.handlers.handler import Handler
from jobpool.handlers.invocation import Bound, bind, check_shape, place_of
from jobpool.message.context import JobContext
from jobpool.message.names import check_name

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit

F = TypeVar("F", bound=Callable[..., Any])


class Listener:
    """A function that is called for an event.

    Attributes:
        name: Of the function.
        place: Where it was written.
    """

    def __init__(self, event: str, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.place: str = place_of(function)
        self._function = function
        self._bound: Bound | None = None
        check_shape(function, event, self.place, "listener of event")

    @property
    def bound(self) -> Bound:
        """The function, called with a context alone. Made at the first use."""
        if self._bound is None:
            self._bound = bind(self._function, self.name, "listener")
        return self._bound


class EventContext(JobContext):
    """The job's context, with the event's data as its payload."""

    __slots__ = ("_data",)

    def __init__(self, ctx: JobContext, data: Any) -> None:
        for name in JobContext.__slots__:
            setattr(self, name, getattr(ctx, name))
        self._data = data

    @property
    def payload(self) -> Any:
        return self._data


def register(listeners: dict[str, list[Listener]], function: F, event: str) -> F:
    """Add a function to those of an event, and return it. The same again (a module imported twice) replaces itself.

    Raises:
        ConfigurationError: Its parameters cannot be filled.
        InvalidJob: The event's name is none.
    """
    found = listeners.setdefault(check_name(event, "event name"), [])
    listener = Listener(event, function)
    places = [known.place for known in found]
    if listener.place in places:
        found[places.index(listener.place)] = listener
    else:
        found.append(listener)
    return function


def make(kit: Kit) -> Handler[[JobContext], dict[str, Any] | None]:
    """Return the handler `event`. Its output: what listeners returned, by their names, if any returned something."""

    def run(ctx: JobContext) -> dict[str, Any] | None:
        event, data = _read(ctx.payload)
        _check_allowed(event, kit.allowances.allowed_events)
        listeners = kit.listeners.get(event)
        if not listeners:
            known = ", ".join(sorted(kit.listeners)) or "no event at all"
            raise Failure(f"nothing listens to event {event!r} here; there are listeners of {known}")
        return _fire(event, listeners, ctx, data)

    return Handler(run, "event", **kit.options.get("event", {}))


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


def _check_allowed(event: str, allowed: tuple[str, ...]) -> None:
    if event not in allowed:
        known = ", ".join(allowed) or "none"
        raise Refused(f"event {event!r:.80} is not allowed here; allowed_events names {known}")


def _fire(event: str, listeners: list[Listener], ctx: JobContext, data: Any) -> dict[str, Any] | None:
    values: dict[str, Any] = {}
    failed: dict[str, BaseException] = {}
    for listener in list(listeners):
        try:
            value = listener.bound(EventContext(ctx, deepcopy(data)))  # each listener has a copy of its own
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the others are to run all the same
            failed[f"{listener.name} ({listener.place})"] = error
        else:
            if value is not None:
                values[listener.place if listener.name in values else listener.name] = value
    if failed:
        raise _failure(event, failed, len(listeners))
    return values or None


def _failure(event: str, failed: dict[str, BaseException], count: int) -> BaseException:
    """Return one error for all failures; a single one that asks for a delay is returned as it is."""
    errors = [error.with_traceback(below_ours(error.__traceback__)) for error in failed.values()]
    if all(isinstance(error, Retry | Snooze) for error in errors):
        return max(errors, key=lambda error: (isinstance(error, Retry), error.after))  # type: ignore[attr-defined]
    text = f"{len(failed)} of {count} listeners of event {event!r} failed: {', '.join(failed)}"
    return BaseExceptionGroup(text, errors)
