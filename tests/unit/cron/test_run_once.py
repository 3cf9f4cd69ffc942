"""One instant, one run: beside long inline jobs, other releases and other apps, and when schedules change."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime
from typing import Any

import pytest
from support.cronrig import START, CronRig, minute, text, told

from jobpool import Limits
from jobpool.broker.key_store import read_record
from jobpool.cron.records import SAME_NAME_MEND, SPACE, Record
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.envelope import decode
from jobpool.testing import VirtualPool


def seen(rig: CronRig, name: str = "a") -> datetime | None:
    record = read_record(rig.backend.keys.get_record(SPACE, name), Record)
    return record.seen if record else None


class Slow:
    """An inline job of the first scheduler, during which a second one has its turn, and then time passes."""

    def __init__(self, rig: CronRig, minutes: float, before: float = 0.0) -> None:
        self._rig = rig
        self._minutes = minutes
        self._before = before
        self.other: CronRunner | None = None
        rig.registry.handler("slow")(self.run)

    def run(self, _ctx: JobContext) -> None:
        other, self.other = self.other, None
        self._rig.pass_minutes(self._before)
        if other is not None:
            other.run()
        self._rig.pass_minutes(self._minutes)


def test_what_others_fired_during_a_long_inline_job_is_not_tried_again(rig: CronRig) -> None:
    slow = Slow(rig, 11)
    rig.scheduler.define("slow").hourly()
    rig.scheduler.define("a").queue("reports").hourly()
    one, slow.other = rig.runner("one"), rig.runner("two")
    assert told(one.run()) == [("slow", 0, "fired")]
    assert len(rig.queued()) == 1


def test_if_others_cannot_be_asked_after_a_long_inline_job_the_rest_is_left_to_the_next_turn(rig: CronRig) -> None:
    @rig.registry.handler("slow")
    def slow(_ctx: JobContext) -> None:
        rig.pass_minutes(11)
        rig.backend.silent = True

    rig.scheduler.define("slow").hourly()
    rig.scheduler.define("a").queue("reports").hourly()
    rig.scheduler.define("b").queue("other").hourly()
    runner = rig.runner()
    assert told(runner.run()) == [("slow", 0, "fired")]
    assert runner.silence == "nobody there"
    rig.backend.silent = False
    assert told(runner.run()) == [("a", 0, "fired"), ("b", 0, "fired")]


def test_a_first_turn_that_takes_long_puts_back_no_record(rig: CronRig) -> None:
    slow = Slow(rig, 12, before=1)
    rig.scheduler.define("slow").hourly()
    rig.scheduler.define("a").queue("reports").hourly_at(1)
    one, slow.other = rig.runner("one"), rig.runner("two")
    one.run()
    assert seen(rig) == minute(1)


@pytest.mark.parametrize("limited", [True, False])
def test_a_firing_is_remembered_for_a_day_though_keys_are_for_a_second(limited: bool) -> None:
    """All records are gone, and the message was acked more than ten minutes ago."""
    registry, ran = HandlerRegistry(), []

    @registry.handler("bill", queue="q")
    def bill(ctx: JobContext) -> None:
        ran.append(ctx.meta["scheduled_for"])

    scheduler = Scheduler()
    scheduler.define(bill.define()).hourly()
    limits = Limits(rates={"q": 1000} if limited else {}, idempotency_ttl=1)
    with VirtualPool(registry, limits=limits) as pool:
        backend = pool.backend

        def look() -> list[str]:
            return [one.status.value for one in CronRunner(scheduler, backend, registry=registry).run()]

        pool.advance(5400 - backend.clock.wall() % 3600)  # to half past; at the hour itself the first look would fire
        assert look() == []
        pool.advance(1801)
        before = backend.keys.get_record(SPACE, "bill")
        assert before is not None
        assert look() == ["fired"]
        pool.run_all()
        pool.advance(660)
        backend.keys.put_records(SPACE, {"bill": before}, 3600.0)
        assert look() == ["already"]
        pool.run_all()
    assert len(ran) == 1


def test_a_record_that_could_not_be_written_is_written_by_the_next_turn(
    rig: CronRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.scheduler.define("a").queue("reports").hourly()
    runner = rig.runner()
    monkeypatch.setattr(runner._states, "_is_silent", True)
    monkeypatch.setattr(runner._states, "read", lambda _: None)
    runner.run()
    assert seen(rig) is None
    monkeypatch.undo()
    runner.run()
    assert seen(rig) == START


def test_a_yearly_firing_is_made_up_for_after_a_leap_year(rig: CronRig) -> None:
    """Its record lives longer than the 366 days to the next one, and than those from one leap day to the next."""
    rig.scheduler.define("a").named("tax").queue("reports").yearly()
    rig.scheduler.define("a").named("leap").queue("reports").cron("0 0 29 2 *")
    days = [date(2028, 1, 1), date(2028, 2, 29), date(2029, 1, 1), date(2032, 2, 29)]
    rig.runner().run()
    for day in days:
        rig.clock.advance(
            (
                datetime(day.year, day.month, day.day, 0, 10, tzinfo=UTC)
                - datetime.fromtimestamp(rig.clock.wall(), UTC)
            ).total_seconds()
        )
        [firing] = [one for one in rig.runner().run() if one.status.value == "fired"]
        assert firing.at.date() == day


def test_missed_firings_are_made_up_for_together(rig: CronRig) -> None:
    """A round trip or more for each would take minutes after an outage."""
    for number in range(20):
        rig.scheduler.define("a").named(f"job-{number}").queue("reports").misfire("one" if number % 2 else "all(5)")
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(30)
    rig.backend.calls = rig.backend.key_calls = 0
    firings = told(runner.run())
    assert (rig.backend.calls, rig.backend.key_calls) == (1, 6)
    assert firings[:2] == [("job-0", 25, "missed"), ("job-0", 26, "fired")]
    assert [status for _, _, status in firings].count("fired") == 10 * 5 + 10
    assert [status for _, _, status in firings].count("missed") == 20
    assert len(rig.queued()) == 20 + 60
    assert rig.runner().run() == [], "the records are there"


def test_a_silent_broker_is_told_nothing_more_in_the_same_turn(rig: CronRig) -> None:
    """Each record of a missed instant would wait for as long as a call may."""
    for name in ("one", "two", "three"):
        rig.scheduler.define("a").named(name).queue("reports").every_minute().misfire("skip")
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(5)
    asked: list[str] = []

    class Deaf:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            rig.backend.silent = True
            return getattr(rig.backend.keys, name)

    runner._states._keys = Deaf()  # type: ignore[assignment]
    runner._states.read = lambda _: None  # type: ignore[method-assign, assignment]
    assert [status for _, _, status in told(runner.run())].count("missed") == 3
    assert asked == ["take_many", "list_records"]


# --- other releases and other apps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 2])
def test_a_schedule_that_has_got_a_queue_is_not_enqueued_where_the_old_release_has_run_it(
    rig: CronRig, others: int
) -> None:
    """`others`: schedules beside it, with which it is enqueued together."""
    old, new = Scheduler(), Scheduler()
    old.define("a")
    new.define("a").queue("reports")
    for number in range(others):
        new.define("b").named(f"b{number}").queue("reports")
    one, two = rig.runner("old", old), rig.runner("new", new)
    one.run()
    two.run()
    for number, (first, second) in enumerate([(one, two), (one, two), (two, one)], 1):
        rig.pass_minutes(1)
        firings = told(first.run()) + told(second.run())
        assert [row for row in firings if row[0] == "a"] == [("a", number, "fired"), ("a", number, "already")]
    assert [at for handler, at in rig.queued() if handler == "a"] == [text(3)]
    assert rig.ran == [("a", text(number)) for number in range(3)]


def test_a_name_that_two_apps_share_is_warned_of(rig: CronRig, caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = Scheduler(), Scheduler()
    mine.define("a").named("cleanup").queue("reports")
    theirs.define("b").named("cleanup").queue("other")
    one, two = rig.runner("one", mine), rig.runner("two", theirs)
    two.run()
    for _ in range(4):
        one.run()
        two.run()
        rig.pass_minutes(1)
    [warned] = caplog.records
    assert warned.levelno == logging.WARNING
    fields = {"schedule": "cleanup", "at": text(2), "fired": "a in reports", "mend": SAME_NAME_MEND}
    assert warned.__dict__["fields"] == fields


def test_a_job_that_changes_with_a_release_is_warned_of_no_more(rig: CronRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.scheduler.define("a").named("cleanup").queue("reports")
    rig.runner().run()
    new = Scheduler()
    new.define("b").named("cleanup").queue("other")
    runners = [rig.runner("one", new), rig.runner("two", new)]
    for one in runners:
        one.run()
    for _ in range(3):
        rig.pass_minutes(1)
        assert [status for one in runners for _, _, status in told(one.run())] == ["fired", "already"]
    assert caplog.records == []


def test_who_came_second_writes_the_record_of_one_who_died(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute(5)
    one, two = rig.runner("one"), rig.runner("two")
    one.run()
    before = rig.backend.keys.get_record(SPACE, "a")
    two.run()
    two.run()
    rig.pass_minutes(5)
    one.run()
    rig.backend.keys.put_records(SPACE, {"a": before}, 3600.0)  # as if it had died before it wrote one
    two.run()
    assert seen(rig) == minute(0)
    two.run()
    assert seen(rig) == minute(5)


def deploy(rig: CronRig, name: str = "job") -> JobBuilder:
    """A new app, with one schedule. The schedulers of the old one are gone."""
    scheduler = rig.scheduler = Scheduler()
    return scheduler.define("a").named(name).queue("reports")


def fires_after(rig: CronRig, minutes: float, **options: Any) -> list[int]:
    """Minutes after the rig's beginning that fire when a new scheduler looks so much later."""
    rig.pass_minutes(minutes)
    return [number for _, number, status in told(rig.runner(**options).run()) if status == "fired"]


