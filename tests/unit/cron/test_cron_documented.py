"""docs/cron.md: what its tables say about expressions and changing clocks is what happens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from jobpool.cron.schedule import Schedule
from jobpool.cron.scheduler import plan

PAGE = (Path(__file__).parents[3] / "docs" / "cron.md").read_text("utf-8")


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading row, without the row itself."""
    after = PAGE.split(heading, 1)[1].splitlines()[2:]
    lines = after[: next(number for number, line in enumerate(after) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


MORE_CHANGES = [
    ["`30 2 * * *`", "`Europe/Berlin`", "2026-10-25, 03:00 → 02:00", "02:30+02:00"],
    ["`*/20 2 * * *`", "`Europe/Berlin`", "2026-03-29, 02:00 → 03:00", "03:00+02:00"],
    [
        "`30 * 1 11 *`",
        "`America/New_York`",
        "2026-11-01, 02:00 → 01:00, the first hours",
        "00:30-04:00 01:30-04:00 01:30-05:00 02:30-05:00",
    ],
    ["`0 0 * * *`", "`Africa/Cairo`", "2026-04-24, 00:00 → 01:00", "01:00+03:00"],
    [
        "`30 */2 * * *`",
        "`America/New_York`",
        "2026-03-08, 02:00 → 03:00",
        "00:30-05:00 03:00-04:00 04:30-04:00 06:30-04:00 08:30-04:00 10:30-04:00 12:30-04:00 14:30-04:00"
        " 16:30-04:00 18:30-04:00 20:30-04:00 22:30-04:00",
    ],
    ["`15 2 * * *`", "`Australia/Lord_Howe`", "2026-10-04, 02:00 → 02:30", "02:30+11:00"],
    [
        "`15 * 4 10 *`",
        "`Australia/Lord_Howe`",
        "2026-10-04, 02:00 → 02:30, the first hours",
        "00:15+10:30 01:15+10:30 03:15+11:00",
    ],
    ["`30 1 * * *`", "`Europe/Dublin`", "2026-03-29, 01:00 → 02:00", "02:00+01:00"],
    ["`0 0 * * *`", "`America/Sao_Paulo`", "2018-11-04, 00:00 → 01:00", "01:00-02:00"],
    ["`30 23 * * *`", "`Africa/Cairo`", "2026-10-29, 24:00 → 23:00", "23:30+03:00"],
    ["`0 12 * * *`", "`Pacific/Apia`", "2011-12-31, the 30th was left out", "00:00+14:00 12:00+14:00"],
    ["`15 0 * * *`", "`Asia/Pyongyang`", "2015-08-15, by law, 00:00 → 23:30 of the day before", "00:15+08:30"],
    [
        "`45 23 * * *`",
        "`Asia/Pyongyang`",
        "2018-05-05, by law, 23:30 of the day before → 00:00",
        "00:00+09:00 23:45+09:00",
    ],
]
"""Rows of the same table that the page leaves out, as few zones have them."""

CHANGES = [*_rows("| expression | zone | on the local day | fires at |"), *MORE_CHANGES]

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: f"{row[0]} {row[1]} {row[2][:10]}")
def test_a_day_on_which_clocks_change(row: list[str]) -> None:
    expression, name, day, fires = row
    zone = ZoneInfo(name.strip("`"))
    noon = datetime.fromisoformat(f"{day[:10]}T12:00+00:00")
    schedule = Schedule(expression.strip("`"), name.strip("`"))

    found = schedule.between(noon - timedelta(days=2), noon + timedelta(days=2), most=1000)

    local = [at.astimezone(zone).isoformat() for at in found]
    shown = [re.sub(r"^.*T(\d\d:\d\d):00", r"\1", at) for at in local if at.startswith(day[:10])]
    expected = fires.split()
    assert (shown[: len(expected)] if "the first hours" in day else shown) == expected


def test_the_table_has_what_it_must_show() -> None:
    assert len(CHANGES) > 15
    assert {"`Pacific/Apia`", "`Australia/Lord_Howe`", "`Europe/Dublin`"} <= {row[1] for row in CHANGES}


def test_the_page_names_the_aliases_and_each_stands_for_five_fields() -> None:
    assert set(re.findall(r"`(@\w+)`", PAGE)) == {*ALIASES, "@reboot"}
    assert {alias: Schedule(alias).expression for alias in ALIASES} == ALIASES


def test_the_example_is_due_when_it_says() -> None:
    noon = datetime(2026, 6, 30, 12, tzinfo=UTC)

    assert Schedule("30 6 * * 1-5", "Europe/Berlin").next(noon) == datetime(2026, 7, 1, 4, 30, tzinfo=UTC)
    assert Schedule("0 4 L * *").next(noon) == datetime(2026, 7, 31, 4, tzinfo=UTC)


def test_the_first_program_of_the_page_declares_what_it_shows() -> None:
    names: dict[str, Any] = {}

    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)

    declared = plan([names["scheduler"]])
    shown = [(one.name, one.schedule.expression, one.schedule.zone, one.misfire.text) for one in declared]
    assert shown == [
        ("report", "30 6 * * 1-5", "Europe/Berlin", "one"),
        ("sweep", "*/15 * * * *", "UTC", "skip"),
        ("meter", "*/10 * * * *", "UTC", "all(6)"),
        ("monthly-invoices", "0 4 L * *", "UTC", "one"),
    ]
