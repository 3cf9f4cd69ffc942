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
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

Convert = Callable[[Any, str], Any]  # of a value and the path of its field ("" = the payload itself)
_QUALIFIERS = (typing.Annotated, typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Annotated))
"""The origins of annotations that stand around a type; `ReadOnly` is there from Python 3.13 on."""

_PLAIN = (str, int, float, type(None), list, tuple, dict, PurePath)  # of paths, several types are equal
_MAX_FIELDS_NAMED = 5  # fields of a model that an error names


class Mismatch(ValueError):
    """A value is not what its annotation asks for. The text starts with the field."""


def is_model(annotation: Any) -> bool:
    """Return whether an annotation stands for a whole payload: a dataclass, or a class with `model_validate`."""
    if not isinstance(annotation, type):
        return False
    return dataclasses.is_dataclass(annotation) or callable(getattr(annotation, "model_validate", None))


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
    if callable(getattr(annotation, "model_validate", None)):
        return _model(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if typing.is_typeddict(annotation):
        return _of_fields(annotation, _fields_of_typed_dict, dict)
    origin = typing.get_origin(annotation) or annotation
    inner = typing.get_args(annotation)
    if dataclasses.is_dataclass(origin) and isinstance(origin, type):
        return _of_fields(origin, lambda kind: fields_of(kind, inner), origin)
    if isinstance(origin, type) and issubclass(origin, tuple) and hasattr(origin, "_fields"):
        return _named_tuple(origin)
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


def unchanged(value: Any, _where: str) -> Any:
    return value


def _exactly(kind: type, wanted: str) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if type(value) is kind:
            return value
        raise _wrong(where, wanted, value)

    return convert


def _parsed(wanted: str, parse: Callable[[Any], Any], *kinds: type) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if type(value) in kinds:
            try:  # not `suppress`: it costs more than the parsing
                return parse(value)
            except (ValueError, ArithmeticError):
                pass
        raise _wrong(where, wanted, value)

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
    Path: _parsed("a path", Path, str),
}


def _checked(kind: type, wanted: str, build: Convert) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _wrong(where, wanted, value)
        return build(value, where)

    return convert


def _items(kind: Callable[[list[Any]], Any], convert: Convert) -> Convert:
    is_scalar = convert in _SCALARS.values() or convert is unchanged

    def build(value: Any, where: str) -> Any:
        if is_scalar:  # a long list of numbers: a path is made only for the one that is wrong
            with contextlib.suppress(Mismatch):
                return kind([convert(item, "") for item in value])
        return kind([convert(item, f"{where}[{at}]") for at, item in enumerate(value)])

    return _checked(list, "a list", build)


def _tuple(inner: tuple[Any, ...]) -> Convert:
    if not inner or inner[-1] is Ellipsis:
        return _items(tuple, converter(inner[0]) if inner else unchanged)
    converters = [converter(part) for part in inner]

    def convert(value: Any, where: str) -> Any:
        if type(value) is not list or len(value) != len(converters):
            raise _wrong(where, f"a list of {len(converters)}", value)
        pairs = enumerate(zip(converters, value, strict=True))
        return tuple(part(item, f"{where}[{at}]") for at, (part, item) in pairs)

    return convert


def _named_tuple(kind: Any) -> Convert:
    known: list[Convert] = []

    def build(value: Any, where: str) -> Any:
        if not known:  # at the first value, as in `_of_fields`
            hints = resolve_hints(kind)
            known.append(_tuple(tuple(hints.get(name, Any) for name in kind._fields)))
        return kind._make(known[0](value, where))

    return build


def _object(convert: Convert) -> Convert:
    def build(value: Any, where: str) -> Any:
        return {key: convert(item, _path(where, key)) for key, item in value.items()}

    return _checked(dict, "an object", build)


def _union(inner: tuple[Any, ...]) -> Convert:
    options = [converter(part) for part in inner]

    def convert(value: Any, where: str) -> Any:
        problems = []
        for option in options:
            try:
                return option(value, where)
            except Mismatch as mismatch:
                problems.append(str(mismatch))
        # The last is as good as any when they differ, and with `T | None` the first is about the type that was meant.
        raise Mismatch(problems[0] if value is not None else problems[-1])

    return convert


