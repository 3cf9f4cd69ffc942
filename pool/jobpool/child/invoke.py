"""From a payload to a call: how a handler wants its arguments, worked out once per handler and not once per job.

A handler takes its `JobContext` first, and then

* nothing: it reads `ctx.payload` itself;
* one parameter annotated with a dataclass, or with a class that has `model_validate` (pydantic, which is never imported
  here): the whole payload, as that type;
* anything else: parameters filled by name from a payload that is an object, each checked against its annotation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any

from jobpool.child.convert import Convert, Mismatch, converter, is_model, resolve_hints
from jobpool.child.loops import run_coroutine
from jobpool.context import JobContext
from jobpool.errors import ConfigurationError, JobpoolError

Bound = Callable[[JobContext], Any]

_FILLED_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PayloadMismatch(JobpoolError, ValueError):
    """A payload does not fit its handler's parameters. The text names the handler and the field."""


def check_shape(function: Callable[..., Any], name: str, place: str) -> None:
    """Refuse, where it is written, a function that no job could call.

    Raises:
        ConfigurationError: It is a generator, takes no context, or has parameters that cannot be filled by name.
    """
    plain = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"handler {name!r}, {place}, is a generator and would never run: take the yield out")
    parameters = _parameters(function)
    if parameters is None:
        return
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    ):
        raise ConfigurationError(f"handler {name!r}, {place}, must take the job's context as its first parameter")
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"handler {name!r}, {place}: parameter {parameter.name!r} cannot be filled by name: drop the '/'"
            )


def bind(function: Callable[..., Any], name: str) -> Bound:
    """A function of the context alone that calls `function` with what the payload says and awaits it if need be.

    Calling it raises `PayloadMismatch`, or what `function` raises.
    """
    call = _by_shape(function, name)

    def run(ctx: JobContext) -> Any:
        value = call(ctx)
        return run_coroutine(value) if type(value) is CoroutineType else value

    return run


def _by_shape(function: Callable[..., Any], name: str) -> Bound:
    rest = (_parameters(function) or [])[1:]
    if not any(parameter.kind is not inspect.Parameter.VAR_POSITIONAL for parameter in rest):
        return function
    hints = resolve_hints(inspect.unwrap(function))
    if len(rest) == 1 and is_model(hints.get(rest[0].name)):
        return _typed(function, name, converter(hints[rest[0].name]), rest[0])
    return _by_name(function, name, rest, hints)


def _typed(function: Callable[..., Any], name: str, convert: Convert, parameter: inspect.Parameter) -> Bound:
    keyword = parameter.name if parameter.kind is inspect.Parameter.KEYWORD_ONLY else None

    def call(ctx: JobContext) -> Any:
        try:
            value = convert(ctx.payload, "")
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit handler {name!r}: {mismatch}") from None
        return function(ctx, value) if keyword is None else function(ctx, **{keyword: value})

    return call


def _by_name(function: Callable[..., Any], name: str, rest: list[inspect.Parameter], hints: Mapping[str, Any]) -> Bound:
    converters = {p.name: converter(hints.get(p.name, Any)) for p in rest if p.kind in _FILLED_BY_NAME}
    required = [p.name for p in rest if p.kind in _FILLED_BY_NAME and p.default is inspect.Parameter.empty]
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in rest)

    def call(ctx: JobContext) -> Any:
        try:
            arguments = _arguments(ctx.payload, converters, required, takes_all)
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit handler {name!r}: {mismatch}") from None
        return function(ctx, **arguments)

    return call


def _arguments(payload: Any, converters: Mapping[str, Convert], required: list[str], takes_all: bool) -> dict[str, Any]:
    if type(payload) is not dict:
        raise Mismatch(f"it must be an object with the handler's parameters, not {type(payload).__name__}")
    for field in required:
        if field not in payload:
            raise Mismatch(f"field {field!r} is missing")
    arguments = {}
    for field, value in payload.items():
        convert = converters.get(field)
        if convert is not None:
            arguments[field] = convert(value, field)
        elif takes_all and field != "self":
            arguments[field] = value
        else:
            raise Mismatch(f"field {field!r} is unknown; it takes {', '.join(map(repr, converters)) or 'none'}")
    return arguments


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """None for a builtin that does not tell; it is then called with the context alone."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
