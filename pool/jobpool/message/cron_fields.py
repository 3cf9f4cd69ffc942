"""The words of a schedule: the fields of a cron expression, the zone of their clock, the policy for missed firings.

croniter expands a field to its values. Some that it takes would surprise, and are refused here: a sixth field, `5-5`
(every value, to croniter), `*/90` (minute 0 only), `H` and `W`. And the field that is wrong is named, which croniter
does not do. docs/cron.md has the grammar.
"""

from __future__ import annotations

import difflib
import re
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from msgspec import Struct

from jobpool.errors import InvalidJob
from jobpool.message.names import quoted

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

MAX_EXPRESSION_CHARS = 1000  # characters in an expression: room for every minute by its number, and more
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MAX_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ZONES_OF_THE_MACHINE = ("localtime", "posixrules", "Factory")  # on some, with a meaning of their own or none
MAX_FIRINGS = 1000  # the largest n of `all(n)`: each is one enqueue
_ITEM = re.compile(r"(?P<low>\*|[a-z]+|[0-9]{1,4})(?:-(?P<high>[a-z]+|[0-9]{1,4}))?(?:/(?P<step>[0-9]{1,4}))?")


class Kind(Enum):
    """The behaviour of an expression when clocks are put back or forward, by how its minute and hour are written."""

    FIXED = "fixed"  # no `*` in either: each local time comes once, whatever clocks do
    INTERVAL = "interval"  # `*` or `*/n` in either: a time that comes twice fires twice
    HOURLY = "hourly"  # the hour is `*`: it counts real hours, so that nothing is missing when one is left out


class CronFields(Struct, frozen=True):
    """The values of an expression. If day of month and day of week are both given, either will do."""

    text: str  # the normal form: lower case but for `L`, five fields, one space between them
    kind: Kind  # by minute and hour
    minutes: tuple[int, ...]  # 0..59, ascending
    hours: tuple[int, ...]  # 0..23, ascending
    days: frozenset[int] | None  # 1..31; None = not restricted
    last_day: bool  # the last day of the month, too
    months: frozenset[int]  # 1..12
    weekdays: frozenset[int] | None  # 0 (Sunday)..6; None = not restricted
    nth: frozenset[tuple[int, int]]  # (day of the week, 1..5): the so-maniest of the month; 0 = its last one


class _Field(NamedTuple):
    """One field; `last`: where a range without an end goes to, since 7 is Sunday again."""

    name: str
    least: int
    most: int
    last: int
    names: tuple[str, ...] = ()
    also: str = ""
    specials: re.Pattern[str] | None = None


_FIELDS = (
    _Field("minute", 0, 59, 59),
    _Field("hour", 0, 23, 23),
    _Field("day of month", 1, 31, 31, (), " or 'L', the last day", re.compile("l")),
    _Field("month", 1, 12, 12, _MONTHS, " or jan..dec"),
    _Field(
        "day of week", 0, 7, 6, _DAYS, " or sun..sat (0 and 7 are Sunday), 'fri#2' or 'L5', the last Friday",
        re.compile(r"(?:sun|mon|tue|wed|thu|fri|sat|[0-7])#[1-5]|l[0-7]"),
    ),
)  # fmt: skip


@lru_cache(maxsize=10_000)  # each declaration, plan and firing asks again, and each answer takes a millisecond
def parse_fields(expression: str) -> CronFields:
    """Read a cron expression: five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly` and their like.

    Raises `InvalidJob`: it is refused, or never comes; the text names the field and what it may hold.

    The first call imports croniter, some 50 ms.
    """
    parts = split_fields(expression)
    for field, text in zip(_FIELDS, parts, strict=True):
        try:
            _check_items(field, text.split(","))
        except ValueError as error:
            holds = f"{field.least}..{field.most}{field.also}, as '*', 'a', 'a-b', '*/n', 'a/n', 'a-b/n', or a list"
            raise InvalidJob(f"{_quoted(expression)}: the {field.name} holds {holds}; {error}") from None
    fields = _expand(parts)
    if fields.days is not None and not fields.last_day and fields.weekdays is None:
        longest = max(_MAX_DAYS_OF_MONTH[month - 1] for month in fields.months)
        if min(fields.days) > longest:
            raise InvalidJob(f"{_quoted(expression)} never comes: no month of it has a day {min(fields.days)}")
    return fields


def split_fields(expression: str) -> list[str]:
    """Return the five texts of an expression, lower case, aliases resolved; their content is not checked.

    Raises `InvalidJob`: there are more or fewer.
    """
    is_short = isinstance(expression, str) and expression.isascii() and len(expression) <= MAX_EXPRESSION_CHARS
    words = expression.lower().split() if is_short else []
    if len(words) == 1 and words[0].startswith("@"):
        if words[0] not in ALIASES:
            raise InvalidJob(f"{_quoted(expression)} is not an alias: one of {', '.join(ALIASES)}")
        return ALIASES[words[0]].split()
    if len(words) != 5:
        hint = "; there are none for seconds and years" if len(words) in (6, 7) else ""
        raise InvalidJob(f"{_quoted(expression)} must have five fields: minute hour day month weekday{hint}")
    return ["*" if word == "*/1" else word for word in words]


