"""JSON values to the type of an annotation, strictly: text is not a number, and a whole number is not a truth value.

`converter(annotation)` looks at the annotation once and returns a function for the values. Values of an unknown
annotation pass unchanged: an annotation is a promise to the reader first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from operator import call
from pathlib import PurePath
from typing import Any
from uuid import UUID

Convert = Callable[[Any], Any]
Fields = tuple[Mapping[str, Convert], list[str]]  # the readers of an object's fields, and the names that it must have
_QUALIFIERS = (typing.Annotated, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Annotated))
"""The origins of annotations that stand around a type; `ReadOnly` is there from Python 3.13 on."""

_PLAIN = (str, int, float, type(None), list, tuple, dict, PurePath)  # of paths, several types are equal
_MAX_FIELDS_NAMED = 5  # fields of a model that an error names


class Mismatch(ValueError):
    """A value is not what its annotation asks for. The text starts with the field.

    Attributes:
        steps: The names and positions that lead to the value, from the inside out; [] = the whole payload.
        wanted: A name for the values that fit; "" = the problem is a different one.
    """

    def __init__(self, problem: str, *steps: str | int, wanted: str = "") -> None:
        super().__init__(problem)
        self.steps, self.wanted = list(steps), wanted

    def __str__(self) -> str:
        return f"{_named(reversed(self.steps))} {self.args[0]}"


def is_model(annotation: Any) -> bool:
    """Return whether an annotation stands for a whole payload: a dataclass, or a class with `model_validate`."""
    is_class = isinstance(annotation, type)
    return is_class and (dataclasses.is_dataclass(annotation) or hasattr(annotation, "model_validate"))


def is_data(annotation: Any) -> bool:
    """Return whether an annotation is of a type that payloads are converted to; a union is if all of its members are.

    None, for a parameter without an annotation, is not.
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return all(part is type(None) or is_data(part) for part in typing.get_args(annotation))
    return annotation is not None and converter(annotation) is not unchanged


def converter(annotation: Any) -> Convert:
    """Return a function that turns JSON values into what `annotation` asks for, or raises `Mismatch`."""
    if isinstance(annotation, typing.NewType):
        return converter(annotation.__supertype__)
    if isinstance(annotation, dataclasses.InitVar):
        return converter(annotation.type)
    if callable(getattr(annotation, "model_validate", None)):
        return _model(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if typing.is_typeddict(annotation):
        return _of_fields(annotation, lambda: _fields_of_typed_dict(annotation), dict)
    origin = typing.get_origin(annotation) or annotation
    inner = typing.get_args(annotation)
    if dataclasses.is_dataclass(origin) and isinstance(origin, type):
        return _of_fields(origin, lambda: fields_of(origin, inner), origin)
    if isinstance(origin, type) and issubclass(origin, tuple) and hasattr(origin, "_fields"):
        return _named_tuple(origin)
    if isinstance(origin, type) and issubclass(origin, PurePath):
        return _parsed("a path", origin, str)
    if origin in _QUALIFIERS:
        return converter(inner[0])
    if origin in (typing.Union, types.UnionType):
        return _union(inner)
    if origin is typing.Literal:
        return _literal(inner)
    if origin in (list, set, frozenset, Sequence) or (origin in (Iterable, Collection) and inner):
        kind = origin if origin in (set, frozenset) else list
        return _items(kind, converter(inner[0]) if inner else unchanged)
    if origin is tuple:
        return _tuple(inner)
    if origin in (dict, Mapping):
        return _object(converter(inner[1]) if len(inner) == 2 else unchanged)
    return _SCALARS.get(origin, unchanged)


def unchanged(value: Any) -> Any:
    return value


def _exactly(kind: type, wanted: str, build: Convert | None = None) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(wanted, value)
        return value if build is None else build(value)

    return convert


def _parsed(wanted: str, parse: Convert, *kinds: type) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) in kinds:
            try:  # not `suppress`: it costs more than the parsing
                return parse(value)
            except (ValueError, ArithmeticError):
                pass
        raise _wrong(wanted, value)

    return convert


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    return number


def _float(number: float) -> float:
    if not math.isfinite(number := float(number)):
        raise ValueError
    return number


_SCALARS: dict[Any, Convert] = {
    None: _exactly(type(None), "null"),
    type(None): _exactly(type(None), "null"),
    str: _exactly(str, "text"),
    bool: _exactly(bool, "true or false"),
    int: _exactly(int, "a whole number"),
    float: _parsed("a number", _float, int, float),
    datetime: _parsed("a date and time in ISO 8601", datetime.fromisoformat, str),
    date: _parsed("a date in ISO 8601", date.fromisoformat, str),
    time: _parsed("a time in ISO 8601", time.fromisoformat, str),
    Decimal: _parsed("a decimal number as text", _decimal, str),
    UUID: _parsed("a UUID", UUID, str),
}


