"""The options of brokers' URLs: a table for each broker, one reader, and one form of error sentence."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from jobpool.errors import LONGEST_WAIT_S, ConfigurationError
from jobpool_backends.shared import DeadCaps, micros

_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|({_LABEL}(?:\.{_LABEL})*\.?))(?::(\d{{1,5}}))?")

MAX_TIMEOUT_S = 3600.0
MAX_DEAD = 10**12  # the largest `dead_max`


class Option(Struct, frozen=True):
    """An option of a URL, or an argument by keyword.

    `takes`: a phrase of the values that it takes, for error texts, which never quote a `secret` one. `read` makes its
    value of what was given, or raises `ValueError`, `TypeError` or `KeyError`.
    """

    name: str
    default: Any
    takes: str
    read: Callable[[Any], Any]
    secret: bool = False


def seconds(name: str, default: float, least: float = 0.0, most: float = MAX_TIMEOUT_S) -> Option:
    """Return an option of seconds, `least` to `most` and more than 0."""
    takes = f"{least:.12g} to {most:.12g} seconds" if least else f"more than 0 and at most {most:.12g} seconds"
    return Option(name, default, takes, lambda value: number(value, least or math.ulp(0.0), most))


def whole(name: str, default: int | None, least: int, most: int, unit: str = "") -> Option:
    """Return an option of a whole number, `least` to `most`."""
    takes = f"a whole number{unit and f' of {unit}'} from {least} to {most}"
    return Option(name, default, takes, lambda value: whole_number(value, least, most))


def text(name: str, *, secret: bool = False) -> Option:
    """Return an option of any text; None where it is empty or not given."""
    return Option(name, None, "a text", lambda value: _matching(value, ".*") or None, secret)


def path(name: str) -> Option:
    """Return an option of a path; None where it is not given."""
    return Option(name, None, "a path", os.fspath)


def pattern(name: str, default: str, takes: str, expression: str) -> Option:
    """Return an option of a text that matches `expression`."""
    return Option(name, default, takes, lambda value: _matching(value, expression))


def choice(name: str, default: object, values: Mapping[str, object]) -> Option:
    """Return an option of some words, in any case, each of which stands for a value."""
    *words, last = values
    return Option(name, default, f"{', '.join(words)} or {last}", lambda value: values[str(value).lower()])


_MOST = f"a whole number from 0 (no cap) to {MAX_DEAD:.12g}"
_OLDEST = f"a number of seconds from 0 (no cap) to {LONGEST_WAIT_S:.12g}"
DEAD_CAPS = (
    Option("dead_max", 0, _MOST, lambda value: whole_number(value, 0, MAX_DEAD)),
    Option("dead_max_age", 0.0, _OLDEST, lambda value: number(value, 0.0, LONGEST_WAIT_S)),
)
"""How many dead letters a queue keeps, and how long. Applied when a message of the queue dies or is reaped."""


def take_caps(values: dict[str, Any]) -> DeadCaps:
    return DeadCaps(values.pop("dead_max"), micros(values.pop("dead_max_age")))


def split_query(url: str) -> tuple[str, dict[str, object]]:
    """Split a URL at its question mark, into the part before it and the options after it."""
    address, _, query = url.partition("?")
    return address, dict(parse_qsl(query, keep_blank_values=True))


def read_host(place: str, port: int) -> tuple[str, int] | None:
    """Return host and port of `host`, `host:port` or `[IPv6]:port`; None where it is none of these."""
    match = _HOST.fullmatch(place)
    host = match and (match[1] or match[2], int(match[3] or port))
    return host if host and 0 < host[1] < 65536 else None


def read_options(scheme: str, given: Mapping[str, object], table: Sequence[Option]) -> dict[str, Any]:
    """Return the value of each option of `table`, by its name.

    Raises `ConfigurationError`: one that is given is not in the table, or is not what that one takes.
    """
    known = {option.name for option in table}
    unknown = {name: value for name, value in given.items() if name not in known}
    if not all(name.isidentifier() and "@" not in str(value) for name, value in unknown.items()):
        # Not quoted: it may be the part of a password after a '?' or '&'.
        raise ConfigurationError(
            f"{scheme}:// has an option that cannot be read: write '?', '&' and '@' in a password as %3F, %26 and %40"
        )
    if unknown:
        raise ConfigurationError(f"{scheme}:// has no option {', '.join(sorted(unknown))}: leave it out")
    return {option.name: _read(scheme, option, given) for option in table}


def _read(scheme: str, option: Option, given: Mapping[str, object]) -> Any:
    if option.name not in given:
        return option.default
    try:
        return option.read(given[option.name])
    except (ValueError, TypeError, KeyError):
        value = given[option.name]
        shown = "" if option.secret or "@" in str(value) else f", not {value!r}"  # an '@' may end a password
        raise ConfigurationError(f"{scheme}:// takes option {option.name} as {option.takes}{shown}") from None


def number(value: object, least: float, most: float) -> float:
    """Return the number in a text, or raise `ValueError`: it is `least` to `most`."""
    read = float(str(value))
    if not least <= read <= most:
        raise ValueError(value)
    return read


def whole_number(value: object, least: float, most: float) -> int:
    """Return the whole number in a text, or raise `ValueError`: it is `least` to `most`."""
    read = number(value, least, most)
    if not read.is_integer():
        raise ValueError(value)
    return int(read)


def _matching(value: object, expression: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(expression, value, re.DOTALL):
        raise ValueError(value)
    return value