def _check_items(field: _Field, items: list[str]) -> None:
    if "*" in items and len(items) > 1:
        raise ValueError(f"'*' names all of them: {','.join(items)!r} cannot have more in its list")
    special = [item for item in items if field.specials is not None and field.specials.fullmatch(item)]
    plain = [item for item in items if item not in special]
    for item in plain:
        _check_item(field, item)
    if special and plain and field.names is _DAYS:
        raise ValueError(f"{plain[0]!r} cannot stand beside '#' or 'L' in one list")


def _check_item(field: _Field, item: str) -> None:
    found = _ITEM.fullmatch(item)
    if found is None or (found["low"] == "*" and found["high"] is not None):
        raise ValueError(f"{item!r} is none of that{_mend(field, item)}")
    low = field.least if found["low"] == "*" else _value(field, found["low"], item)
    if found["high"] is None and not found["step"]:
        return
    if field.names is _DAYS and low == 7:
        raise ValueError(f"{item!r} begins with 7: write 0")
    high = field.last if found["high"] is None else _value(field, found["high"], item)
    step = int(found["step"] or 1)
    if step == 0:
        raise ValueError(f"{item!r} has a step of 0")
    if low > high and found["step"]:
        raise ValueError(f"{item!r} goes round the end, and can then have no step")
    if low == high or (low < high and low + step > high):
        raise ValueError(f"{item!r} names {low} and no other value: write {low}")


def _value(field: _Field, word: str, item: str) -> int:
    if word in field.names:
        return field.names.index(word) + field.least
    if not word.isdigit() or not field.least <= int(word) <= field.most:
        raise ValueError(f"{item!r} is none of that{_mend(field, item)}")
    return int(word)


def _mend(field: _Field, item: str) -> str:
    """Return what to write for some words of other programs; "" = nothing is known."""
    if item == "?":
        return ": write '*'"
    if field.names is _DAYS and item.endswith("l") and item[:-1] in (*_DAYS, *"01234567"):
        day = item[:-1]
        return f": write 'L{_DAYS.index(day) if day in _DAYS else day}'"
    if item.endswith("w") and not field.names:
        return ": there is no 'W', the nearest weekday"
    words = re.findall("[a-z]+", item)
    if words and all(word[:3] in field.names for word in words):
        return f": write {re.sub('[a-z]+', lambda word: word[0][:3], item)!r}"
    return ""


def _quoted(expression: object) -> str:
    text = repr(expression)
    return f"cron_expression {text if len(text) <= 120 else text[:100] + '…'}"


def _expand(parts: list[str]) -> CronFields:
    from croniter import croniter  # imported here: most programs schedule nothing

    text = " ".join(parts)
    answer: Any = croniter.expand(text)  # its stubs do not know 'l' among the values
    expanded, nth = answer
    minutes, hours, days, months, weekdays = (
        frozenset(range(field.least, field.last + 1) if "*" in values else values) - {"l"}
        for field, values in zip(_FIELDS, expanded, strict=True)
    )
    minute, hour, day, month, weekday = parts
    starred = any(item.startswith("*") for item in f"{minute},{hour}".split(","))
    return CronFields(
        text=" ".join([minute, hour, day.upper(), month, weekday.replace("l", "L")]),
        kind=Kind.HOURLY if hour == "*" else Kind.INTERVAL if starred else Kind.FIXED,
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=None if day == "*" else days,
        last_day="l" in day.split(","),
        months=months,
        weekdays=None if weekday == "*" else frozenset() if nth else weekdays,
        nth=frozenset((which, 0 if n == "l" else int(n)) for which, several in nth.items() for n in several),
    )


def open_zone(name: str) -> ZoneInfo:
    """Return the zone of this IANA name, `Europe/Berlin`.

    Raises `InvalidJob`: there is none; the text names those that are written alike. May read one file of the machine,
    or of the package `tzdata`, at the first call for a name.
    """
    try:
        if not isinstance(name, str) or name in _ZONES_OF_THE_MACHINE or name.startswith(("posix/", "right/")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder, a path, another file
        near = _near_zones(name) if isinstance(name, str) else []
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "write an IANA name, like 'Europe/Berlin'"
        raise InvalidJob(f"there is no time zone {quoted(name)}: {hint}") from None


def _near_zones(name: str) -> list[str]:
    known = {zone.lower(): zone for zone in sorted(available_timezones()) if zone not in _ZONES_OF_THE_MACHINE}
    word = name.strip().lower().replace(" ", "_")[:80]
    if word in known:
        return [known[word]]
    cities = [known[zone] for zone in known if zone.rpartition("/")[2] == word.rpartition("/")[2]]
    return cities[:3] or [known[zone] for zone in difflib.get_close_matches(word, known, n=3, cutoff=0.7)]


class Misfire(Struct, frozen=True):
    """The number of missed instants that are made up for, the newest first."""

    text: str  # as it was written: `skip`, `one`, `all(3)`
    most: int  # 0 for `skip`, 1 for `one`, n for `all(n)`; 0..1000

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `skip`, `one` or `all(n)`, white space around it allowed. Raises `InvalidJob`: it is none of these."""
        word = text.strip() if isinstance(text, str) else ""
        if word in ("skip", "one"):
            return cls(word, 1 if word == "one" else 0)
        found = re.fullmatch(r"all\(([0-9]{1,9})\)", word)
        if found is None or not 1 <= int(found[1]) <= MAX_FIRINGS:
            raise InvalidJob(f"misfire {text!r} is refused: 'skip', 'one' or 'all(n)' with n from 1 to {MAX_FIRINGS}")
        return cls(f"all({int(found[1])})", int(found[1]))
