"""A function's parameters: how a payload fills them, and how a producer's call makes that payload.

Models of a payload are known by their `model_validate`: pydantic is never imported here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, TypeGuard, TypeVar

from jobpool.errors import ConfigurationError, Unrecoverable
from jobpool.handlers.conversion import (
    Convert,
    Mismatch,
    converter,
    fields_of,
    fill,
    is_data,
    is_model,
    resolve_hints,
    signature,
    unchanged,
    unknown,
)
from jobpool.handlers.event_loop import awaited
from jobpool.message.context import JobContext

Bound = Callable[[JobContext], Any]
F = TypeVar("F", bound=Callable[..., Any])  # the function that a decorator takes and returns

FILLED_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
CONTEXT_NAMES = ("ctx", "context", "job", "self")  # for a context without a type; it may begin with _ too
_SETS = (set, frozenset)
_JSON_TYPES = (str, int, float, bool, list, dict, type(None))
_NOT_FIELDS = {
    "connection": "; to enqueue within your transaction: jobs.enqueue(handler.define(…), connection=…)",
    "countdown": "; to start later: handler.define(…).delay(seconds).dispatch()",
}


class PayloadMismatch(Unrecoverable, ValueError):
    """A payload can never fit its handler's parameters. The text names the handler and the field."""


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function was written, as `file:line (name)`; of one in a notebook or a console `module (name)`.

    There it may be written again, and takes its own place.
    """
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    if code is None or ("__file__" not in function.__globals__ and "<" not in name):
        return f"{getattr(function, '__module__', '?')} ({name})"
    return f"{code.co_filename}:{code.co_firstlineno} ({name})"


def check_shape(function: Callable[..., Any], name: str, kind: str = "handler") -> None:
    """Refuse, where it is written, a function that no job could call. `kind`: the noun for it in the error.

    Raises `ConfigurationError`: a class, a generator, no context, or parameters that no name can fill.
    """
    shown = f"{kind} {name!r}, {place_of(function)}"
    if isinstance(function, type):
        raise ConfigurationError(f"{shown}, is a class: decorate a function")
    plain = _annotated(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"{shown}, is a generator and would never run: take the yield out")
    parameters = parameters_of(function)
    takes_context = _takes_context(parameters, hints := hints_of(function))
    needs_context = kind != "handler" or JobContext in [hints.get(part.name) for part in parameters]
    if needs_context and not takes_context:
        raise ConfigurationError(f"{shown}, must take the job's context as its first parameter")
    if kind == "handler" and takes_context:
        _check_context(plain, parameters, hints, shown)
    for parameter in parameters[takes_context:]:
        if hints.get(parameter.name) is JobContext:
            raise ConfigurationError(f"{shown}, takes the job's context twice: no payload fills {parameter.name!r}")
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise ConfigurationError(f"{shown}: parameter {parameter.name!r} cannot be filled by name: drop the '/'")
        # One with a default need not be filled, and pydantic's EmailStr and its like stand for texts.
        hint = parameter.default is Parameter.empty and hints.get(parameter.name)
        if _is_foreign(hint, *_JSON_TYPES) and not hasattr(hint, "__get_pydantic_core_schema__"):
            raise ConfigurationError(f"{shown}: {_cannot_be(parameter.name, hint)}")


def bind(function: Callable[..., Any], name: str, kind: str = "handler", parameters: Parameters | None = None) -> Bound:
    """Return a function of the context alone that calls `function` with what the payload says and awaits it if need be.

    Calling it raises `PayloadMismatch`, whose text calls the function `kind` and `name`, or what `function` raises.
    """
    known = parameters or Parameters(function)
    read = known.read
    if read is None:
        return lambda ctx: awaited(function(ctx))

    def run(ctx: JobContext) -> Any:
        try:
            model, fields = read(ctx.payload)
        except Mismatch as mismatch:
            raise PayloadMismatch(f"the payload does not fit {kind} {name!r}: {mismatch}") from None
        return awaited(function(ctx, *model, **fields) if known.context else function(*model, **fields))

    return run


class Parameters:
    """A function's parameters: how a payload fills them, and how a producer's call makes that payload.

    Worked out once per handler and not once per job.

    Attributes:
        hints: Its annotations by name.
        context: Name of the first one, if it gets the job's context; "" = none does.
        read: Makes arguments of a payload, by position and by name, or raises `Mismatch`; None = it takes
            its context alone, annotated so, and any payload.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        every = parameters_of(function)
        self.hints = hints = hints_of(function)
        takes_context = _takes_context(every, hints)
        self.context = every[0].name if takes_context else ""
        self._rest = every[1:] if takes_context else every
        self._positions = [part.name for part in self._rest if part.kind is Parameter.POSITIONAL_OR_KEYWORD]
        self._converters: Mapping[str, Convert] = {}
        self._further: Convert = unchanged  # reads further fields
        self._taken: set[str] | None = None  # names that no further field may have; None = there are no further fields
        self._model: type | None = None
        self.read: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
        first = self._rest[0] if len(self._rest) == 1 else None
        if first and first.kind is not Parameter.VAR_KEYWORD and is_model(hint := hints.get(first.name)):
            self._model = hint
            self.read = self._read_model(first, hint)
        elif not takes_context or any(part.kind is not Parameter.VAR_POSITIONAL for part in self._rest):
            self.read = self._read_fields(hints)
        self._by_field = self.read is not None and self._model is None
        if self.read is None and _untyped(every[0], hints):
            self.read = self._read_none(self.context)

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the payload of a call, in which there may still be values that JSON does not know.

        Raises `Mismatch`: too many arguments by position, or the context is given.
        """
        if args or (self._by_field and self.context in kwargs):
            kwargs = self._by_name(args, kwargs)
        if self._by_field:
            self._check_names(kwargs)
        if self._model is not None and len(kwargs) == 1:
            wanted, value = self._rest[0].name, kwargs.get(self._rest[0].name)
            if isinstance(value, self._model):
                return value
            if args:
                kind = type(value).__name__
                raise Mismatch(f"must be {self._model.__name__}, not {kind}; or give its fields by name", wanted)
        for key, value in kwargs.items():
            if type(value) in _SETS:  # refused elsewhere, because JSON has none: here a parameter says how it is read
                kwargs[key] = list(value)
        return kwargs

    def fits(self, name: str, value: Any) -> bool:
        """Return whether a JSON value suits this parameter, or field of the whole payload; True of an unknown one."""
        kind = self._model
        known = fields_of(kind)[0] if kind is not None and dataclasses.is_dataclass(kind) else self._converters
        try:
            known.get(name, self._further)(value)
        except Mismatch:
            return False
        return True

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = dict(zip(self._positions, args, strict=False))
        by = f"; its first parameter {self.context!r} is the job's context, given by the pool" if self.context else ""
        if len(args) > len(self._positions):
            raise Mismatch(f"takes {len(self._positions)} by position, not {len(args)}{by}")
        if twice := given.keys() & kwargs.keys():
            raise Mismatch(f"is given twice{by}", min(twice))
        if self.context in kwargs:
            raise Mismatch(f"must be left out{by}", self.context)
        return given | kwargs

    def _check_names(self, fields: dict[str, Any]) -> None:
        """Refuse an unknown field before its value: a value that JSON cannot carry was often not meant for it."""
        for name in fields:
            if name not in self._converters and (self._taken is None or name in self._taken):
                raise unknown(name, self._converters, mend=_NOT_FIELDS.get(name, ""))

    @staticmethod
    def _read_none(context: str) -> Callable[[Any], tuple[tuple[()], dict[str, Any]]]:
        """Return a reader of any payload but one that shows that the context is meant to be an argument."""

        def read(payload: Any) -> tuple[tuple[()], dict[str, Any]]:
            if type(payload) is dict and context in payload:
                raise Mismatch(f"would be lost, as {_annotate(context)}", context)
            return (), {}

        return read

    @staticmethod
    def _read_model(only: Parameter, hint: Any) -> Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]:
        convert = converter(hint)

        def read(payload: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            try:
                model = convert(payload)
            except Mismatch as mismatch:
                if type(payload) is dict and payload.keys() == {only.name}:
                    mismatch.args = (f"{mismatch.args[0]}; the whole payload is the {hint.__name__}",)
                raise
            return ((), {only.name: model}) if only.kind is Parameter.KEYWORD_ONLY else ((model,), {})

        return read

    def _read_fields(self, hints: dict[str, Any]) -> Callable[[Any], tuple[tuple[()], dict[str, Any]]]:
        named = [parameter for parameter in self._rest if parameter.kind in FILLED_BY_NAME]
        self._converters = {parameter.name: converter(hints.get(parameter.name, Any)) for parameter in named}
        required = [parameter.name for parameter in named if parameter.default is Parameter.empty]
        # A function with `**fields` takes any other name, but not that of its context, or of its method's `self`.
        if self._rest and self._rest[-1].kind is Parameter.VAR_KEYWORD:
            self._taken, self._further = {self.context, "self"}, converter(hints.get(self._rest[-1].name, Any))

        def read(payload: Any) -> tuple[tuple[()], dict[str, Any]]:
            if type(payload) is not dict:
                raise Mismatch(f"must be an object with the handler's parameters, not {type(payload).__name__}")
            return (), fill(payload, self._converters, required, taken=self._taken, further=self._further)

        return read


def _takes_context(parameters: list[Parameter], hints: dict[str, Any]) -> bool:
    """Return whether the first parameter gets the job's context: by position, and not annotated as data."""
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        return False
    return not is_data(hints.get(parameters[0].name))


