"""The grammar: what a field may hold, what it then names, and what is refused with which words."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from hypothesis import assume, given, settings
from support.cron_oracle import Oracle
from support.cron_texts import ALLOWED
from support.tables import row
from support.tiers import examples

from jobpool.cron.schedule import DAY, LocalTimes
from jobpool.errors import InvalidJob
from jobpool.message.cron_fields import ALIASES, Kind, open_zone, parse_fields


@settings(max_examples=examples(120))
@given(ALLOWED)
def test_every_allowed_expression_names_what_the_oracle_reads_in_it(expression: str) -> None:
    oracle = Oracle(_star(expression))
    try:
        fields = parse_fields(expression)
    except InvalidJob as refused:
        assume("never comes" not in str(refused))
        raise
    times = LocalTimes(fields)
    start = (date(2027, 12, 25) - date(1970, 1, 1)).days
    for day in (*range(start, start + 16), start + 66, start + 67):
        named = [day * 1440 + minute for minute in range(1440) if oracle.names(day * 1440 + minute)]
        assert _named_on(times, day) == named


def _star(expression: str) -> str:
    return " ".join("*" if part == "*/1" else part for part in expression.split())


def _named_on(times: LocalTimes, day: int) -> list[int]:
    found: list[int] = []
    time = times.first_from(day * DAY)
    while time is not None and time < (day + 1) * DAY:
        found.append(time // 60)
        time = times.first_from(time + 1)
    return found


def test_what_is_refused_says_what_the_field_may_hold() -> None:
    for case, expression, text in [
        ("four fields", "* * * *", "must have five fields: minute hour day month weekday"),
        ("seconds", "0 * * * * *", "five fields: .*; there are none for seconds and years"),
        ("empty", "", "must have five fields"),
        ("no text", None, "None must have five fields"),
        ("other digits", "* * * * ٣", "must have five fields"),
        ("too long", "* " * 700, r"cron_expression '.{99}… must have five fields"),
        ("reboot", "@reboot", "'@reboot' is not an alias: one of @yearly, .*@hourly"),
        ("minute", "60 * * * *", r"the minute holds 0\.\.59.*'60' is none of that"),
        ("hour", "* 24 * * *", r"the hour holds 0\.\.23.*'24' is none of that"),
        ("day", "* * 0 * *", r"the day of month holds 1\.\.31 or 'L', the last day"),
        ("day 32", "* * 32 * *", r"the day of month holds 1\.\.31"),
        ("month", "* * * 13 *", r"the month holds 1\.\.12 or jan\.\.dec.*'13'"),
        ("month 0", "* * * 0 *", r"the month holds 1\.\.12"),
        ("name", "* * * juin *", r"the month holds 1\.\.12 or jan\.\.dec.*'juin' is none of that"),
        ("weekday", "* * * * 8", r"the day of week holds 0\.\.7 or sun\.\.sat \(0 and 7 are Sunday\)"),
        ("a month among the days", "* * * * jan", "the day of week holds .*'jan' is none"),
        ("a day among the minutes", "mon * * * *", "the minute holds .*'mon' is none"),
        ("sixth Friday", "* * * * fri#6", "the day of week holds .*'fri#6' is none"),
        ("range of nth", "* * * * 1-5#2", "'1-5#2' is none"),
        ("nth and plain", "* * * * fri#2,mon", "'mon' cannot stand beside '#' or 'L' in one list"),
        ("last and plain", "* * * * l5,1-3", "'1-3' cannot stand beside"),
        ("days before the last", "* * l-2 * *", "'l-2' is none of that"),
        ("nearest weekday", "* * 15W * *", "'15w' is none of that"),
        ("question mark", "* * ? * 1", r"'\?' is none of that"),
        ("hash", "H * * * *", "'h' is none of that"),
        ("random", "* R * * *", "'r' is none of that"),
        ("range of one", "5-5 * * * *", "'5-5' names 5 and no other value: write 5"),
        ("ninety minutes", "*/90 * * * *", "'[*]/90' names 0 and no other value: write 0"),
        ("step from the end", "59/15 * * * *", "'59/15' names 59 and no other value"),
        ("step across the end", "10-20/15 * * * *", "'10-20/15' names 10 and no other"),
        ("weekly by step", "0 0 * * */7", "'[*]/7' names 0 and no other"),
        ("from Saturday", "0 0 * * 6/2", "'6/2' names 6 and no other"),
        ("from Sunday", "0 0 * * 7-2", "'7-2' begins with 7: write 0"),
        ("Sunday to Sunday", "0 0 * * 7-7", "'7-7' begins with 7: write 0"),
        ("step of nothing", "*/0 * * * *", "'[*]/0' has a step of 0"),
        ("step round the end", "0 22-4/2 * * *", "goes round the end, and can then have no step"),
        ("star in a list", "*,5 * * * *", r"'\*' names all of them: '\*,5' cannot have more"),
        ("star to", "*-5 * * * *", r"'\*-5' is none of that"),
        ("nothing in a list", "1, * * * *", "'' is none of that"),
        ("negative", "-1 * * * *", "'-1' is none of that"),
        ("fraction", "1.5 * * * *", "'1.5' is none of that"),
        ("February 30", "0 0 30 2 *", "never comes: no month of it has a day 30"),
        ("short months", "0 0 31 feb,4,jun *", "never comes: no month of it has a day 31"),
    ]:
        with row(case), pytest.raises(InvalidJob, match=text) as refused:
            parse_fields(expression)
        assert len(str(refused.value)) < 400, case


def test_what_comes_now_and_then_is_allowed() -> None:
    for expression in [
        "0 0 29 2 *",
        "0 0 30 2 1",
        "0 0 l 2 *",
        "0 0 30,31 1,2 *",
        "0 0 31 2 mon#5",
        "0\t0  * *  sUn ",
    ]:
        assert parse_fields(expression).text == " ".join(expression.lower().split()).replace("l", "L"), expression


def test_the_kind_goes_by_what_is_written() -> None:
    for expression, kind in [
        ("0 0 * * *", Kind.FIXED),
        ("0,15,30,45 0-23 * * *", Kind.FIXED),
        ("5/10 0/2 * * *", Kind.FIXED),
        ("*/10 2 * * *", Kind.INTERVAL),
        ("* 2 * * *", Kind.INTERVAL),
        ("30 */2 * * *", Kind.INTERVAL),
        ("7,*/20 3 * * *", Kind.INTERVAL),
        ("30 3,*/6 * * *", Kind.INTERVAL),
        ("30 * * * *", Kind.HOURLY),
        ("* * 1 1 *", Kind.HOURLY),
        ("*/1 */1 * * *", Kind.HOURLY),
    ]:
        assert parse_fields(expression).kind is kind, expression


def test_words_of_other_programs_are_named_in_ours() -> None:
    for expression, mend in [
        ("0 0 ? * 1", "write '*'"),
        ("0 0 * * 5L", "write 'L5'"),
        ("0 0 * * friL", "write 'L5'"),
        ("0 0 * * Monday-Friday", "write 'mon-fri'"),
        ("0 0 * September *", "write 'sep'"),
        ("0 0 15W * *", "there is no 'W'"),
    ]:
        with row(expression), pytest.raises(InvalidJob, match=re.escape(mend)):
            parse_fields(expression)


def test_aliases_are_expressions_themselves() -> None:
    for alias, expression in ALIASES.items():
        assert parse_fields(alias) == parse_fields(f" {alias.upper()} ") == parse_fields(expression)


def test_an_unknown_zone_is_refused_and_near_ones_named() -> None:
    for name, hint in [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("New York", "did you mean 'America/New_York'?"),
        ("Berlin", "did you mean 'Europe/Berlin'?"),
        ("Foo/Bar/Zzyzx", "write an IANA name, like 'Europe/Berlin'"),
        ("", "write an IANA name"),
        ("America", "there is no time zone 'America'"),
        ("../../etc/passwd", "there is no time zone"),
        ("/etc/localtime", "there is no time zone"),
        ("localtime", "there is no time zone 'localtime': write an IANA name"),
        ("right/Europe/Berlin", "did you mean 'Europe/Berlin'"),
        ("a\0b", "there is no time zone"),
        ("x" * 5000, "there is no time zone 'xxx"),
        (None, "there is no time zone None"),
    ]:
        with row(name), pytest.raises(InvalidJob, match=re.escape(hint)) as refused:
            open_zone(name)  # type: ignore[arg-type]
        assert len(str(refused.value)) < 250, name


def test_the_longest_wait_is_found() -> None:
    """From 2088 to 2128 there is no leap day on a Sunday: 2100 is not a leap year."""
    times = LocalTimes(parse_fields("0 0 * 2 sun#5"))
    days = [(date(year, 2, 29) - date(1970, 1, 1)) for year in (2088, 2128)]

    assert times.first_from((days[0] + timedelta(days=1)) // timedelta(seconds=1)) == days[1] // timedelta(seconds=1)
    assert times.last_until(days[1] // timedelta(seconds=1) - 1) == days[0] // timedelta(seconds=1)


def test_those_of_many_schedules_are_read_once() -> None:
    expressions = [f"{minute} {hour} * * *" for hour in range(24) for minute in range(60)]
    first = list(map(parse_fields, expressions))
    misses = parse_fields.cache_info().misses
    assert list(map(parse_fields, expressions)) == first
    assert parse_fields.cache_info().misses == misses
