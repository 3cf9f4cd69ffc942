"""The rules for a payload: any JSON value, and values of the types that a handler's annotations read from JSON.

It is copied, so that later changes of the caller's value have no effect. Tuples become lists. Subclasses of dict, list,
str, int and float (an `OrderedDict`, a `numpy.float64`) become the plain type, as on the wire. An enum member becomes
its value, a dataclass or pydantic model an object; dates, times, `UUID`, `Decimal` and paths become text.
"""

from __future__ import annotations

import dataclasses
import math
from datetime import date, datetime, time
from enum import Enum
from typing import Any

from jobpool.errors import InvalidJob

MAX_DEPTH = 64  # of a whole message. The payload and the meta sit one level down, so theirs is one less.
SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1
_MAX_STEPS_SHOWN = 12  # of a path in an error
_TOO_DEEP = f"nested more than {MAX_DEPTH - 1} deep, or inside itself"


class _PayloadError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []  # the keys from the inside out


def check_payload(value: Any, where: str = "payload") -> Any:
    """Return a deep copy of `value`, made of dict, list, str, int, float, bool and None only.

    Raises `InvalidJob`: NaN or an infinity, an integer outside -2**63..2**64-1, text with a lone surrogate, or a key
    that is not a string. Also a value that is too deep (or in itself), or of a type that JSON does not have. The text
    starts with the path: ``payload.items[3].price: …``.
    """
    try:
        return _copy(value, MAX_DEPTH - 1)
    except _PayloadError as refused:
        steps = refused.path[::-1]
        if len(steps) > _MAX_STEPS_SHOWN:
            steps[5:-5] = ["…"]
        path = where + "".join(steps)
        raise InvalidJob(f"{path}: {refused}") from None


def _copy(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int:
        if not SMALLEST_INT <= value <= LARGEST_INT:
            raise _PayloadError("the integer is beyond 64 bits; send it as text")
        return value
    if kind is bool or value is None:
        return value
    if kind is dict:
        return _copy_dict(value, depth)
    if kind is list or kind is tuple:
        return _copy_list(value, depth)
    if kind is float:
        if not math.isfinite(value):
            raise _PayloadError(f"{value!r} is not a number in JSON; send null or text")
        return value
    return _copy_subclass(value, depth)


def _copy_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if not depth:
        raise _PayloadError(_TOO_DEEP)
    copy: dict[str, Any] = {}
    for key, item in value.items():
        try:
            copy[key if type(key) is str and key.isascii() else _key(key)] = _copy(item, depth - 1)
        except _PayloadError as refused:
            refused.path.append(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]")
            raise
    return copy


def _copy_list(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    if not depth:
        raise _PayloadError(_TOO_DEEP)
    copy: list[Any] = []
    for item in value:
        try:
            copy.append(_copy(item, depth - 1))
        except _PayloadError as refused:
            refused.path.append(f"[{len(copy)}]")
            raise
    return copy


def _copy_subclass(value: Any, depth: int) -> Any:
    if isinstance(value, Enum):
        return _copy(value.value, depth)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _copy(int.__int__(value), depth)
    if isinstance(value, float):
        return _copy(float.__float__(value), depth)
    if isinstance(value, dict):
        return _copy_dict(value, depth)
    if isinstance(value, list | tuple):
        return _copy_list(value, depth)
    return _copy_typed(value, depth)


def _copy_typed(value: Any, depth: int) -> Any:
    """Return what a handler's annotation of this type reads back: see handlers/conversion.py."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, type):
        raise _PayloadError(f"JSON has no classes, such as {value.__name__}")
    if dataclasses.is_dataclass(value):
        fields = {part.name: getattr(value, part.name) for part in dataclasses.fields(value) if part.init}
        return _copy_dict(
            {name: list(one) if isinstance(one, set | frozenset) else one for name, one in fields.items()}, depth
        )
    try:
        known = json_form(value)
    except ValueError as error:  # a model's, such as of bytes that are not UTF-8
        raise _PayloadError(f"{type(value).__name__} cannot be written as JSON: {error}") from None
    if known is not value:
        copy = _copy(known, depth)
        _check_model(value, known)
        return copy
    from decimal import Decimal

    if isinstance(value, Decimal):
        raise _PayloadError(f"{value!r} is not a number in JSON; send null or text")
    raise _PayloadError(f"JSON has no {type(value).__name__}; convert it to text, a number, a list or a dict")


def _check_model(value: Any, sent: Any) -> None:
    """Refuse a pydantic model that would lose a field on its way: a secret, an excluded one, one with two aliases."""
    fields = getattr(type(value), "model_fields", None)
    if not fields:
        return
    try:
        back = type(value).model_validate(sent)
        lost = [name for name in fields if _differ(getattr(value, name), getattr(back, name))]
    except ValueError:  # it reads no copy of itself; a handler that must read it says so
        return
    if lost:
        raise _PayloadError(f"field {lost[0]!r} of {type(value).__name__} does not come back as it was given")


def _differ(given: Any, back: Any) -> bool:
    if isinstance(given, dict) and isinstance(back, dict):
        return given.keys() != back.keys() or any(_differ(item, back[key]) for key, item in given.items())
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        return len(given) != len(back) or any(map(_differ, given, back))
    if type(given) is type(back) and (fields := getattr(type(given), "model_fields", None)):
        return any(_differ(getattr(given, name), getattr(back, name)) for name in fields)
    if isinstance(given, datetime) and isinstance(back, datetime):  # unequal where a zone's clocks go back
        return False
    kind: Any = type(given)
    return bool(given != back) and kind.__eq__ is not object.__eq__


def json_form(value: Any) -> Any:
    """Return a model as an object, and a finite `Decimal`, a path or a `UUID` as text; any other value itself.

    Arguments and results have this rule in common.
    """
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump(mode="json", by_alias=True)
    from decimal import Decimal  # imported here: most producers need none of them
    from pathlib import PurePath
    from uuid import UUID

    is_known = value.is_finite() if isinstance(value, Decimal) else isinstance(value, PurePath | UUID)
    return str(value) if is_known else value


def _text(value: str) -> str:
    try:
        return value.encode().decode()
    except UnicodeEncodeError:
        raise _PayloadError("the text holds a lone surrogate, which UTF-8 cannot carry") from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise _PayloadError(f"the key {key!r} is of type {type(key).__name__}; JSON keys are strings")
    return _text(key)
