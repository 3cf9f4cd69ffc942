"""Schedules against the oracle, minute by minute, in all zones whose offset changes within two years.

Here the days about each change are walked, and samples of the rest; `python -m support.cron_walk` walks every minute.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from support.cron_oracle import Oracle, walk
from support.cron_walk import (
    DAY,
    EXPRESSIONS,
    FIRST,
    LAST,
    Change,
    changes_of,
    differences,
    minute_of,
    zones_by_changes,
)

from jobpool.cron.schedule import Schedule, Timeline

HISTORY = (
    ("Pacific/Apia", 2011),  # a whole day left out
    ("Pacific/Kwajalein", 1993),
    ("America/Sao_Paulo", 2018),  # at midnight
    ("Africa/Cairo", 2014),  # four changes in one year
    ("Africa/Cairo", 2023),
    ("Asia/Beirut", 2023),
    ("Asia/Pyongyang", 2015),  # by law, half an hour back, at midnight
    ("Asia/Pyongyang", 2018),
    ("America/Caracas", 2007),
    ("America/Caracas", 2016),
    ("Asia/Kathmandu", 1985),  # a quarter of an hour
    ("Europe/Istanbul", 2016),
    ("Europe/Volgograd", 2018),
    ("Africa/Casablanca", 2012),  # summer time interrupted
    ("Antarctica/Casey", 2023),  # three hours
    ("Asia/Gaza", 2021),
    ("Europe/Lisbon", 1996),  # change of zone and of summer time
    ("Europe/Dublin", 2019),  # negative summer time
)


@cache
def groups() -> dict[tuple[Change, ...], list[str]]:
    return zones_by_changes()


def around(changes: tuple[Change, ...]) -> list[tuple[int, int]]:
    """Eight hours on both sides of each change, and longer where the change is."""
    return [(at - 480 - abs(after - before), at + 480 + abs(after - before)) for at, before, after in changes]


def test_schedules_agree_with_the_oracle_about_every_change_in_two_years() -> None:
    found: list[str] = []
    agreed = 0
    for changes, names in groups().items():
        for start, end in around(changes):
            wrong, right = differences(names[0], start, end)
            found += wrong
            agreed += right
    assert found == []
    assert len(groups()) > 20
    assert agreed > 100_000


def test_and_on_any_other_day() -> None:
    choice = random.Random(9)
    for changes, names in groups().items():
        start = choice.randrange(minute_of(FIRST), minute_of(LAST) - 2 * DAY)
        if all(abs(start - at) > 3 * DAY for at, _, _ in changes):
            assert differences(choice.choice(names), start, start + DAY)[0] == []


def test_zones_of_one_group_have_one_timeline() -> None:
    """So what is shown of the first of them is true of all."""
    for names in groups().values():
        assert len({_pieces(name) for name in names}) == 1


def _pieces(name: str) -> tuple[object, ...]:
    line = Timeline(ZoneInfo(name))
    pieces = []
    at, end = minute_of(FIRST) * 60, minute_of(LAST) * 60
    while at < end:
        pieces.append(line.piece(at))
        at = pieces[-1].end
    return tuple(pieces)


@pytest.mark.parametrize(("name", "year"), HISTORY, ids=lambda value: str(value))
def test_what_clocks_have_done_in_the_past(name: str, year: int) -> None:
    changes = changes_of(name, datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC))
    assert changes
    for start, end in around(changes):
        assert differences(name, start, end)[0] == []


@pytest.mark.parametrize("year", [1972, 2100], ids=["in the past", "years by the rule"])
def test_a_new_year_is_no_seam(year: int) -> None:
    """Timelines are looked at by years."""
    start = minute_of(datetime(year, 1, 1, tzinfo=UTC))
    for name in ("Pacific/Auckland", "America/New_York", "UTC", "Asia/Kolkata"):
        assert differences(name, start - DAY, start + DAY, EXPRESSIONS[:6] + EXPRESSIONS[-4:])[0] == []


def test_the_oracle_tells_the_kinds_apart() -> None:
    """Clocks at UTC+1 go from 02:00 to 03:00 in minute 60, and back from 03:00 to 02:00 a day later."""
    spoken = ("30 2 * * *", "*/30 2 * * *", "30 * * * *")

    fired = walk(tuple(map(Oracle, spoken)), lambda minute: 120 if 60 <= minute < 1500 else 60, 0, 1560)

    assert fired["30 2 * * *"] == [60, 1470]
    assert fired["*/30 2 * * *"] == [60, 1440, 1470, 1500, 1530]
    assert [minute for minute in fired["30 * * * *"] if minute < 100 or minute > 1460] == [30, 90, 1470, 1530]


def test_a_walk_shows_a_schedule_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "_opening", lambda _, piece: piece.start + piece.offset)
    changes = changes_of("Europe/Berlin", FIRST, LAST)

    found = [wrong for start, end in around(changes) for wrong in differences("Europe/Berlin", start, end)[0]]

    assert any(text.startswith("'30 2 * * *'") and "missing" in text for text in found)
    assert any(text.startswith("'30 2 * * *'") and "too many" in text for text in found)
