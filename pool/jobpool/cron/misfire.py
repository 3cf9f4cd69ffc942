"""Which instants of a schedule fire now, and which were missed: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from jobpool.cron.schedule import Schedule
from jobpool.message.cron_fields import Misfire

__all__ = ["GRACE", "MOST_SHOWN", "ON_TIME", "Due", "Misfire", "decide"]

GRACE = 3600.0
"""Seconds after an instant within which it is still made up for, unless the scheduler says otherwise."""

ON_TIME = 60.0
"""Seconds: an instant less than this ago was not missed; a scheduler looks at least so often."""

MOST_SHOWN = 1000
"""How many missed instants are named; a schedule of every minute misses half a million in a year."""


@dataclass(frozen=True, slots=True)
class Due:
    """The instants of a schedule at one moment. All are aware, in UTC, oldest first.

    Attributes:
        fire: Fire these now, in this order. All but the newest are made up for, and so is that one if it is late.
        missed: These are never fired: the newest 1,000 of them.
        more: There were more missed ones than are named.
        last: Keep this as the last fired instant of the schedule, even if nothing fires: nothing at or before it is
            ever looked at again. Never before the `last` that was given.
    """

    fire: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    more: bool
    last: datetime


def decide(schedule: Schedule, policy: Misfire, *, last: datetime | None, now: datetime, grace: float = GRACE) -> Due:
    """Say which instants of a schedule fire at `now`.

    Looked at are the instants in (last, now]. The newest, if it is on time (less than a minute ago), always fires.
    Missed ones are made up for if they are at most `grace` ago. With `skip` none are. With `one` the newest is, unless
    a newer one fires on time. With `all(n)` the newest n are, that one included.

    Args:
        schedule: When it is due.
        policy: The treatment of missed instants.
        last: The last instant that was fired, or `Due.last` of the last decision; None = never seen. A schedule never
            seen before starts with the minute of `now`; nothing earlier is missed or made up for.
        now: Aware. Before `last`, because a clock was put back: nothing fires.
        grace: Seconds, >= 0.
    """
    newest = schedule.previous(now)
    start = last if last is not None else now.replace(second=0, microsecond=0) - timedelta(microseconds=1)
    if newest is None or newest <= start:
        return Due((), (), False, last or newest or now)
    found = schedule.between(start, now, most=policy.most + MOST_SHOWN + 2, newest=True)
    fire = _chosen(found, policy, now, grace)
    missed = found[: len(found) - len(fire)]
    return Due(tuple(fire), tuple(missed[-MOST_SHOWN:]), len(missed) > MOST_SHOWN, newest)


def _chosen(found: list[datetime], policy: Misfire, now: datetime, grace: float) -> list[datetime]:
    """Return the newest instants, which fire. All before the newest on-time one are late."""
    on_time = _age(found[-1], now) < ON_TIME
    most = max(policy.most, int(on_time))
    young = [instant for instant in found if _age(instant, now) <= grace or (on_time and instant is found[-1])]
    return young[-most:] if most else []


def _age(instant: datetime, now: datetime) -> float:
    return (now - instant).total_seconds()
