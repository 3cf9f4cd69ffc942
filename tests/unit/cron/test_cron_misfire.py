"""What fires now and what was missed: policies, grace, clocks that step, schedules that were never seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import row
from support.tiers import examples

from jobpool.cron.firing import MAX_MISSED_NAMED, Due, decide
from jobpool.cron.schedule import Schedule
from jobpool.errors import InvalidJob
from jobpool.message.cron_fields import Misfire

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
QUARTERLY = Schedule("*/15 * * * *")


def at(text: str) -> datetime:
    """A time of that day: `11:45`, `11:45:30`."""
    return datetime.fromisoformat(f"2026-07-01T{text}+00:00")


def due(policy: str, last: str | None, now: str, **options: float) -> Due:
    known = None if last is None else at(last)
    return decide(QUARTERLY, Misfire.parse(policy), last=known, now=at(now), **options)


def times(instants: tuple[datetime, ...]) -> str:
    return " ".join(f"{instant:%H:%M}" for instant in instants)


@pytest.mark.parametrize(
    ("policy", "last", "now", "options", "fire", "missed"),
    [
        pytest.param("one", "11:45", "12:00:00", {}, "12:00", "", id="on time, to the microsecond"),
        pytest.param("one", "11:45", "11:59:59.999999", {}, "", "", id="not yet"),
        pytest.param("skip", "11:45", "12:00:59.999999", {}, "12:00", "", id="on time for a minute"),
        pytest.param("skip", "11:45", "12:01:00", {}, "", "12:00", id="after a minute it is missed"),
        pytest.param("one", "12:00", "12:00:30", {}, "", "", id="fired already"),
        pytest.param("one", "11:00", "12:05", {}, "12:00", "11:15 11:30 11:45", id="one makes up for all"),
        pytest.param("one", "11:00", "12:00:10", {}, "12:00", "11:15 11:30 11:45", id="one on time is enough"),
        pytest.param("skip", "11:00", "12:05", {}, "", "11:15 11:30 11:45 12:00", id="skip skips"),
        pytest.param("all(2)", "11:00", "12:05", {}, "11:45 12:00", "11:15 11:30", id="the newest two"),
        pytest.param("all(99)", "09:50", "12:05", {}, "11:15 11:30 11:45 12:00", None, id="grace of an hour"),
        pytest.param("all(99)", "10:50", "12:00", {}, "11:00 11:15 11:30 11:45 12:00", "", id="grace is inclusive"),
        pytest.param("all(9)", "11:00", "12:05", {"grace": 1500}, "11:45 12:00", "11:15 11:30", id="grace is given"),
        pytest.param("one", "11:00", "12:05", {"grace": 299}, "", "11:15 11:30 11:45 12:00", id="beyond the grace"),
        pytest.param("all(9)", "11:00", "12:00:30", {"grace": 0}, "12:00", "11:15 11:30 11:45", id="no grace"),
        pytest.param("all(9)", "12:00", "11:00", {}, "", "", id="clock put back"),
        pytest.param("all(9)", None, "12:07", {}, "", "", id="never seen: nothing of the past"),
        pytest.param("one", None, "12:00:40", {}, "12:00", "", id="never seen: this minute"),
        pytest.param("skip", None, "12:01:00", {}, "", "", id="never seen: the minute before is past"),
    ],
)
def test_the_table(
    policy: str, last: str | None, now: str, options: dict[str, float], fire: str, missed: str | None
) -> None:
    result = due(policy, last, now, **options)

    assert times(result.fire) == fire
    assert missed is None or times(result.missed) == missed
    assert not result.more


@pytest.mark.parametrize(
    ("last", "now", "kept"),
    [
        pytest.param("11:00", "12:05", "12:00", id="the newest instant, fired or missed"),
        pytest.param("11:45", "11:50", "11:45", id="nothing new"),
        pytest.param("12:00", "11:00", "12:00", id="clock put back"),
        pytest.param(None, "12:00:30", "12:00", id="never seen, and due"),
        pytest.param(None, "12:07", "12:00", id="never seen: as if all had been fired"),
    ],
)
def test_what_to_keep(last: str | None, now: str, kept: str) -> None:
    for policy in ("skip", "one", "all(3)"):
        assert due(policy, last, now).last == at(kept)


def test_a_schedule_without_a_past_keeps_the_moment() -> None:
    leap = Schedule("0 0 29 2 *")
    moment = datetime(1971, 1, 1, tzinfo=UTC)

    assert decide(leap, Misfire.parse("one"), last=None, now=moment) == Due((), (), False, moment)


def test_after_a_year_the_newest_missed_are_named() -> None:
    result = decide(
        Schedule("* * * * *"), Misfire.parse("all(3)"), last=NOON - timedelta(days=365), now=NOON + timedelta(seconds=1)
    )

    assert times(result.fire) == "11:58 11:59 12:00"
    assert len(result.missed) == MAX_MISSED_NAMED
    assert result.missed[-1] == at("11:57")
    assert result.more


def test_a_thousand_and_no_more_are_named_without_more() -> None:
    start = NOON - timedelta(minutes=MAX_MISSED_NAMED)
    every = Schedule("* * * * *")

    exactly = decide(every, Misfire.parse("skip"), last=start, now=NOON + timedelta(minutes=0, seconds=70))
    assert (len(exactly.missed), exactly.more) == (MAX_MISSED_NAMED, False)
    assert times(exactly.fire) == "12:01"
    one_more = decide(every, Misfire.parse("skip"), last=start - timedelta(minutes=1), now=NOON + timedelta(seconds=70))
    assert (len(one_more.missed), one_more.more) == (MAX_MISSED_NAMED, True)


@settings(max_examples=examples(150))
@given(
    policy=st.sampled_from(("skip", "one", "all(2)", "all(50)")),
    expression=st.sampled_from(("* * * * *", "*/7 * * * *", "30 2 * * *", "0 */2 * * *", "15 * * * 0")),
    zone=st.sampled_from(("UTC", "Europe/Berlin", "Australia/Lord_Howe")),
    start=st.sampled_from((datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 4, 4, 12, tzinfo=UTC))),
    steps=st.lists(st.integers(-3700, 7300), max_size=25),
)
def test_however_the_clock_steps_each_instant_is_decided_once(
    policy: str, expression: str, zone: str, start: datetime, steps: list[int]
) -> None:
    schedule, made_up = Schedule(expression, zone), Misfire.parse(policy)
    now, last = start, None
    fired: list[datetime] = []
    decided: list[datetime] = []
    for step in steps:
        now += timedelta(seconds=step)
        result = decide(schedule, made_up, last=last, now=now)
        assert last is None or result.last >= last
        assert all(instant <= now for instant in result.fire)
        assert len(result.fire) <= max(made_up.most, 1)
        last = result.last
        fired += result.fire
        decided += [*result.missed, *result.fire]

    assert decided == sorted(set(decided))
    if decided:
        assert decided == schedule.between(decided[0] - timedelta(seconds=1), decided[-1], most=99_999)
    assert set(fired) <= set(decided)


def test_a_policy_is_read_and_any_other_refused() -> None:
    for text, kept, most in [("skip", "skip", 0), ("one", "one", 1), (" all(3) ", "all(3)", 3)]:
        assert Misfire.parse(text) == Misfire(kept, most)
    assert Misfire.parse("all(1000)") == Misfire("all(1000)", 1000)
    odd = ("", "all", "all()", "all(0)", "all(1001)", "all(-1)", "all(1.5)", "ONE", "two", "all(9999999999)", None, 1)
    for wrong in odd:
        with (
            row(wrong),
            pytest.raises(InvalidJob, match=r"is refused: 'skip', 'one' or 'all\(n\)' with n from 1 to 1000"),
        ):
            Misfire.parse(wrong)  # type: ignore[arg-type]
