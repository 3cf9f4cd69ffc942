"""Three schedulers under kills, stops and wrong clocks fire each instant once, also where daylight saving time changes.

Hours pass in some seconds. The schedulers are real processes with connections of their own; their clocks, and the
broker's, are the test's (support/cron_driven.py). What it does to them is drawn from a seed, which is printed. Every
zone's changes within two years, without kills: `unit/cron/test_cron_simulator.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from support.cron_driven import INLINE_EVERY, Drive
from support.cron_oracle import Oracle, walk
from support.cron_trouble import LIMIT, Consumer, Trouble, instant, pass_time, way_to
from support.cron_walk import minute_of, offset_of
from support.harness import HARNESSES, Harness
from support.seeds import printed_seed
from support.tiers import more
from support.waiting import wait_until

HOURS = 1.5
STEP = 20.0
"""Seconds that pass at a time."""

EVENTS = 20
"""Kills, freezes and steps of clocks, in all."""


@contextmanager
def three_schedulers(
    store: str, folder: Path, start: datetime | None = None, schedules: list[tuple[str, str, str]] | None = None
) -> Iterator[tuple[Harness, Drive, Consumer]]:
    """On that store, one of them up; at `start`, or at once."""
    harness = HARNESSES[store](folder)
    if start is not None:
        harness.advance(start.timestamp() - harness.now())
    drive = Drive(folder, *way_to(harness), harness.now(), schedules=schedules)
    try:
        for number in drive.numbers:
            drive.start(number)
        wait_until(lambda: drive.behind() <= 0, LIMIT, "one of them is up")
        yield harness, drive, Consumer(harness.open())
    except BaseException:
        print(harness.open().keys.list_records("cron"), drive.log())
        raise
    finally:
        drive.close()
        harness.close()


@pytest.mark.row(29)
@pytest.mark.parametrize("store", ["redis", *more(("sqlite",), ("postgres",))])
def test_each_instant_fires_once(store: str, tmp_path: Path) -> None:
    seed = printed_seed()
    steps = int(HOURS * 3600 / STEP)
    with three_schedulers(store, tmp_path) as (harness, drive, consumer):
        start = datetime.fromtimestamp(harness.now(), UTC)
        trouble = Trouble(drive, random.Random(seed), steps, EVENTS)
        pass_time(harness, drive, trouble, consumer, steps, STEP)
        trouble.end()
        end = start + timedelta(seconds=drive.passed)
        minutes = [start + timedelta(minutes=number) for number in range(int(HOURS * 60))]
        consumer.wait_fired({("each-minute", instant(minute)) for minute in minutes}, f"seed {seed}")
        assert consumer.repeated() == [], f"fired more than once; seed {seed}"
        inline = wait_run(drive, {instant(each) for each in minutes if each.minute % INLINE_EVERY == 0}, trouble.kills)
        assert len(inline) == len(set(inline)), f"run more than once; seed {seed}"
        ahead = timedelta(hours=1) if store == "sqlite" else timedelta(0)
        latest = max([*inline, *(at for _, at in consumer.seen)])
        assert latest <= instant(end + ahead), f"fired too early; seed {seed}"


def wait_run(drive: Drive, expected: set[str], kills: int) -> list[str]:
    """What has run inline, once that is all of it, but for one each of so many that may have been killed at it."""
    wait_until(lambda: len(expected - set(drive.inline())) <= kills, LIMIT, f"{len(expected)} less {kills} ran inline")
    return drive.inline()


# --- changes of daylight saving time, and the day that most years have not -------------------------------------------

EDGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "New York, forward": ("America/New_York", "2027-03-14T07:00Z", ("30 2 * * *", "0 3 * * *", "*/30 * * * *")),
    "Berlin, forward": ("Europe/Berlin", "2027-03-28T01:00Z", ("30 2 * * *", "59 1 * * *", "15 * * * *")),
    "Lord Howe, back by half an hour": (
        "Australia/Lord_Howe",
        "2027-04-03T15:00Z",
        ("45 1 * * *", "0 2 * * *", "*/15 * * * *"),
    ),
    "Lord Howe, forward by half an hour": (
        "Australia/Lord_Howe",
        "2027-10-02T15:30Z",
        ("15 2 * * *", "30 2 * * *", "*/15 * * * *"),
    ),
    "Berlin, back": ("Europe/Berlin", "2027-10-31T01:00Z", ("30 2 * * *", "0 3 * * *", "15 * * * *")),
    "New York, back": ("America/New_York", "2027-11-07T06:00Z", ("30 1 * * *", "0 2 * * *", "*/30 * * * *")),
    "a leap day": ("Europe/Berlin", "2028-02-28T23:00Z", ("30 0 29 2 *", "45 0 l * *", "0 1 * 2 *", "30 1 1 3 *")),
}
"""Zone, the moment, and expressions that fire about it."""

AROUND = timedelta(hours=2, minutes=30)
LONG_STEP = 150.0
EVENTS_AT_AN_EDGE = 6


def expected_of(zone: str, expressions: tuple[str, ...], start: datetime, end: datetime) -> set[tuple[str, str]]:
    """By the oracle, which works through minutes and shares nothing with the schedules."""
    early = start - timedelta(days=2)
    fired = walk(tuple(map(Oracle, expressions)), offset_of(ZoneInfo(zone)), minute_of(early), minute_of(end))
    moments = {each: [datetime.fromtimestamp(60 * minute, UTC) for minute in fired[each]] for each in expressions}
    return {(name_of(zone, each), instant(at)) for each, found in moments.items() for at in found if at >= start}


def name_of(zone: str, expression: str) -> str:
    return f"{zone} {expression}"


def the_schedules() -> list[tuple[str, str, str]]:
    """Name, expression, zone of all, each once."""
    return sorted(
        {(name_of(zone, each), each, zone) for zone, _, expressions in EDGES.values() for each in expressions}
    )


@pytest.mark.more
@pytest.mark.row(29)
def test_each_instant_fires_once_where_clocks_change_and_on_leap_days(tmp_path: Path) -> None:
    """One and the same three schedulers live through all of it; between two edges months pass at once."""
    seed = printed_seed()
    dice = random.Random(seed)
    steps = int(2 * AROUND.total_seconds() / LONG_STEP)
    first = datetime.fromisoformat(next(iter(EDGES.values()))[1])
    with three_schedulers("sqlite", tmp_path, first - 2 * AROUND, the_schedules()) as (harness, drive, consumer):
        for edge, (zone, moment, expressions) in EDGES.items():
            start = datetime.fromisoformat(moment) - AROUND
            leap(harness, drive, start)
            trouble = Trouble(drive, dice, steps, EVENTS_AT_AN_EDGE)
            pass_time(harness, drive, trouble, consumer, steps, LONG_STEP)
            trouble.end()
            end = datetime.fromtimestamp(harness.now(), UTC)
            expected = expected_of(zone, expressions, start, end)
            assert {name for name, _ in expected} >= {name_of(zone, each) for each in expressions[:2]}, edge
            consumer.wait_fired(expected, f"{edge}, seed {seed}")
            names = {name_of(zone, each) for each in expressions}
            within = {one for one in consumer.seen if one[0] in names and instant(start) <= one[1] < instant(end)}
            assert within == expected, f"{edge}, seed {seed}"
        assert consumer.repeated() == [], f"fired more than once; seed {seed}"


def leap(harness: Harness, drive: Drive, to: datetime) -> None:
    """Let months pass, as they do for machines that were switched off; those that were missed are too old by now.

    Nobody is in the middle of a turn then: what has fired is remembered for a day, and no turn takes longer.
    """
    wait_until(drive.all_asleep, LIMIT, "they have done what was due")
    seconds = to.timestamp() - harness.now()
    harness.advance(seconds)
    drive.advance(seconds)
    wait_until(lambda: drive.behind() <= 0, LIMIT, "one of them has come there")
