"""The fields of a composite value, each of the type that the standard gives it."""

from __future__ import annotations

from typing import TypeVar

from servicebus_peer.decoding import Described

T = TypeVar("T")


class Fields:
    """Of one composite value, a list; those that are null or left out are absent (AMQP 1.4)."""

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        assert isinstance(value, list)
        self._values = value

    def find(self, index: int, kind: type[T]) -> T | None:
        """The field, or None when it is absent."""
        value = self.anything(index)
        assert value is None or isinstance(value, kind)
        return value

    def get(self, index: int, default: T) -> T:
        found = self.find(index, type(default))
        return default if found is None else found

    def need(self, index: int, kind: type[T]) -> T:
        """A mandatory field."""
        found = self.find(index, kind)
        assert found is not None
        return found

    def anything(self, index: int) -> object:
        return self._values[index] if index < len(self._values) else None


def composite(value: Described, descriptor: int) -> Fields:
    """Of a described list of this type."""
    assert value.descriptor == descriptor
    return Fields(value.value)
