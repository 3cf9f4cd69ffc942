"""Schedules with names that a broker might take for one another, or for something else: each fires, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.harness import Harness
from support.jobs import QUEUE

from jobpool.cron.records import load
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.context import JobContext

pytestmark = pytest.mark.needs("leases", "key_store")

NAMES = [
    *("report", "Report", " report", "report ", "re port", "report at 2027-01-15T08:00:00Z", "é", "e\u0301", "😀"),
    *("a*b?[c]", "a%_b", "a:b:c", "{a}", "a\\b", "'a'", '"a"', "../a", "--a", "0", "x" * 255, "é" * 255),
]


def test_each_name_is_one_schedule_whatever_it_is_made_of(harness: Harness) -> None:
    ran: list[str] = []
    registry = HandlerRegistry()

    @registry.handler("inline")
    def inline(ctx: JobContext) -> None:
        ran.append(ctx.name)

    scheduler = Scheduler()
    for name in NAMES:
        scheduler.define("queued").named(name).queue(QUEUE)
        scheduler.define("inline").named(f"i{name}"[:255])
    backend = harness.open()
    first, second = (CronRunner(scheduler, harness.open(), registry=registry, name=who) for who in "ab")
    now = first.time.now()
    then = datetime(now.year, now.month, now.day, now.hour, now.minute, tzinfo=UTC) + timedelta(minutes=1)

    for moment in (then, then + timedelta(minutes=1)):
        assert {firing.status.value for firing in first.run(moment)} == {"fired"}
        assert "fired" not in {firing.status.value for firing in second.run(moment)}

    assert backend.stats(QUEUE).pending == 2 * len(NAMES)
    assert sorted(ran) == sorted(2 * [f"i{name}"[:255] for name in NAMES])
    records = load(backend.keys, (planned.name for planned in first.planned))
    assert {record.last for record in records.values()} == {then + timedelta(minutes=1)}
    assert len(records) == 2 * len(NAMES)
