"""What a cron expression does, worked out minute by minute from the rules of docs/cron.md alone.

It shares nothing with `jobpool.cron`: it reads an expression by itself, looks at one minute at a time and remembers
only how far the wall clock has got. A minute is a whole number, counted from 1970-01-01 00:00; a local one is what the
clock shows, counted likewise.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import cache

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_EPOCH = date(1970, 1, 1)


class Oracle:
    """One expression, asked about one minute after another."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        minute, hour, day, month, weekday = expression.lower().split()
        minutes, hours = _values(minute, 0, 59), _values(hour, 0, 23)
        self._times = bytes(m in minutes and h in hours for h in range(24) for m in range(60))
        self._is_day = _day_matcher(day, month, weekday)
        self._days: dict[int, bool] = {}
        stars = [part for part in f"{minute},{hour}".split(",") if part[0] == "*"]
        self._hourly = hour == "*"
        self._again = bool(stars)

    def names_time(self, local: int) -> bool:
        """Whether a local minute is one of the expression's, on some day."""
        return bool(self._times[local % 1440])

    def names(self, local: int) -> bool:
        """Whether a local minute is one of the expression's."""
        day, time = divmod(local, 1440)
        if not self._times[time]:
            return False
        if day not in self._days:
            self._days[day] = self._is_day(_EPOCH + timedelta(days=day))
        return self._days[day]

    def fires(self, shown: int, reached: int) -> bool:
        """Whether it fires in the minute in which the clock shows `shown`.

        Args:
            shown: The local minute.
            reached: The latest local minute that the clock had shown before.
        """
        if shown <= reached:  # clocks were put back: this minute was there before
            return self._again and self.names(shown)
        if self.names(shown):
            return True
        return not self._hourly and any(self.names(left_out) for left_out in range(reached + 1, shown))


def walk(oracles: tuple[Oracle, ...], offset: Callable[[int], int], start: int, end: int) -> dict[str, list[int]]:
    """The minutes in [start, end) at which each fires.

    Args:
        oracles: The expressions.
        offset: Local time minus UTC, in minutes, in a minute.
        start: In UTC, and a day or more after the last change back.
        end: In UTC.
    """
    fired: dict[str, list[int]] = {oracle.expression: [] for oracle in oracles}
    at_time = _at_time(oracles)
    reached = start - 1 + offset(start - 1)
    for minute in range(start, end):
        shown = minute + offset(minute)
        for oracle in oracles if shown > reached + 1 else at_time[shown % 1440]:  # but for gaps, no other fires
            if oracle.fires(shown, reached):
                fired[oracle.expression].append(minute)
        reached = max(reached, shown)
    return fired


@cache
def _at_time(oracles: tuple[Oracle, ...]) -> list[list[Oracle]]:
    """Those that name this minute of some day."""
    return [[oracle for oracle in oracles if oracle.names_time(time)] for time in range(1440)]


def _values(text: str, least: int, most: int) -> set[int]:
    return {value for part in text.split(",") for value in _part(part, least, most)}


def _part(text: str, least: int, most: int) -> Iterator[int]:
    span, slash, step = text.partition("/")
    low, dash, high = span.partition("-")
    first = least if low == "*" else _number(low)
    last = _number(high) if dash else most if low == "*" or slash else first
    steps, value = 0, first
    while True:
        if steps % int(step or 1) == 0:
            yield value
        if value == last:
            return
        steps, value = steps + 1, least if value == most else value + 1


def _number(word: str) -> int:
    if word in _MONTHS:
        return _MONTHS.index(word) + 1
    return _WEEKDAYS.index(word) if word in _WEEKDAYS else int(word)


def _day_matcher(day: str, month: str, weekday: str) -> Callable[[date], bool]:
    months = _values(month, 1, 12)
    by_day = [_day_rule(part) for part in day.split(",")]
    by_weekday = [_weekday_rule(part) for part in weekday.split(",")]

    def matches(on: date) -> bool:
        if on.month not in months:
            return False
        if day == "*" or weekday == "*":
            return any(rule(on) for rule in by_day) and any(rule(on) for rule in by_weekday)
        return any(rule(on) for rule in by_day + by_weekday)

    return matches


def _day_rule(part: str) -> Callable[[date], bool]:
    if part == "l":
        return lambda on: (on + timedelta(days=1)).day == 1
    days = set(_part(part, 1, 31))
    return lambda on: on.day in days


def _weekday_rule(part: str) -> Callable[[date], bool]:
    if "#" in part:
        name, _, nth = part.partition("#")
        return lambda on: _weekday(on) == _number(name) % 7 and (on.day - 1) // 7 + 1 == int(nth)
    if part[0] == "l":
        return lambda on: _weekday(on) == int(part[1]) % 7 and on.day > monthrange(on.year, on.month)[1] - 7
    most = 7 if "7" in part.partition("/")[0] else 6
    weekdays = {value % 7 for value in _part(part, 0, most)}
    return lambda on: _weekday(on) in weekdays


def _weekday(on: date) -> int:
    return on.isoweekday() % 7
