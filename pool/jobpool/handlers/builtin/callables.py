"""The built-in handler `callable`: calls a function by `module:function`, if exactly that is allowed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from jobpool.handlers.builtin import Failure, Kit, Refused, kind_of
from jobpool.handlers.conversion import call_problem
from jobpool.handlers.event_loop import awaited
from jobpool.handlers.handler import Handler
from jobpool.message.context import JobContext

_FIELDS = ("callable", "args", "kwargs")


def make(kit: Kit) -> Callable[[JobContext], Any]:
    """Return the handler. The function gets no context; its return value is the output."""
    allowed = kit.allowances.allowed_callables  # checked when they were set

    def run(ctx: JobContext) -> Any:
        name, args, kwargs = _read(ctx.payload)
        if name not in allowed:  # before anything is imported
            known = ", ".join(allowed) or "none"
            raise Refused(f"callable {name!r:.200} is not allowed here; allowed_callables names {known}")
        function = _find(name)
        if problem := call_problem(function, *args, **kwargs):
            raise Failure(f"the payload does not fit callable {name!r}: {problem}")
        return awaited(function(*args, **kwargs))

    return run


def _read(payload: object) -> tuple[str, list[Any], dict[str, Any]]:
    fields = {"callable": payload} if isinstance(payload, str) else payload
    if not isinstance(fields, dict):
        raise Refused(
            "the payload must be 'module:function', or an object with 'callable' and, if need be, 'args' and 'kwargs',"
            f" not {kind_of(payload)}"
        )
    for field in fields:
        if field not in _FIELDS:
            raise Refused(f"field {field!r:.80} is unknown; there are {', '.join(map(repr, _FIELDS))}")
    name, args, kwargs = fields.get("callable"), fields.get("args", []), fields.get("kwargs", {})
    if not isinstance(name, str) or not name:
        raise Refused(f"field 'callable' must be 'module:function', not {name!r:.80}")
    if not isinstance(args, list):
        raise Refused(f"field 'args' must be a list, not {kind_of(args)}")
    if not isinstance(kwargs, dict):
        raise Refused(f"field 'kwargs' must be an object, not {kind_of(kwargs)}")
    return name, args, kwargs


def _find(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise Failure(f"callable {name!r}: there is no module {error.name!r} here") from None
        raise
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise Failure(f"callable {name!r}: module {module_name!r} has no {attribute!r}") from None
    if isinstance(found, Handler):
        raise Refused(f"callable {name!r} is the handler {found.name!r}: enqueue a job for that")
    if not callable(found):
        raise Refused(f"callable {name!r} cannot be called: it is {type(found).__name__}")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise Refused(f"callable {name!r} is a generator and would never run")
    return found  # type: ignore[no-any-return]
