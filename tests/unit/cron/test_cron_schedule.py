"""`Schedule`: next, previous and between agree, in any zone; calendars, edges, and the tables of docs/cron.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cron_texts import ALLOWED, MOMENTS, PLAIN, ZONES
from support.pages import blocks, page
from support.tiers import examples

from jobpool.cron.schedule import Schedule, Timeline
from jobpool.cron.scheduler import plan
from jobpool.errors import InvalidJob
from jobpool.message.cron_fields import ALIASES, parse_fields

SECOND = timedelta(seconds=1)


def _comes(expression: str) -> bool:
    try:
        return bool(parse_fields(expression))
    except InvalidJob as refused:
        if "never comes" in str(refused):
            return False
        raise


coming = ALLOWED.filter(_comes)


def forward(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    """The instants in (after, until], one after the other."""
    chain: list[datetime] = []
    while (moment := schedule.next(chain[-1] if chain else after)) is not None and moment <= until:
        chain.append(moment)
    return chain


@settings(max_examples=examples(200))
@given(coming, st.sampled_from(ZONES), MOMENTS)
def test_next_and_previous_are_each_others_inverse(expression: str, zone: str, moment: datetime) -> None:
    schedule = Schedule(expression, zone)

    after = schedule.next(moment)
    before = schedule.previous(moment)

    assert after is not None
    assert after > moment
    assert schedule.previous(after) == after
    assert schedule.previous(after - SECOND) == before
    if before is not None:
        assert before <= moment
        assert schedule.next(before) == after
        assert schedule.next(before - SECOND) == before
        assert before.utcoffset() == timedelta(0)


@settings(max_examples=examples(100))
@given(coming, st.sampled_from(ZONES), MOMENTS, st.integers(1, 3 * 86400))
def test_between_is_next_after_next(expression: str, zone: str, after: datetime, seconds: int) -> None:
    schedule = Schedule(expression, zone)
    until = after + timedelta(seconds=seconds)
    chain = forward(schedule, after, until)

    assert schedule.between(after, until, most=5000) == chain
    assert chain == sorted(set(chain))
    assert schedule.between(after, until, most=7) == chain[-7:]
    assert schedule.between(after, until, most=0) == []
    assert all(schedule.is_due(instant + timedelta(seconds=59.9)) for instant in chain)


@settings(max_examples=examples(120))
@given(PLAIN.filter(_comes), MOMENTS)
def test_in_utc_it_is_what_croniter_says(expression: str, moment: datetime) -> None:
    fields = parse_fields(expression)
    # Beside `*/2`, croniter takes all days of the week, or of the month, by their numbers for `*`; beside `1-31/2` not.
    assume(fields.days is None or fields.weekdays is None or (len(fields.weekdays) < 7 and len(fields.days) < 31))
    naive = moment.replace(tzinfo=None)

    expected = croniter(fields.text, naive).get_next(datetime)
    assert Schedule(expression).next(moment) == expected.replace(tzinfo=UTC)


@settings(max_examples=examples(100))
@given(coming, st.sampled_from(ZONES), MOMENTS)
def test_on_days_when_nothing_changes_local_time_is_what_the_fields_say(
    expression: str, zone: str, moment: datetime
) -> None:
    instant = Schedule(expression, zone).next(moment)
    assert instant is not None
    day = timedelta(days=1.2)
    local = instant.astimezone(ZoneInfo(zone))
    if (instant - day).astimezone(ZoneInfo(zone)).utcoffset() == local.utcoffset():
        shown = local.replace(tzinfo=UTC)
        assert Schedule(expression).previous(shown) == shown


class TestEdges:
    def test_after_is_exclusive_and_at_inclusive_to_the_microsecond(self) -> None:
        schedule = Schedule("0 12 * * *")
        noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
        tick = timedelta(microseconds=1)

        assert schedule.next(noon - tick) == noon
        assert schedule.next(noon) == noon + timedelta(days=1)
        assert schedule.previous(noon) == noon
        assert schedule.previous(noon - tick) == noon - timedelta(days=1)
        assert schedule.between(noon - tick, noon, most=9) == [noon]
        assert schedule.between(noon, noon + timedelta(days=1), most=9) == [noon + timedelta(days=1)]
        assert schedule.between(noon, noon, most=9) == schedule.between(noon, noon - tick, most=9) == []

    def test_due_is_the_minute_of_an_instant(self) -> None:
        schedule = Schedule("0 12 * * *")
        noon = datetime(2026, 7, 1, 12, tzinfo=UTC)

        assert schedule.is_due(noon)
        assert schedule.is_due(noon + timedelta(seconds=59, microseconds=999_999))
        assert not schedule.is_due(noon + timedelta(minutes=1))
        assert not schedule.is_due(noon - timedelta(microseconds=1))

    def test_moments_may_be_in_any_zone_and_answers_are_in_utc(self) -> None:
        schedule = Schedule("0 12 * * *", "Asia/Kolkata")
        moment = datetime(2026, 7, 1, 9, tzinfo=timezone(timedelta(hours=5, minutes=30)))

        found = schedule.next(moment)
        assert found == datetime(2026, 7, 1, 6, 30, tzinfo=UTC)
        assert found.tzinfo is UTC
        assert schedule.previous(moment) == datetime(2026, 6, 30, 6, 30, tzinfo=UTC)

    def test_a_moment_without_a_zone_is_refused(self) -> None:
        for ask in (Schedule("* * * * *").next, Schedule("* * * * *").previous, Schedule("* * * * *").is_due):
            with pytest.raises(ValueError, match="has no time zone: write datetime"):
                ask(datetime(2026, 7, 1))

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Kiritimati"])
    def test_the_ends_of_time(self, zone: str) -> None:
        schedule = Schedule("0 0 1 1 *", zone)
        last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)

        assert schedule.next(last) is None
        assert (newest := schedule.previous(last)) is not None
        assert newest > datetime(9997, 12, 31, tzinfo=UTC)
        assert schedule.next(newest) is None
        assert schedule.next(newest - SECOND) == newest
        assert schedule.previous(datetime(1969, 6, 1, tzinfo=UTC)) is None
        assert schedule.previous(datetime(1, 1, 1, tzinfo=UTC)) is None
        assert str(schedule.next(datetime(1, 1, 1, tzinfo=UTC)))[:4] in ("1970", "1971")
        ends = datetime(1, 1, 1, tzinfo=UTC), datetime(1980, 6, 1, tzinfo=UTC)
        assert schedule.between(*ends, most=99) == forward(schedule, *ends)

    def test_a_leap_day_comes_after_eight_years_too(self) -> None:
        for zone in ("UTC", "America/New_York"):
            schedule = Schedule("30 12 29 2 *", zone)
            found = schedule.between(datetime(2095, 1, 1, tzinfo=UTC), datetime(2110, 1, 1, tzinfo=UTC), most=9)

            assert [(each.year, each.month, each.day) for each in found] == [
                (2096, 2, 29), (2104, 2, 29), (2108, 2, 29),
            ]  # fmt: skip
            assert schedule.previous(found[1] - SECOND) == found[0]


def test_days_of_the_first_half_of_2026() -> None:
    for case, expression, days in [
        ("last day", "0 0 l * *", ["01-31", "02-28", "03-31", "04-30", "05-31", "06-30"]),
        ("where there is one", "0 0 31 * *", ["01-31", "03-31", "05-31"]),
        ("day or weekday", "0 0 13 2 5", ["02-06", "02-13", "02-20", "02-27"]),
        ("day or weekday, both", "0 0 1 2 1", ["02-01", "02-02", "02-09", "02-16", "02-23"]),
        ("7 is Sunday", "0 0 * 2 7", ["02-01", "02-08", "02-15", "02-22"]),
        ("second Friday", "0 0 * 1,2 fri#2", ["01-09", "02-13"]),
        ("fifth Monday", "0 0 * * mon#5", ["03-30", "06-29"]),
        ("last Friday", "0 0 * 1-3 L5", ["01-30", "02-27", "03-27"]),
        ("last Saturday, the last day of its month", "0 0 * 2,5 L6", ["02-28", "05-30"]),
        ("day or so-maniest weekday", "0 0 15 3 tue#1", ["03-03", "03-15"]),
        ("round the end of the month", "0 0 28-2 6 *", ["06-01", "06-02", "06-28", "06-29", "06-30"]),
        ("round the end of the year", "0 0 1 nov-feb *", ["01-01", "02-01"]),
        ("every tenth day", "0 0 */10 5 *", ["05-01", "05-11", "05-21", "05-31"]),
        ("*/1 leaves it open", "0 0 */1 2 mon#1", ["02-02"]),
    ]:
        start = datetime(2026, 1, 1, tzinfo=UTC)

        found = Schedule(expression).between(start - SECOND, datetime(2026, 7, 1, tzinfo=UTC) - SECOND, most=999)

        assert [f"{each:%m-%d}" for each in found] == days, case


def test_the_text_is_kept_in_its_normal_form() -> None:
    one = Schedule(" 0  0 * * SUN", "Europe/Berlin")
    assert (one.expression, one.zone) == ("0 0 * * sun", "Europe/Berlin")
    assert Schedule("@weekly").expression == ALIASES["@weekly"]


def test_what_cannot_be_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidJob, match="the hour holds"):
        Schedule("0 25 * * *")
    with pytest.raises(InvalidJob, match="did you mean 'Europe/Berlin'"):
        Schedule("0 0 * * *", "Europe/Berln")


class NewYearsLaw(tzinfo):
    """Two hours ahead of UTC, until clocks are put back by an hour, half an hour before a new year in UTC."""

    CHANGE = datetime(2026, 12, 31, 23, 30)

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else timedelta(hours=1 if dt.fold else 2)

    def fromutc(self, dt: datetime) -> datetime:
        changed = dt.replace(tzinfo=None) >= self.CHANGE
        return (dt + timedelta(hours=1 if changed else 2)).replace(fold=int(changed))


def test_a_change_back_goes_on_in_the_new_year() -> None:
    """01:30 → 00:30 on the first of January; 01:15 comes again when it is a new year in UTC, too."""
    for case, expression, times in [
        ("fixed", "15 1 * * *", ["23:15"]),
        ("interval", "15 1,*/23 * * *", ["21:15", "22:15", "23:15", "00:15"]),
        ("hourly", "15 * * * *", ["20:15", "21:15", "22:15", "23:15", "00:15", "01:15"]),
    ]:
        schedule = Schedule(expression)
        schedule._line = Timeline(NewYearsLaw())  # type: ignore[abstract]
        start, end = datetime(2026, 12, 31, 20, tzinfo=UTC), datetime(2027, 1, 1, 2, tzinfo=UTC)

        for found in (forward(schedule, start, end), schedule.between(start, end, most=9)):
            assert [f"{each:%H:%M}" for each in found] == times, case


PAGE = page("cron")


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading row, without the row itself."""
    after = PAGE.split(heading, 1)[1].splitlines()[2:]
    lines = after[: next(number for number, line in enumerate(after) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


CHANGES = _rows("| expression | zone | on the local day | fires at |")

SHOWN = {
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
    assert set(re.findall(r"`(@\w+)`", PAGE)) == {*SHOWN, "@reboot"}
    assert {alias: Schedule(alias).expression for alias in SHOWN} == SHOWN


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