def _literal(allowed: tuple[Any, ...]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        for one in allowed:
            if type(value) is type(one) and value == one:
                return one
        raise _wrong(where, "one of " + ", ".join(map(repr, allowed)), value)

    return convert


def _enum(kind: type[Enum]) -> Convert:
    allowed = ", ".join(repr(member.value) for member in kind)
    types = {type(member.value) for member in kind}

    def convert(value: Any, where: str) -> Any:
        # To Python, True is 1, and 1.0 is 1 too.
        if type(value) in types or not isinstance(value, bool | float):
            with contextlib.suppress(ValueError):
                return kind(value)
        raise _wrong(where, f"one of {allowed}", value)

    return convert


def _model(kind: Any) -> Convert:
    def convert(value: Any, where: str) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError is one
            raise Mismatch(f"{_named(where)} does not fit {kind.__name__}: {_of_model(error, where)}") from None

    return convert


def _of_model(error: ValueError, where: str) -> str:
    """Return a model's complaint in one sentence: pydantic's own text has two lines a field, its value and a link."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = []
    for one in errors():
        path = where
        for step in one["loc"]:
            path = f"{path}[{step}]" if isinstance(step, int) else _path(path, step)
        found.append(f"{_named(path)}: {one['msg']}")
    more = f"; and {len(found) - _MAX_FIELDS_NAMED} more" if len(found) > _MAX_FIELDS_NAMED else ""
    return "; ".join(found[:_MAX_FIELDS_NAMED]) + more


def _of_fields(
    kind: Any, fields: Callable[[Any], tuple[Mapping[str, Convert], list[str]]], make: Callable[..., Any]
) -> Convert:
    """Return the reader of a class with these fields, and those that are required; `make` takes them by name."""
    known: list[tuple[Mapping[str, Convert], list[str]]] = []

    def build(value: Any, where: str) -> Any:
        if not known:  # at the first value, so that a class may contain itself
            known.append(fields(kind))
        return make(**fill(value, where, *known[0], f"{kind.__name__} has"))

    return _checked(dict, f"an object with the fields of {kind.__name__}", build)


def _fields_of_typed_dict(kind: Any) -> tuple[Mapping[str, Convert], list[str]]:
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


def fields_of(kind: type, given: Sequence[Any] = ()) -> tuple[Mapping[str, Convert], list[str]]:
    """Return the readers of a dataclass's fields, and those that are required. `given`: types of a generic one."""
    variables = dict(zip(getattr(kind, "__parameters__", ()), given, strict=False))
    hints = {name: _filled_in(hint, variables) for name, hint in resolve_hints(kind).items()}
    inits = {
        name: hint.type if isinstance(hint, dataclasses.InitVar) else Any
        for name, hint in hints.items()
        if hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar)
    }
    kept = {part.name for part in dataclasses.fields(kind) if part.init}
    # `__dataclass_fields__` also has those for `__post_init__` only, which `fields` leaves out.
    every = kind.__dataclass_fields__.values()  # type: ignore[attr-defined]
    fields = [part for part in every if part.name in kept or part.name in inits]
    missing = dataclasses.MISSING
    required = [part.name for part in fields if part.default is missing and part.default_factory is missing]
    return {part.name: converter((hints | inits).get(part.name, Any)) for part in fields}, required


def _filled_in(hint: Any, variables: Mapping[Any, Any]) -> Any:
    """Return an annotation with the types that stand for its variables."""
    inner = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) else ()
    if variables and inner:
        return hint[tuple(variables.get(one, one) for one in inner)]
    return variables.get(hint, hint) if isinstance(hint, typing.TypeVar) else hint


def fill(
    value: Mapping[str, Any],
    where: str,
    fields: Mapping[str, Convert],
    required: list[str],
    known: str,
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
        if convert is not None:
            filled[name] = convert(item, f"{where}.{name}" if where else name)
        elif taken is not None and name not in taken:
            filled[name] = further(item, _path(where, name))
        else:
            raise unknown(_path(where, name), known, fields)
    for name in required:  # last: a misspelt one is unknown first, and then the text tells the names
        if name not in value:
            raise Mismatch(f"field {_path(where, name)!r} is missing")
    return filled


def check_types(given: Any, back: Any, where: str = "", hint: Any = None) -> None:
    """Raise `Mismatch` if an object is read as one of another type: of a base class, or the first of a union.

    Of plain JSON values nothing is checked, as many types are read from them. An object may become one, unless its
    own type is in the union. `hint`: the annotation, or those of an object's fields by name.
    """
    if type(given) is type(back) and given == back:
        return  # soon, for a long list of numbers
    inner = (typing.get_args(hint) or (None,))[-1]  # of the items of a list, or the values of an object
    if isinstance(given, dict) and isinstance(back, dict):
        for name, item in given.items():
            check_types(item, back.get(name), _path(where, name), hint.get(name) if isinstance(hint, dict) else inner)
    elif isinstance(given, list | tuple) and isinstance(back, list | tuple):
        for at, pair in enumerate(zip(given, back, strict=False)):
            check_types(*pair, f"{where}[{at}]", inner)
    elif type(given) is type(back) and dataclasses.is_dataclass(given):
        hints = resolve_hints(type(given))
        for part in dataclasses.fields(given):
            if part.init:
                name = part.name
                check_types(getattr(given, name), getattr(back, name), _path(where, name), hints.get(name))
    elif (
        type(given) is not type(back)
        and not isinstance(given, _PLAIN)
        and (not isinstance(back, _PLAIN) or type(given) in typing.get_args(hint))
    ):
        kinds = f"a {type(given).__name__}, but the handler would get a {type(back).__name__}"
        raise Mismatch(f"{_named(where)} is {kinds}")


def unknown(path: str, known: str, fields: Iterable[str]) -> Mismatch:
    """Return the error of a field that is not there. `known`: begins the list of those that are."""
    return Mismatch(f"field {path!r} is unknown; {known} {', '.join(map(repr, fields)) or 'none'}")


def _wrong(where: str, wanted: str, value: Any) -> Mismatch:
    shown = repr(value)
    return Mismatch(f"{_named(where)} must be {wanted}, not {shown if len(shown) <= 80 else shown[:77] + '...'}")


def _named(where: str) -> str:
    return f"field {where!r}" if where else "it"


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


# --- annotations --------------------------------------------------------------------------------------

if sys.version_info >= (3, 14):  # each is evaluated when it is asked for; names for type checkers stay unresolved
    from annotationlib import Format, get_annotations

    signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
    annotations_of = functools.partial(get_annotations, format=Format.FORWARDREF)
else:
    signature, annotations_of = inspect.signature, inspect.get_annotations


def resolve_hints(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or class as objects, without those whose names cannot be found.

    One by one, because `typing.get_type_hints` gives up on all of them when one was imported for type checkers only.
    """
    annotations: dict[str, Any] = {}
    for holder in reversed(owner.__mro__) if isinstance(owner, type) else (owner,):
        annotations.update(annotations_of(holder))
    names = _names(owner)
    hints = {}
    for name, annotation in annotations.items():
        holder = type("_Holder", (), {"__annotations__": {name: annotation}})
        with contextlib.suppress(Exception):  # an annotation may be any expression
            hints[name] = typing.get_type_hints(holder, *names, include_extras=True)[name]
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
