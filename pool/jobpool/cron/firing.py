"""Which instants of a schedule fire now, and which were missed: a pure decision. And the result of each, as a value."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from jobpool.cron.schedule import Schedule
from jobpool.message.cron_fields import Misfire
from jobpool.message.definition import rfc3339

GRACE = 3600.0  # seconds after an instant within which it is still made up for, unless the scheduler says otherwise
ON_TIME_S = 60.0  # seconds: an instant less than this ago was not missed; a scheduler looks at least so often
MAX_MISSED_NAMED = 1000  # missed instants; a schedule of every minute misses half a million in a year

MOMENT = timedelta(microseconds=1)


class Due(Struct, frozen=True):
    """The instants of a schedule at one moment. All are aware, in UTC, oldest first."""

    fire: tuple[datetime, ...]  # now, in this order; all but the newest are made up for, and so is that one if late
    missed: tuple[datetime, ...]  # never fired: the newest 1,000 of them
    more: bool  # there were more missed ones than are named
    last: datetime  # keep this as the last fired instant: nothing at or before it is ever looked at again


def decide(schedule: Schedule, policy: Misfire, *, last: datetime | None, now: datetime, grace: float = GRACE) -> Due:
    """Say which instants of a schedule fire at `now`.

    Looked at are the instants in (last, now]. The newest, if it is on time (less than a minute ago), always fires.
    Missed ones are made up for if they are at most `grace` ago. With `skip` none are. With `one` the newest is, unless
    a newer one fires on time. With `all(n)` the newest n are, that one included.

    `last`: the last instant that was fired, or `Due.last` of the last decision; None = never seen. A schedule never
    seen before starts with the minute of `now`; nothing earlier is missed or made up for. With an aware `now` before
    `last`, because a clock was put back, nothing fires. `grace`: seconds, >= 0.
    """
    newest = schedule.previous(now)
    start = now.replace(second=0, microsecond=0) - MOMENT if last is None else last
    if newest is None or newest <= start:
        return Due((), (), False, last or newest or now)
    found = schedule.between(start, now, most=policy.most + MAX_MISSED_NAMED + 2)
    ages = [(now - instant).total_seconds() for instant in found]
    on_time = ages[-1] < ON_TIME_S
    most = max(policy.most, int(on_time))
    young = max(sum(age <= grace for age in ages), int(on_time))
    kept = len(found) - min(most, young)  # all before the newest on-time one are late
    missed = found[:kept]
    return Due(tuple(found[kept:]), tuple(missed[-MAX_MISSED_NAMED:]), len(missed) > MAX_MISSED_NAMED, newest)


class FiringStatus(StrEnum):
    """The result of one instant."""

    FIRED = "fired"  # enqueued, or run inline with success
    ALREADY = "already"  # another scheduler has fired it
    SKIPPED = "skipped"  # it is not fired, and never will be: `why` says the reason
    MISSED = "missed"  # nobody was there in time, and the misfire policy makes up for it no more
    FAILED = "failed"  # it was refused, or ran inline and failed; it is not tried again
    LATER = "later"  # it is tried again: the broker did not answer, or what it depends on has no end yet


class Firing(Struct, frozen=True):
    """The result of a schedule at one instant."""

    name: str  # of the schedule
    at: datetime  # the instant that was scheduled, in UTC
    status: FiringStatus
    lateness: float = 0.0  # seconds from the instant to the firing
    id: str | None = None  # of the message, when it was enqueued
    took: float | None = None  # seconds that it ran inline
    why: str | None = None  # the reason, when it was not fired, or failed
    stack: str | None = None  # the traceback of an inline run that failed
    output: str | None = None  # captured text and returned value of an inline run

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; fields that are None, and the output, are left out."""
        shown = {"at": rfc3339(self.at), "status": self.status.value, "lateness": round(self.lateness, 6)}
        values = asdict(self) | shown
        return {key: value for key, value in values.items() if value is not None and key != "output"}


def firing_key(name: str, at: datetime) -> str:
    """Return the key that makes a firing the same to all schedulers: the schedule's name, and the instant in UTC."""
    return f"{name} at {rfc3339(at)}"
