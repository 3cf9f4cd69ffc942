"""`jobpool cron run --test-time`: what is due in one minute is done, in truth, and no scheduler hears of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from jobpool.cron.firing import Firing, FiringStatus
from jobpool.cron.scheduler import Planned
from jobpool.cron.tick import Means, for_instant, run_inline
from jobpool.errors import JobpoolError


def try_out(plan: Iterable[Planned], means: Means, now: datetime) -> list[Firing]:
    """See `CronRunner.try_out`."""
    firings: list[Firing] = []
    bad: set[str] = set()
    for planned in plan:
        at = planned.schedule.previous(now) if planned.schedule.is_due(now) else None
        if at is not None:
            firing = _try(planned, means, at, bad)
            firings.append(firing)
            if planned.is_inline and means.serves(planned) and firing.status is not FiringStatus.FIRED:
                bad.add(planned.name)
    return firings


def _try(planned: Planned, means: Means, at: datetime, bad: set[str]) -> Firing:
    if why := planned.why_not(means.environment) or _held_by(planned, bad):
        return Firing(planned.name, at, FiringStatus.SKIPPED, why=why)
    try:
        definition = for_instant(planned.entry.definition(), at)
        if planned.is_inline:
            return run_inline(means.inline, planned, definition, at, 0.0)
        return Firing(planned.name, at, FiringStatus.FIRED, id=means.backend.enqueue(definition))
    except JobpoolError as error:
        return Firing(planned.name, at, FiringStatus.FAILED, why=str(error))


def _held_by(planned: Planned, bad: set[str]) -> str | None:
    """Return the reason to hold it back when something that it depends on failed."""
    names = [name for name in planned.definition.depends_on if name in bad]
    return f"{names[0]} failed" if names else None
