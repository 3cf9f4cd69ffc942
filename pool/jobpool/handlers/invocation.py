"""From a payload to a call: how a handler wants its arguments, worked out once per handler and not once per job.

A handler takes its `JobContext` first, and then

* nothing: it reads `ctx.payload` itself;
* one parameter annotated with a dataclass, or with a class that has `model_validate` (pydantic, which is never imported
  here): the whole payload, as that type;
* anything else: parameters filled by name from a payload that is an object, each checked against its annotation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping
from types import CoroutineType
from typing import Any

from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.handlers.conversion import Convert, Mismatch, converter, is_model, resolve_hints
from jobpool.handlers.event_loop import run_coroutine
from jobpool.message.context import JobContext

Bound = Callable[[JobContext], Any]

METHODS = ("run", "__call__")
"""Methods of a class that is a handler, the first that there is."""

_FILLED_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PayloadMismatch(JobpoolError, ValueError):
    """A payload does not fit its handler's parameters. The text names the handler and the field."""


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function was written, as `file:line (name)`."""
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')} ({name})"
    return f"{code.co_filename}:{code.co_firstlineno} ({name})"


def check_shape(function: Callable[..., Any], name: str, place: str, kind: str = "handler") -> None:
    """Refuse, where it is written, a function that no job could call. `kind`: what the text calls it.

    Raises:
        ConfigurationError: It is a class or a generator, takes no context, or has parameters that no name can fill.
    """
    if isinstance(function, type):
        raise ConfigurationError(f"{kind} {name!r}, {place}, is a class: decorate a function")
    plain = _annotated(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"{kind} {name!r}, {place}, is a generator and would never run: take the yield out")
    parameters = parameters_of(function)
    if parameters is None:
        return
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    ):
        raise ConfigurationError(f"{kind} {name!r}, {place}, must take the job's context as its first parameter")
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(
                f"{kind} {name!r}, {place}: parameter {parameter.name!r} cannot be filled by name: drop the '/'"
            )


def bind(function: Callable[..., Any], name: str, kind: str = "handler") -> Bound:
    """Return a function of the context alone that calls `function` with what the payload says and awaits it if need be.

    Calling it raises `PayloadMismatch`, whose text calls the function `kind` and `name`, or what `function` raises.
    """
    call = _by_shape(function, f"{kind} {name!r}")

    def run(ctx: JobContext) -> Any:
        value = call(ctx)
        return run_coroutine(value) if type(value) is CoroutineType else value

    return run


def _by_shape(function: Callable[..., Any], named: str) -> Bound:
    parameters = parameters_of(function) or []
    rest = parameters[1:]
    if not any(parameter.kind is not inspect.Parameter.VAR_POSITIONAL for parameter in rest):
        return function
    hints = hints_of(function)
    if len(rest) == 1 and is_model(hints.get(rest[0].name)):
        return _typed(function, named, converter(hints[rest[0].name]), rest[0])
    return _by_name(function, named, parameters, hints)


def _typed(function: Callable[..., Any], named: str, convert: Convert, parameter: inspect.Parameter) -> Bound:
    keyword = parameter.name if parameter.kind is inspect.Parameter.KEYWORD_ONLY else None

    def call(ctx: JobContext) -> Any:
        try:
            value = convert(ctx.payload, "")
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit {named}: {mismatch}") from None
        return function(ctx, value) if keyword is None else function(ctx, **{keyword: value})

    return call


def _by_name(
    function: Callable[..., Any], named: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> Bound:
    first, *rest = parameters
    converters = {p.name: converter(hints.get(p.name, Any)) for p in rest if p.kind in _FILLED_BY_NAME}
    required = [p.name for p in rest if p.kind in _FILLED_BY_NAME and p.default is inspect.Parameter.empty]
    # A function with `**fields` takes any other name, but not that of its context, or of its method's `self`.
    taken = {first.name, "self"} if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in rest) else None

    def call(ctx: JobContext) -> Any:
        try:
            arguments = _arguments(ctx.payload, converters, required, taken)
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit {named}: {mismatch}") from None
        return function(ctx, **arguments)

    return call


def _arguments(
    payload: Any, converters: Mapping[str, Convert], required: list[str], taken: Container[str] | None
) -> dict[str, Any]:
    """Return the keyword arguments. `taken`: what no further field may be called; None = there are no further
    fields.
    """
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
        elif taken is not None and field not in taken:
            arguments[field] = value
        else:
            raise Mismatch(f"field {field!r} is unknown; it takes {', '.join(map(repr, converters)) or 'none'}")
    return arguments


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's parameters, of whatever it is made."""
    return resolve_hints(_annotated(function))


def _annotated(function: Any) -> Any:
    """Return the function written with `def`: of a decorated function, a `partial`, or an object that is called."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if isinstance(function, type) or hasattr(function, "__code__"):
        return function
    return inspect.unwrap(getattr(type(function), "__call__", function))  # noqa: B004 - the method itself is wanted


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters; None for a builtin that does not tell, which is then called with the context alone."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


# --- classes as handlers ------------------------------------------------------------------------------


def as_function(cls: type, name: str) -> Callable[..., Any]:
    """Return a function that makes an instance of `cls` and calls its `run`, or `__call__`. `name`: the handler's.

    Raises:
        ConfigurationError: The class does not fit; the text says where it is and why.
    """
    method = next((known for known in METHODS if _is_plain(cls, known)), None)
    if method is None:
        raise ConfigurationError(
            f"handler {name!r}: class {_class_name(cls)} has neither a method run(self, ctx, …)"
            " nor __call__(self, ctx, …)"
        )
    _check_made_without_arguments(cls, name)

    @functools.wraps(getattr(cls, method))
    def function(ctx: Any, /, *args: Any, **fields: Any) -> Any:
        return getattr(cls(), method)(ctx, *args, **fields)

    signature = inspect.signature(getattr(cls, method))
    own, *others = signature.parameters.values()
    kept = [own] if own.kind is inspect.Parameter.VAR_POSITIONAL else []
    function.__signature__ = signature.replace(parameters=[*kept, *others])  # type: ignore[attr-defined]
    function.__name__, function.__doc__ = cls.__name__, cls.__doc__
    return function


def _is_plain(cls: type, method: str) -> bool:
    """Return whether it is a method of instances, with a place for one."""
    found = inspect.getattr_static(cls, method, None)
    if not inspect.isfunction(found):
        return False
    return any(
        parameter.kind is not inspect.Parameter.VAR_KEYWORD and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        for parameter in inspect.signature(found).parameters.values()
    )


def _check_made_without_arguments(cls: type, name: str) -> None:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]
        raise ConfigurationError(f"handler {name!r}: class {_class_name(cls)} is abstract: {missing} is not written")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"handler {name!r}: class {_class_name(cls)} is made anew for each attempt, without arguments: {error}"
        ) from None
    except ValueError:
        return  # a builtin that does not tell


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
