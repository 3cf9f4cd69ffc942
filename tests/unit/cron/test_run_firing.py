"""`CronRunner.run`: what is due is fired, once, in the order of `depends_on`, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.cronrig import START, CronRig, minute, text, told

from jobpool.broker.opening import open_backend
from jobpool.broker.values import once_id
from jobpool.cron import tick
from jobpool.cron.firing import FiringStatus, firing_key
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler
from jobpool.errors import ConfigurationError
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.envelope import decode


def test_a_job_with_a_queue_is_enqueued_and_one_without_runs_here(rig: CronRig) -> None:
    rig.scheduler.define("a", {}).queue("reports").hourly()
    rig.scheduler.define("b", {}).hourly()
    rig.scheduler.define("c", {}).queue("reports").daily_at("09:00")
    firings = rig.runner().run()
    assert told(firings) == [("a", 0, "fired"), ("b", 0, "fired")]
    assert rig.queued() == [("a", text(0))]
    assert rig.ran == [("b", text(0))]
    [message] = rig.backend.list_messages()
    assert message.id == firings[0].id == once_id(firing_key("a", START))


def test_each_instant_fires_once_over_time_and_what_is_not_due_does_not(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute(2)
    runner = rig.runner()
    for _ in range(60):
        runner.run()
        rig.pass_minutes(0.1)
    assert [at for _, at in rig.queued()] == [text(0), text(2), text(4)]
    assert runner.next_due() == minute(6)


def test_of_three_schedulers_one_fires_and_the_others_know(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.scheduler.define("b").every_minute()
    runners = [rig.runner(name) for name in ("one", "two", "three")]
    for runner in runners:
        runner.run()
    for turn in range(1, 4):
        rig.pass_minutes(1)
        answers = [told(runner.run()) for runner in runners]
        assert answers == [
            [("a", turn, "fired"), ("b", turn, "fired")],
            *[[("a", turn, "already"), ("b", turn, "already")]] * 2,
        ]
    assert [at for _, at in rig.queued()] == [text(number) for number in range(4)]
    assert rig.ran == [("b", text(number)) for number in range(4)]


def test_one_that_starts_where_others_have_been_fires_nothing_again(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.runner().run()
    [lease] = rig.backend.fetch_many("reports", limit=1)
    rig.backend.ack(lease)
    assert rig.runner().run() == []
    rig.clock.advance(59.0)
    assert rig.runner().run() == []


def test_a_clock_that_is_put_back_fires_nothing_again(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    runners = [rig.runner("one"), rig.runner("two")]
    for _ in range(3):
        rig.pass_minutes(1)
        for runner in runners:
            runner.run()
    rig.clock.set_wall(-3600.0)
    for runner in (*runners, rig.runner("new")):
        assert runner.run() == []
    rig.clock.set_wall(3600.0)
    rig.pass_minutes(1)
    assert told(runners[0].run()) == [("a", 4, "fired")]


def test_a_clock_that_jumps_ahead_and_back_fires_each_instant_once(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute().misfire("all(100)")
    early, other = rig.runner("early"), rig.runner("other")
    for runner in (early, other):
        runner.run()
    rig.clock.set_wall(3600.0)
    early.run()
    rig.clock.set_wall(-3600.0)
    for _ in range(61):
        rig.pass_minutes(1)
        early.run()
        other.run()
    assert sorted(at for _, at in rig.queued()) == [text(number) for number in range(62)]


@pytest.mark.parametrize(
    ("policy", "fired"), [("skip", []), ("one", [9]), ("all(3)", [7, 8, 9]), ("all(100)", list(range(1, 10)))]
)
def test_what_was_missed_is_made_up_for_by_its_policy(rig: CronRig, policy: str, fired: list[int]) -> None:
    rig.scheduler.define("a").queue("reports").cron("0-9 8 * * *").misfire(policy)
    rig.runner().run()
    rig.pass_minutes(30)
    firings = rig.runner().run()
    assert [number for _, number, status in told(firings) if status == "fired"] == fired
    missed = [firing.why for firing in firings if firing.status.value == "missed"]
    assert missed == ([f"{9 - len(fired)} missed, the first at {text(1)}"] if len(fired) < 9 else [])
    assert rig.runner().run() == [], "nothing is said of it again"


def test_of_more_than_are_counted_the_first_is_not_named(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute().misfire("skip")
    rig.runner().run()
    rig.pass_minutes(1500.5)
    [missed, _] = rig.runner().run()
    assert missed.why == f"more than 1000 missed, the first before {text(500)}"


def test_beyond_the_grace_nothing_is_made_up_for(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").cron("0,1 8 * * *")
    rig.runner(grace=600.0).run()
    rig.pass_minutes(12)
    assert told(rig.runner(grace=600.0).run()) == [("a", 1, "missed")]


def test_disabled_jobs_and_those_of_other_environments_are_left_alone(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").disable()
    rig.scheduler.define("b").queue("reports").environments("production", "staging")
    rig.scheduler.define("c").queue("reports")
    assert told(rig.runner().run()) == [("c", 0, "fired")]
    rig.pass_minutes(1)
    assert told(rig.runner(environment="staging").run()) == [("b", 1, "fired"), ("c", 1, "fired")]
    assert [one.handler for one in rig.runner(environment="production").due_definitions(minute(7.5))] == ["b", "c"]
    assert rig.runner(environment="test").next_due() is None


def test_what_a_scheduler_of_another_environment_leaves_is_not_lost(rig: CronRig) -> None:
    rig.scheduler.define("b").queue("reports").environments("production").misfire("all(10)")
    live, other = rig.runner(environment="production"), rig.runner(environment="test")
    for runner in (live, other):
        runner.run()
    rig.pass_minutes(2)
    other.run()
    assert [number for _, number, _ in told(rig.runner(environment="production").run())] == [1, 2]


def test_one_failure_never_stops_the_rest(rig: CronRig) -> None:
    rig.failing = {"a"}
    rig.scheduler.define("a").every_minute()
    rig.scheduler.define("nobody").every_minute()
    rig.scheduler.define("b").queue("reports")
    rig.scheduler.define("b", "x" * 1_048_576).named("large").queue("reports")
    rig.scheduler.define("c").queue("reports")
    failed, unknown, before, refused, behind = rig.runner().run()
    assert [one.status.value for one in (failed, unknown, refused)] == ["failed"] * 3
    assert [one.status.value for one in (before, behind)] == ["fired"] * 2
    assert rig.queued() == [("b", text(0)), ("c", text(0))]
    assert failed.why == "RuntimeError: a is broken"
    assert "1048576" in str(refused.why)
    assert "nobody" in str(unknown.why)
    assert rig.runner().run() == [], "none of them is tried again"


def test_an_inline_job_has_its_hard_timeout(rig: CronRig) -> None:
    @rig.registry.handler("hang", timeout=0.05)
    def hang(_ctx: object) -> None:
        while True:
            pass

    rig.scheduler.define("hang")
    [firing] = rig.runner().run()
    assert firing.status.value == "failed"
    assert "exceeded maximum execution time of 0.05 seconds" in str(firing.why)


def test_an_inline_job_is_on_no_queue_s_list_of_handlers(rig: CronRig) -> None:
    rig.registry.restrict({"default": ["b"]})
    rig.scheduler.define("a")
    [firing] = rig.runner().run()
    assert firing.status.value == "fired"


def test_what_is_stopped_in_the_middle_is_left_to_the_next(rig: CronRig) -> None:
    rig.scheduler.define("a").hourly().misfire("all(5)")
    rig.scheduler.define("b").queue("reports").hourly()
    rig.runner().run()
    rig.pass_minutes(180)
    late = rig.runner(grace=4 * 3600.0)
    assert told(late.run(stopped=lambda: len(rig.ran) == 2)) == [("a", 60, "fired")]
    assert told(rig.runner(grace=4 * 3600.0).run()) == [
        *[("a", 120, "fired"), ("a", 180, "fired")],
        *[("b", 120, "missed"), ("b", 180, "fired")],
    ]


def test_a_clock_that_was_far_ahead_is_told_of_once(rig: CronRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.scheduler.define("a").queue("reports").hourly()
    rig.scheduler.define("b").queue("reports").hourly().disable()
    rig.clock.set_wall(86400.0)
    rig.runner().run()
    rig.clock.set_wall(-86400.0)
    runner = rig.runner()
    with caplog.at_level("WARNING", "jobpool.cron"):
        for _ in range(3):
            assert runner.run() == []
            rig.pass_minutes(1)
    [record] = caplog.records
    assert "a clock was ahead" in record.getMessage()
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["name"], fields["until"], fields["now"]) == ("a", text(24 * 60), text(0))

    rig.backend.keys.delete_records("cron", ["a"])
    assert told(rig.runner().run()) == []
    rig.pass_minutes(60)
    assert told(rig.runner().run()) == [("a", 60, "fired")], "that is how it is mended"


def test_many_schedules_of_a_clock_that_was_ahead_are_one_line(rig: CronRig, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(12):
        rig.scheduler.define("a").named(f"a{number:02}").queue("reports").hourly()
    rig.clock.set_wall(86400.0)
    rig.runner().run()
    rig.clock.set_wall(-86400.0)
    with caplog.at_level("WARNING", "jobpool.cron"):
        rig.runner().run()
    [record] = caplog.records
    names = ", ".join(f"a{number:02}" for number in range(10))
    assert record.fields["name"] == f"{names} and 2 more"  # type: ignore[attr-defined]


def test_a_clock_that_was_a_little_ahead_is_nothing_to_tell(rig: CronRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.clock.set_wall(240.0)
    rig.runner().run()
    rig.clock.set_wall(-240.0)
    with caplog.at_level("WARNING", "jobpool.cron"):
        assert rig.runner().run() == []
    assert caplog.records == []


def test_all_jobs_of_a_chain_know_the_instant(rig: CronRig) -> None:
    mail = JobBuilder("c").meta(scheduled_for="its own")
    report = JobBuilder("b").then(mail)
    rig.scheduler.define("a").queue("reports").then(report)
    rig.runner().run()
    [message] = rig.backend.list_messages()
    metas = [job["meta"] for job in decode(message.body, attempts=0).then]
    assert metas == [{"scheduled_for": text(0)}, {"scheduled_for": "its own"}]


def test_a_delay_counts_from_the_firing(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").delay(timedelta(minutes=5))
    [planned] = rig.runner().planned
    before = datetime.now(UTC)
    delayed = planned.entry.definition().scheduled_at
    assert delayed is not None
    assert timedelta(0) <= delayed - before - timedelta(minutes=5) < timedelta(seconds=5)
    assert planned.definition.scheduled_at is not None
    assert delayed > planned.definition.scheduled_at


def test_a_unique_job_is_skipped_while_another_has_its_key(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").idempotency_key("customer-7").unique()
    runner = rig.runner()
    [first] = runner.run()
    rig.pass_minutes(1)
    [second] = runner.run()
    [tried] = runner.try_out(START)
    assert [one.status.value for one in (first, second, tried)] == ["fired", "skipped", "skipped"]
    assert second.why == tried.why == f"message {first.id} has its unique key 'customer-7'"


def test_a_trial_does_what_is_due_then_and_leaves_no_trace(rig: CronRig) -> None:
    rig.failing = {"c"}
    rig.scheduler.define("a").queue("reports").daily_at("02:00")
    rig.scheduler.define("b").hourly().disable()
    rig.scheduler.define("c").daily_at("02:00")
    rig.scheduler.define("a").named("after-c").queue("reports").daily_at("02:00").depends_on("c")
    runner = rig.runner()
    tomorrow = START + timedelta(hours=18)
    for _ in range(2):
        assert [(one.name, one.status.value) for one in runner.try_out(tomorrow + timedelta(seconds=31))] == [
            ("a", "fired"),
            ("b", "skipped"),
            ("c", "failed"),
            ("after-c", "skipped"),
        ]
    assert len({message.id for message in rig.backend.list_messages()}) == 2
    assert rig.backend.keys.list_records("cron") == []
    rig.runner().run()
    rig.pass_minutes(18 * 60)
    assert ("a", 18 * 60, "fired") in told(rig.runner().run())


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_moment_without_a_zone_is_refused(rig: CronRig) -> None:
    with pytest.raises(ConfigurationError, match="has no time zone"):
        rig.runner().run(datetime(2027, 1, 1))


@pytest.mark.parametrize("grace", [-1, 43201.0, True, float("nan")])
def test_a_grace_out_of_bounds_is_refused(rig: CronRig, grace: float) -> None:
    with pytest.raises(ConfigurationError, match="0 to 43200 seconds"):
        rig.runner(grace=grace)


def test_a_broker_without_keys_needs_the_users_word() -> None:
    ran: list[object] = []
    backend = open_backend("sync://", runner=ran.append)
    scheduler = Scheduler()
    scheduler.define("a").queue("reports")
    with pytest.raises(ConfigurationError, match="--only-scheduler"):
        CronRunner(scheduler, backend)
    runner = CronRunner(scheduler, backend, only=True)
    assert [one.status.value for one in runner.run(START)] == ["fired"]
    assert runner.run(START) == []
    assert len(ran) == 1


def test_firings_of_one_minute_are_enqueued_together(rig: CronRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip or more for each would make the last of 10,000 late by most of a minute."""
    monkeypatch.setattr(tick, "ENQUEUED_AT_ONCE", 100)
    count = 2 * 100 + 1
    for number in range(count):
        rig.scheduler.define("a", number).named(f"job-{number}").queue("reports").every_minute()
    runner, other = rig.runner("one"), rig.runner("other")
    runner.run()
    other.run()
    rig.backend.calls = rig.backend.key_calls = 0
    rig.pass_minutes(1)
    firings = runner.run()
    assert [(one.name, one.status) for one in firings] == [(f"job-{n}", FiringStatus.FIRED) for n in range(count)]
    assert rig.backend.calls == 3
    assert rig.backend.key_calls == 3 * 5, "what ran inline; who tells; what others have seen; the records; the jobs"
    assert {one.status for one in other.run()} == {FiringStatus.ALREADY}
    assert rig.backend.stats("reports").waiting == 2 * count
    assert rig.runner("late").run() == [], "the records are there"