def test_a_new_expression_counts_from_the_last_instant_of_the_old_one(rig: CronRig) -> None:
    deploy(rig).hourly()
    assert fires_after(rig, 0) == [0]

    deploy(rig).every_minute(20).misfire("all(5)")
    assert fires_after(rig, 50) == [20, 40]

    deploy(rig).hourly_at(30)
    assert fires_after(rig, 0) == [], "08:30 is before what was fired last"
    assert fires_after(rig, 40) == [90]


def test_a_new_zone_fires_no_instant_again(rig: CronRig) -> None:
    deploy(rig).daily_at("08:00")
    assert fires_after(rig, 0) == [0]

    deploy(rig).daily_at("09:00").zone("Europe/Berlin")  # the same instant
    assert fires_after(rig, 0.5) == []

    deploy(rig).daily_at("08:30").zone("Europe/London")
    assert fires_after(rig, 29.5) == [30]


def test_a_new_policy_is_what_counts_for_what_the_old_one_missed(rig: CronRig) -> None:
    deploy(rig).every_minute().misfire("skip")
    fires_after(rig, 0)

    deploy(rig).every_minute().misfire("all(3)")
    assert fires_after(rig, 10) == [8, 9, 10]

    deploy(rig).every_minute(7).misfire("skip")
    assert fires_after(rig, 20) == [], "08:28 was missed"


