"""The fields of a composite value, each of the type that the standard gives it."""

from __future__ import annotations

from typing import TypeVar

from servicebus_peer.decoding import Described
from servicebus_peer.errors import DecodeError

T = TypeVar("T")

UINT = 0xFFFFFFFF
"""The largest value of the type uint."""


class Fields:
    """Of one composite value; those that are null or left out are absent (AMQP 1.4)."""

    __slots__ = ("_name", "_values")

    def __init__(self, value: object, name: str) -> None:
        """`value`: the list; `name` tells of what, in errors."""
        if not isinstance(value, list):
            raise DecodeError(f"{name} is not a list of fields")
        self._values = value
        self._name = name

    def find(self, index: int, kind: type[T]) -> T | None:
        """The field, or None when it is absent; `DecodeError` if it is of another type."""
        value = self._values[index] if index < len(self._values) else None
        if value is None:
            return None
        # A bool is an int to Python, and no number to AMQP.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise DecodeError(f"field {index} of {self._name} is {type(value).__name__}, not {kind.__name__}")
        return value

    def get(self, index: int, kind: type[T], default: T) -> T:
        found = self.find(index, kind)
        return default if found is None else found

    def need(self, index: int, kind: type[T]) -> T:
        """A mandatory field."""
        found = self.find(index, kind)
        if found is None:
            raise DecodeError(f"field {index} of {self._name} is missing")
        return found

    def find_number(self, index: int, most: int = UINT) -> int | None:
        """A field of an unsigned type, from 0 to `most`."""
        value = self.find(index, int)
        if value is not None and not 0 <= value <= most:
            raise DecodeError(f"field {index} of {self._name} is not between 0 and {most}")
        return value

    def number(self, index: int, default: int, most: int = UINT) -> int:
        found = self.find_number(index, most)
        return default if found is None else found

    def need_number(self, index: int, most: int = UINT) -> int:
        self.need(index, int)
        return self.number(index, 0, most)

    def anything(self, index: int) -> object:
        return self._values[index] if index < len(self._values) else None


def composite(value: object, descriptor: int, name: str) -> Fields:
    """Of a described list of this type."""
    if not isinstance(value, Described) or value.descriptor != descriptor:
        raise DecodeError(f"there is no {name} where one belongs")
    return Fields(value.value, name)