def test_an_inline_job_between_others_keeps_its_place(rig: CronRig) -> None:
    queued: list[tuple[str, str]] = []

    def look(_ctx: JobContext) -> None:
        queued.extend(rig.queued())

    rig.registry.handler("look")(look)
    for name in ("a", "b"):
        rig.scheduler.define(name).queue("reports").every_minute()
    rig.scheduler.define("look").every_minute()
    rig.scheduler.define("c").queue("reports").every_minute()
    assert told(rig.runner().run()) == [(name, 0, "fired") for name in ("a", "b", "look", "c")]
    assert queued == [("a", text(0)), ("b", text(0))]


def a_chain(rig: CronRig) -> None:
    """c after b after a; all inline but c."""
    rig.scheduler.define("c").queue("reports").depends_on("b")
    rig.scheduler.define("b").depends_on("a")
    rig.scheduler.define("a")


def test_dependents_come_behind(rig: CronRig) -> None:
    a_chain(rig)
    assert told(rig.runner().run()) == [("a", 0, "fired"), ("b", 0, "fired"), ("c", 0, "fired")]


def test_what_depends_on_a_failed_one_is_held_back_and_so_is_what_depends_on_that(rig: CronRig) -> None:
    a_chain(rig)
    rig.failing = {"a"}
    runner = rig.runner()
    firings = runner.run()
    assert told(firings) == [("a", 0, "failed"), ("b", 0, "skipped"), ("c", 0, "skipped")]
    assert [firing.why for firing in firings[1:]] == ["a failed", "b failed"]
    assert rig.queued() == []
    rig.failing = set()
    rig.pass_minutes(1)
    assert [status for _, _, status in told(runner.run())] == ["fired"] * 3, "only in the same tick"


