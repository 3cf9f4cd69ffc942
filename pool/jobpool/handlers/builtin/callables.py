"""The built-in handler `callable`: calls a function by `module:function`, if exactly that is allowed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from jobpool.handlers.builtin import Failure, Refused, kind_of
from jobpool.handlers.event_loop import run_coroutine
from jobpool.handlers.handler import Handler
from jobpool.handlers.invocation import PayloadMismatch
from jobpool.message.context import JobContext

if TYPE_CHECKING:
    from jobpool.handlers.builtin import Kit

_FIELDS = ("callable", "args", "kwargs")


def make(kit: Kit) -> Handler[[JobContext], Any]:
    """Return the handler `callable`. The function gets no context; what it returns is the output."""

    def run(ctx: JobContext) -> Any:
        name, args, kwargs = _read(ctx.payload)
        _check_allowed(name, kit.allowances.allowed_callables)
        function = _find(name)
        _check_fits(function, name, args, kwargs)
        value = function(*args, **kwargs)
        return run_coroutine(value) if type(value) is CoroutineType else value

    return Handler(run, "callable", **kit.options.get("callable", {}))


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


def _check_allowed(name: str, allowed: tuple[str, ...]) -> None:
    """Check the name before anything is imported. The allowed names were checked when they were set."""
    if name not in allowed:
        known = ", ".join(allowed) or "none"
        raise Refused(f"callable {name!r:.200} is not allowed here; allowed_callables names {known}")


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


def _check_fits(function: Callable[..., Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise PayloadMismatch(f"the payload does not fit callable {name!r}: {error}") from None
