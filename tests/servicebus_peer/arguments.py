"""The arguments of a management operation, each of the type that the operations guide gives it."""

from __future__ import annotations

import uuid
from typing import TypeVar

from servicebus_peer.errors import ARGUMENT_ERROR, AmqpError

T = TypeVar("T")


class Arguments:
    """The map in the body of a request. Raises `AmqpError` (400) for what is missing or of another type."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise AmqpError(ARGUMENT_ERROR, "the body of the request is not a map")
        self._values = value

    def tokens(self) -> list[uuid.UUID]:
        return self._list("lock-tokens", uuid.UUID)

    def numbers(self) -> list[int]:
        return self._list("sequence-numbers", int)

    def number(self, name: str) -> int:
        return self._checked(name, self._values.get(name), int)

    def text(self, name: str) -> str:
        return self._checked(name, self._values.get(name), str)

    def maybe_text(self, name: str) -> str | None:
        return None if self._values.get(name) is None else self.text(name)

    def _list(self, name: str, kind: type[T]) -> list[T]:
        return [self._checked(name, item, kind) for item in self._checked(name, self._values.get(name), list)]

    def _checked(self, name: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise AmqpError(ARGUMENT_ERROR, f"{name} is {type(value).__name__}, not {kind.__name__}")
        return value