def test_a_failure_of_an_enqueued_one_holds_nothing_back(rig: CronRig) -> None:
    rig.scheduler.define("a", "x" * 1_048_576).queue("reports")
    rig.scheduler.define("b").depends_on("a")
    assert told(rig.runner().run()) == [("a", 0, "failed"), ("b", 0, "fired")]


def test_one_that_is_not_due_or_not_served_holds_nothing_back(rig: CronRig) -> None:
    rig.failing = {"a"}
    rig.scheduler.define("a").hourly()
    rig.scheduler.define("a").named("elsewhere").environments("production")
    rig.scheduler.define("b").depends_on("a", "elsewhere")
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(1)
    assert told(runner.run()) == [("b", 1, "fired")]


class Meanwhile:
    """A second scheduler that has its turn while the first one runs a."""

    def __init__(self, rig: CronRig, fails: bool = True) -> None:
        self.fails = fails
        self.runner: CronRunner | None = None
        self.saw: list[tuple[str, int, str]] = []
        rig.registry.handler("look")(self.look)

    def look(self, _ctx: object) -> None:
        assert self.runner is not None
        runner, self.runner = self.runner, None
        self.saw = told(runner.run())
        if self.fails:
            raise RuntimeError("and then it fails")


@pytest.mark.parametrize("fails", [True, False])
def test_another_scheduler_waits_for_the_end_of_the_one_that_runs_it(rig: CronRig, fails: bool) -> None:
    meanwhile = Meanwhile(rig, fails)
    rig.scheduler.define("look").named("a")
    rig.scheduler.define("b").queue("reports").depends_on("a")
    one, two = rig.runner("one"), rig.runner("two")
    meanwhile.runner = two
    first = told(one.run())
    second = told(two.run())
    assert meanwhile.saw == [("a", 0, "already"), ("b", 0, "later")]
    if fails:
        assert first == [("a", 0, "failed"), ("b", 0, "skipped")]
        assert second == [("b", 0, "skipped")]
        assert rig.queued() == []
    else:
        assert first == [("a", 0, "fired"), ("b", 0, "fired")]
        assert second == [("b", 0, "already")]
        assert rig.queued() == [("b", text(0))]


def test_one_that_starts_while_another_runs_it_waits_too(rig: CronRig) -> None:
    """Its own memory says nothing of a; what it finds recorded of b is from the time before."""
    meanwhile = Meanwhile(rig)
    rig.scheduler.define("a").named("calm").queue("other")
    rig.scheduler.define("look").named("a").cron("1 8 * * *")
    rig.scheduler.define("b").queue("reports").depends_on("a").cron("1 8 * * *")
    one = rig.runner("one")
    one.run()
    rig.pass_minutes(1)
    meanwhile.runner = rig.runner("two")
    assert ("a", 1, "failed") in told(one.run())
    assert [row for row in meanwhile.saw if row[0] == "b"] == [("b", 1, "later")]
    assert [handler for handler, _ in rig.queued() if handler == "b"] == []