def _each(converted: Iterable[Any]) -> list[Any]:
    """Return these values. Raises the `Mismatch` of one of them, with its position."""
    made = []
    try:
        for one in converted:
            made.append(one)  # noqa: PERF402 - `list` would not tell the position
    except Mismatch as mismatch:
        mismatch.steps.append(len(made))
        raise
    return made


def _items(kind: Convert, convert: Convert) -> Convert:
    return _exactly(list, "a list", lambda value: kind(_each(map(convert, value))))


def _tuple(inner: tuple[Any, ...]) -> Convert:
    if not inner or inner[-1] is Ellipsis:
        return _items(tuple, converter(inner[0]) if inner else unchanged)
    converters = [converter(part) for part in inner]

    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converters):
            raise _wrong(f"a list of {len(converters)}", value)
        return tuple(_each(map(call, converters, value)))

    return convert


def _named_tuple(kind: Any) -> Convert:
    @functools.cache
    def read() -> Convert:  # at the first value, as in `_of_fields`
        hints = resolve_hints(kind)
        return _tuple(tuple(hints.get(name, Any) for name in kind._fields))

    return lambda value: kind._make(read()(value))


def _object(convert: Convert) -> Convert:
    return _exactly(dict, "an object", lambda value: fill(value, {}, taken=(), further=convert))


