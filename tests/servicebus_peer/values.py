"""Values that Python has no type for."""

from __future__ import annotations

from typing import NamedTuple


class Symbol(str):
    """A string of AMQP's type symbol."""

    __slots__ = ()


class Described(NamedTuple):
    """A value and what it is: mostly the number of a type from `codes`."""

    descriptor: object
    value: object
