"""Two years of schedules, minute by minute, in every zone whose offset changes in that time, against the oracle.

    PYTHONPATH=tests python -m support.cron_walk     the whole of it; eight minutes of CPU, and a figure at the end

The tests walk the days about each change, which is where schedules go wrong, and samples of the rest. Zones whose
clocks show the same in all of these years are walked once.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from jobpool.cron.schedule import Schedule
from support.cron_oracle import Oracle, walk

FIRST, LAST = datetime(2025, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)

FIXED = (
    "0 0 * * *",
    "30 2 * * *",
    "59 23 * * *",
    "0,30 1,2,3 * * *",
    "15 0-23 * * *",
    "45 22-2 * mar-nov *",
    "30 1 L * *",
    "0 3 29 feb *",
    "20 0,2 5 * sun",
    "15 2 * * sun#2,sun#1,7#5,fri#4",
    "40 2 25-31/2 * L7",
)
INTERVAL = (
    "*/10 2 * * *",
    "30 */2 * * *",
    "*/25 0,23 * * *",
    "* 1 31 * 5-7",
    "5 */3 1-15 * 0",
)
HOURLY = (
    "* * * * *",
    "*/7 * * * *",
    "15 * * * sat,sun",
    "45 * 1,25-31 3,10 1/2",
)
EXPRESSIONS = FIXED + INTERVAL + HOURLY

DAY = 1440
"""Minutes."""

Change = tuple[int, int, int]
"""The first minute of a new offset, the offset before, the new one; minutes."""


def minute_of(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def offset_of(zone: ZoneInfo) -> Callable[[int], int]:
    """Local time minus UTC, in minutes, in a minute."""

    def offset(minute: int) -> int:
        known = datetime.fromtimestamp(minute * 60, zone).utcoffset()
        assert known is not None
        return int(known.total_seconds()) // 60

    return offset


def changes_of(name: str, start: datetime, end: datetime) -> tuple[Change, ...]:
    """Every change of a zone's offset, found by looking every day, and then at each minute between."""
    offset = offset_of(ZoneInfo(name))
    found: list[Change] = []
    before = offset(minute_of(start))
    for minute in range(minute_of(start), minute_of(end), DAY):
        after = offset(minute + DAY - 1)
        if after != before:
            at = next(each for each in range(minute, minute + DAY) if offset(each) != before)
            found.append((at, before, after))
        before = after
    return tuple(found)


def zones_by_changes(start: datetime = FIRST, end: datetime = LAST) -> dict[tuple[Change, ...], list[str]]:
    """All zones whose offset changes in that time; those that change alike, together."""
    groups: dict[tuple[Change, ...], list[str]] = defaultdict(list)
    for name in sorted(available_timezones()):
        changes = changes_of(name, start, end)
        if changes:
            groups[changes].append(name)
    return dict(groups)


@cache
def _oracles(expressions: tuple[str, ...]) -> tuple[Oracle, ...]:
    return tuple(map(Oracle, expressions))


def differences(name: str, start: int, end: int, expressions: tuple[str, ...] = EXPRESSIONS) -> tuple[list[str], int]:
    """What schedules and oracle say differently of the minutes in [start, end), and how many firings they agree on."""
    fired = walk(_oracles(expressions), offset_of(ZoneInfo(name)), start, end)
    found: list[str] = []
    agreed = 0
    for expression, expected in fired.items():
        actual = _scheduled(Schedule(expression, name), start, end)
        wrong = sorted(set(expected) ^ set(actual))
        agreed += len(expected) - len(wrong)
        if wrong or len(actual) != len(set(actual)):
            found.append(f"{expression!r} in {name}: {len(wrong)} differ, first {_shown(wrong, set(actual))}")
    return found, agreed


def _scheduled(schedule: Schedule, start: int, end: int) -> list[int]:
    after = datetime.fromtimestamp(start * 60 - 1, UTC)
    until = datetime.fromtimestamp(end * 60 - 1, UTC)
    instants = schedule.between(after, until, most=end - start)
    assert all(instant.second == 0 and instant.microsecond == 0 for instant in instants)
    return [minute_of(instant) for instant in instants]


def _shown(wrong: list[int], actual: set[int]) -> str:
    if not wrong:
        return "twice the same"
    which = "too many" if wrong[0] in actual else "missing"
    return f"{datetime.fromtimestamp(wrong[0] * 60, UTC).isoformat()} {which}"


def main() -> int:
    """Walk it all, and say what differs."""
    began, failed, agreed = time.process_time(), 0, 0
    groups = zones_by_changes()
    minutes = minute_of(LAST) - minute_of(FIRST)
    for number, names in enumerate(groups.values(), start=1):
        wrong, right = differences(names[0], minute_of(FIRST), minute_of(LAST))
        agreed += right
        failed += len(wrong)
        print(f"{number}/{len(groups)} {names[0]} and {len(names) - 1} more: {wrong or 'agree'}", flush=True)
    zones = sum(map(len, groups.values()))
    print(
        f"{zones} zones in {len(groups)} groups, {minutes:,} minutes each, {len(EXPRESSIONS)} expressions:"
        f" {agreed:,} firings agree, {failed} schedules differ, {time.process_time() - began:.0f} s of CPU"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