def _union(inner: tuple[Any, ...]) -> Convert:
    options = [converter(part) for part in inner if part is not type(None)]
    may_be_none = len(options) < len(inner)

    def convert(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        problems = []
        for option in options:
            try:
                return option(value)
            except Mismatch as mismatch:
                problems.append(mismatch.with_traceback(None))  # its frames hold this list
        # The member that was meant is the one that fits deepest, and whose names are known.
        closest = max(problems, key=lambda one: (len(one.steps), one.wanted != ""))
        if closest.wanted and not closest.steps:
            raise _wrong(" or ".join(dict.fromkeys(one.wanted for one in problems if one.wanted)), value)
        raise closest

    return convert


def _literal(allowed: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        for one in allowed:
            if type(value) is type(one) and value == one:
                return one
        raise _wrong("one of " + ", ".join(map(repr, allowed)), value)

    return convert


def _enum(kind: type[Enum]) -> Convert:
    allowed = ", ".join(repr(member.value) for member in kind)
    types = {type(member.value) for member in kind}

    def convert(value: Any) -> Any:
        # To Python, True is 1, and 1.0 is 1 too.
        if type(value) in types or not isinstance(value, bool | float):
            with contextlib.suppress(ValueError):
                return kind(value)
        raise _wrong(f"one of {allowed}", value)

    return convert


def _model(kind: Any) -> Convert:
    def convert(value: Any) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError is one
            raise Mismatch(f"does not fit {kind.__name__}: {_of_model(error)}") from None

    return convert


def _of_model(error: ValueError) -> str:
    """Return a model's complaint in one sentence: pydantic's own text has two lines a field, its value and a link."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = [f"{_named(one['loc'])}: {one['msg']}" for one in errors()]
    more = f"; and {len(found) - _MAX_FIELDS_NAMED} more" if len(found) > _MAX_FIELDS_NAMED else ""
    return "; ".join(found[:_MAX_FIELDS_NAMED]) + more


def _of_fields(kind: Any, fields: Callable[[], Fields], make: Callable[..., Any]) -> Convert:
    """Return the reader of a class with these fields, which `make` takes by name."""
    known = functools.cache(fields)  # from the first value on, so that a class may contain itself

    def build(value: dict[str, Any]) -> Any:
        return make(**fill(value, *known(), f"{kind.__name__} has"))

    return _exactly(dict, f"an object with the fields of {kind.__name__}", build)


def _fields_of_typed_dict(kind: Any) -> Fields:
    hints = resolve_hints(kind)
    fields = {name: converter(hints.get(name, Any)) for name in annotations_of(kind)}
    return fields, [name for name in fields if _is_required(hints.get(name), name in kind.__required_keys__)]


def _is_required(hint: Any, by_default: bool) -> bool:
    """Return whether a field must be there. `__required_keys__` does not see into an annotation that is text."""
    while (origin := typing.get_origin(hint)) in _QUALIFIERS:
        if origin in (typing.Required, typing.NotRequired):
            return origin is typing.Required
        hint = typing.get_args(hint)[0]
    return by_default


def fields_of(kind: type, given: Sequence[Any] = ()) -> Fields:
    """Return the fields that make a dataclass. `given`: types of a generic one."""
    variables = dict(zip(getattr(kind, "__parameters__", ()), given, strict=False))
    hints = resolve_hints(kind)
    parts = signature(kind).parameters.values()
    fields = {part.name: converter(_filled_in(hints.get(part.name, Any), variables)) for part in parts}
    return fields, [part.name for part in parts if part.default is part.empty]


def _filled_in(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """Return an annotation with the types that stand for its variables."""
    inner = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) else ()
    if variables and inner:
        return hint[tuple(variables.get(one, one) for one in inner)]
    return variables.get(hint, hint) if isinstance(hint, typing.TypeVar) else hint


def fill(
    value: Mapping[str, Any],
    fields: Mapping[str, Convert],
    required: Iterable[str] = (),
    known: str = "it takes",
    taken: Container[str] | None = None,
    further: Convert = unchanged,
) -> dict[str, Any]:
    """Return the fields of an object, each converted. Raises `Mismatch`: one is missing or unknown, or does not fit.

    `known`: begins the list of fields in the text. `taken`: names that no further field may have; None = there are no
    further fields. `further`: reads these.
    """
    filled = {}
    for name, item in value.items():
        convert = fields.get(name)
        if convert is None:
            if taken is None or name in taken:
                raise unknown(name, fields, known)
            convert = further
        try:
            filled[name] = convert(item)
        except Mismatch as mismatch:
            mismatch.steps.append(name)
            raise
    for name in required:  # last: a misspelt one is unknown first, and then the text tells the names
        if name not in value:
            raise Mismatch("is missing", name)
    return filled


def check_types(given: Any, back: Any, hint: Any = None) -> None:
    """Raise `Mismatch` if an object is read as one of another type: of a base class, or the first of a union.

    Of plain JSON values nothing is checked, as many types are read from them. An object may become one, unless its
    own type is in the union. `hint`: the annotation, or those of an object's fields by name.
    """
    if type(given) is type(back) and given == back:
        return  # soon, for a long list of numbers
    parts: Iterable[tuple[str | int, Any, Any]] = ()
    hints: Any = hint if isinstance(hint, dict) else {}
    if isinstance(given, dict) and isinstance(back, dict):
        parts = [(name, item, back.get(name)) for name, item in given.items()]
    elif isinstance(given, list | tuple) and isinstance(back, list | tuple):
        parts = [(at, *pair) for at, pair in enumerate(zip(given, back, strict=False))]
    elif type(given) is type(back) and dataclasses.is_dataclass(given):
        hints = resolve_hints(type(given))
        names = [part.name for part in dataclasses.fields(given) if part.init]
        parts = [(name, getattr(given, name), getattr(back, name)) for name in names]
    elif (
        type(given) is not type(back)
        and not isinstance(given, _PLAIN)
        and (not isinstance(back, _PLAIN) or type(given) in typing.get_args(hint))
    ):
        raise Mismatch(f"is a {type(given).__name__}, but the handler would get a {type(back).__name__}")
    inner = (typing.get_args(hint) or (None,))[-1]  # of the items of a list, or the values of an object
    for step, one, other in parts:
        try:
            check_types(one, other, hints.get(step, inner))
        except Mismatch as mismatch:
            mismatch.steps.append(step)
            raise


def unknown(name: str, fields: Iterable[str], known: str = "it takes", mend: str = "") -> Mismatch:
    """Return the error of a field that is not there. `known`: begins the list of those that are."""
    return Mismatch(f"is unknown; {known} {', '.join(map(repr, fields)) or 'none'}{mend}", name)


def _wrong(wanted: str, value: Any) -> Mismatch:
    shown = repr(value)
    return Mismatch(f"must be {wanted}, not {shown if len(shown) <= 80 else shown[:77] + '...'}", wanted=wanted)


def _named(steps: Iterable[str | int]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
    return f"field {path!r}" if path else "it"


# --- annotations --------------------------------------------------------------------------------------

if sys.version_info >= (3, 14):  # each is evaluated when it is asked for; names for type checkers stay unresolved
    from annotationlib import Format, get_annotations

    signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
    annotations_of = functools.partial(get_annotations, format=Format.FORWARDREF)
else:
    signature, annotations_of = inspect.signature, inspect.get_annotations


def call_problem(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> str:
    """Return why a function cannot be called with these arguments; "" = it can, or a builtin does not tell."""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def resolve_hints(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or class as objects, without those whose names cannot be found.

    One by one, because `typing.get_type_hints` gives up on all of them when one was imported for type checkers only.
    """
    hints: dict[str, Any] = {}
    for holder in reversed(owner.__mro__) if isinstance(owner, type) else (owner,):
        names = _names(holder)
        for name, annotation in annotations_of(holder).items():
            hints.pop(name, None)  # of a base
            carrier = type("_Carrier", (), {"__annotations__": {name: annotation}})
            with contextlib.suppress(Exception):  # an annotation may be any expression
                hints[name] = typing.get_type_hints(carrier, *names, include_extras=True)[name]
    return hints


def _names(owner: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names that annotations of `owner` may use: of its module, and of the function around it."""
    if isinstance(owner, type):
        module = sys.modules.get(owner.__module__)
        return dict(vars(module)) if module else {}, {owner.__name__: owner}
    code, closure = getattr(owner, "__code__", None), getattr(owner, "__closure__", None)
    cells = {}
    for name, cell in zip(code.co_freevars if code and closure else (), closure or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            cells[name] = cell.cell_contents
    return dict(getattr(owner, "__globals__", {})), cells