def test_a_new_name_is_a_new_schedule_and_an_old_one_that_comes_back_has_its_past(rig: CronRig) -> None:
    deploy(rig).every_minute(10)
    fires_after(rig, 0)

    deploy(rig, "another").every_minute(10)
    assert fires_after(rig, 15) == [], "08:10 was before its time"

    deploy(rig).every_minute(10)
    assert fires_after(rig, 3) == [10]


@pytest.mark.parametrize(("misfire", "fires"), [("skip", []), ("one", [20]), ("all(2)", [10, 20])])
def test_what_is_enabled_again_has_missed_its_last_instants(rig: CronRig, misfire: str, fires: list[int]) -> None:
    deploy(rig).every_minute(10).misfire(misfire)
    fires_after(rig, 0)

    deploy(rig).every_minute(10).misfire(misfire).disable()
    assert fires_after(rig, 11) == []

    deploy(rig).every_minute(10).misfire(misfire)
    assert fires_after(rig, 11) == fires


def test_what_moves_to_another_environment_goes_on_there(rig: CronRig) -> None:
    deploy(rig).every_minute(10).environments("staging")
    assert fires_after(rig, 0, environment="staging") == [0]

    deploy(rig).every_minute(10).environments("production")
    assert fires_after(rig, 12, environment="staging") == []
    assert fires_after(rig, 0, environment="production") == [10]


def test_a_schedule_that_is_gone_leaves_the_others_alone(rig: CronRig) -> None:
    for number in range(3):
        deploy(rig, f"of release {number}").every_minute(10)
        fires_after(rig, 0)
    deploy(rig, "of release 1").every_minute(10)
    assert fires_after(rig, 10) == [10]
    assert rig.backend.stats("reports").pending == 4


def test_what_happens_to_a_payload_is_not_seen_by_the_next_firing(rig: CronRig) -> None:
    seen: list[Any] = []

    @rig.registry.handler("greedy")
    def greedy(ctx: JobContext) -> None:
        seen.append(list(ctx.payload["lines"]))
        ctx.payload["lines"].clear()

    mine = {"lines": [1, 2]}
    rig.scheduler.define("greedy", mine).named("inline")
    rig.scheduler.define("greedy", mine).named("queued").queue("reports")
    mine["lines"].append(3)
    runner = rig.runner()
    for _ in range(2):
        runner.run()
        mine["lines"].append(4)
        rig.pass_minutes(1)

    assert seen == [[1, 2], [1, 2]]
    queued = [decode(message.body, attempts=0).payload for message in rig.backend.list_messages()]
    assert queued == [{"lines": [1, 2]}, {"lines": [1, 2]}]