def _untyped(first: Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(first.name, first.annotation)  # an annotation that cannot be resolved is one too
    return first.kind is Parameter.POSITIONAL_OR_KEYWORD and (hint is Any or hint is Parameter.empty)


def _annotate(name: str) -> str:
    return (
        f"parameter {name!r} has no type, and so is the job's context: annotate it ({name}: str, or {name}:"
        " jobpool.JobContext if it is the context)"
    )


def _check_context(plain: Any, parameters: list[Parameter], hints: dict[str, Any], shown: str) -> None:
    """Raise `ConfigurationError` if the parameter that gets the context was plainly meant for something else."""
    first, *others = parameters
    name, hint = first.name, hints.get(first.name)
    # Not every `self` is a method's: Celery's tasks call their context so.
    if name in ("self", "cls") and "." in getattr(plain, "__qualname__", "").rpartition("<locals>.")[2]:
        raise ConfigurationError(f"{shown}, is a method: decorate its class, which then needs run(self, …)")
    takes_fields = any(part.kind in FILLED_BY_NAME for part in others)  # else a call with arguments is refused
    if takes_fields and _untyped(first, hints) and name not in CONTEXT_NAMES and not name.startswith("_"):
        raise ConfigurationError(f"{shown}: {_annotate(name)}")
    if _is_foreign(hint, JobContext):
        raise ConfigurationError(f"{shown}: {_cannot_be(name, hint)}, or put ctx: jobpool.JobContext before it")


def _is_foreign(hint: Any, *kinds: type) -> TypeGuard[type]:
    """Return whether an annotation is a class that no payload is converted to, and that has nothing of these kinds."""
    if not isinstance(hint, type) or hint is Any or is_data(hint):
        return False
    try:
        return not any(issubclass(kind, hint) or issubclass(hint, kind) for kind in kinds)
    except TypeError:  # a protocol: they may be of its kind
        return False


def _cannot_be(name: str, hint: type) -> str:
    return f"parameter {name!r} cannot be a {hint.__name__}, which no payload is converted to: choose another type"


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


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters; of a builtin that does not tell, the context alone."""
    try:
        return list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return [Parameter("ctx", Parameter.POSITIONAL_ONLY)]
