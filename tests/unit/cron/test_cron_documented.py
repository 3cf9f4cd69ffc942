"""docs/cron.md: what its tables say about expressions and changing clocks is what happens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.pages import blocks, page

from jobpool.cron.schedule import Schedule
from jobpool.cron.scheduler import plan

PAGE = page("cron")


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading row, without the row itself."""
    after = PAGE.split(heading, 1)[1].splitlines()[2:]
    lines = after[: next(number for number, line in enumerate(after) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


CHANGES = _rows("| expression | zone | on the local day | fires at |")

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


def test_the_page_names_the_aliases_and_each_stands_for_five_fields() -> None:
    assert set(re.findall(r"`(@\w+)`", PAGE)) == {*ALIASES, "@reboot"}
    assert {alias: Schedule(alias).expression for alias in ALIASES} == ALIASES


def test_the_example_is_due_when_it_says() -> None:
    noon = datetime(2026, 6, 30, 12, tzinfo=UTC)

    assert Schedule("30 6 * * 1-5", "Europe/Berlin").next(noon) == datetime(2026, 7, 1, 4, 30, tzinfo=UTC)
    assert Schedule("0 4 L * *").next(noon) == datetime(2026, 7, 31, 4, tzinfo=UTC)


def test_the_first_program_of_the_page_declares_what_it_shows() -> None:
    names: dict[str, Any] = {}

    exec(blocks(PAGE)[0], names)

    declared = plan([names["scheduler"]])
    shown = [(one.name, one.schedule.expression, one.schedule.zone, one.misfire.text) for one in declared]
    assert shown == [
        ("report", "30 6 * * 1-5", "Europe/Berlin", "one"),
        ("sweep", "*/15 * * * *", "UTC", "skip"),
        ("meter", "*/10 * * * *", "UTC", "all(6)"),
        ("monthly-invoices", "0 4 L * *", "UTC", "one"),
    ]
