"""The fluent builder: what each step sets, the cron helpers, and where `dispatch` sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.tables import row

from jobpool.clock import ManualClock
from jobpool.errors import InvalidJob
from jobpool.message import producer
from jobpool.message.builder import JobBuilder, definition_of, named_job
from jobpool.message.definition import JobDefinition

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


class Recorder:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.jobs: list[JobDefinition] = []

    def enqueue(self, definition: JobDefinition, /) -> str:
        self.jobs.append(definition)
        return f"id-{len(self.jobs)}"

    def enqueue_many(self, definitions: Iterable[JobDefinition], /) -> list[str]:
        return [self.enqueue(definition) for definition in definitions]


@pytest.fixture
def default() -> Iterator[Recorder]:
    recorder = Recorder()
    producer.set_default(recorder)
    yield recorder
    producer.set_default(None)


def test_a_bare_builder_makes_a_definition_with_the_defaults() -> None:
    assert JobBuilder("report", {"x": 1}).to_definition() == JobDefinition("report", {"x": 1})
    assert JobBuilder("report").to_definition() == JobDefinition("report", {})


def test_each_step_sets_its_field() -> None:
    rows: list[tuple[str, Callable[[JobBuilder], JobBuilder], dict[str, Any]]] = [
        ("named", lambda b: b.named("daily"), {"name": "daily"}),
        ("queue", lambda b: b.queue("reports"), {"queue": "reports"}),
        ("priority", lambda b: b.priority(1), {"priority": 1}),
        ("max_retries", lambda b: b.max_retries(5), {"max_retries": 5}),
        ("max_attempts", lambda b: b.max_attempts(5), {"max_retries": 4}),
        ("one attempt", lambda b: b.max_attempts(1), {"max_retries": 0}),
        ("timeout", lambda b: b.timeout(60), {"timeout": 60.0}),
        ("scheduled_at", lambda b: b.scheduled_at(NOON), {"scheduled_at": NOON}),
        ("single_instance", lambda b: b.single_instance(), {"single_instance": True}),
        ("environments", lambda b: b.environments("a", ["b", ("c",)]), {"environments": ("a", "b", "c")}),  # type: ignore[list-item]
        ("depends_on", lambda b: b.depends_on("a").depends_on(["b", "c"]), {"depends_on": ("b", "c")}),
        ("depends_on nothing", lambda b: b.depends_on("a").depends_on(), {}),
        ("idempotency_key", lambda b: b.idempotency_key(" k "), {"idempotency_key": "k"}),
        ("enabled", lambda b: b.enabled(False), {"enabled": False}),
        ("disable", lambda b: b.disable(), {"enabled": False}),
        ("enabled again", lambda b: b.disable().enabled(), {}),
        ("unique", lambda b: b.unique(), {"unique": True}),
        ("identifier", lambda b: b.identifier("order-7"), {"identifier": "order-7"}),
        ("expires_in", lambda b: b.expires_in(60), {"expires_in": 60.0}),
        ("concurrency_key", lambda b: b.concurrency_key("printer"), {"concurrency_key": "printer"}),
        ("meta", lambda b: b.meta({"a": 1}, b=2).meta(b=3), {"meta": {"a": 1, "b": 3}}),
        ("cron", lambda b: b.cron("0  3 * * 1"), {"cron_expression": "0 3 * * 1"}),
        ("cron alias", lambda b: b.cron("@daily").hourly_at(5), {"cron_expression": "5 0 * * *"}),
        ("zone", lambda b: b.zone("Europe/Berlin"), {"zone": "Europe/Berlin"}),
        ("misfire", lambda b: b.misfire(" all(3) "), {"misfire": "all(3)"}),
        ("the last one counts", lambda b: b.queue("a").queue("b"), {"queue": "b"}),
    ]
    for case, step, expected in rows:
        builder = JobBuilder("report", {"x": 1})
        assert step(builder) is builder, case
        assert builder.to_definition() == JobDefinition("report", {"x": 1}, **expected), case


class TestCron:
    def test_helpers_overwrite_only_the_fields_they_name(self) -> None:
        rows: list[tuple[str, Callable[[JobBuilder], JobBuilder], str]] = [
            ("default", lambda b: b, "* * * * *"),
            ("every_minute", lambda b: b.every_minute(), "* * * * *"),
            ("every_minute 5", lambda b: b.every_minute(5), "*/5 * * * *"),
            ("hourly", lambda b: b.hourly(), "0 * * * *"),
            ("hourly_at", lambda b: b.hourly_at(17), "17 * * * *"),
            ("every_hour 1", lambda b: b.every_hour(1), "0 * * * *"),
            ("every_hour 3", lambda b: b.every_hour(3, minute=15), "15 */3 * * *"),
            ("daily", lambda b: b.daily(), "0 0 * * *"),
            ("daily_at", lambda b: b.daily_at("08:05"), "5 8 * * *"),
            ("daily_at with one digit", lambda b: b.daily_at("8:05"), "5 8 * * *"),
            ("daily_at the end", lambda b: b.daily_at("23:59"), "59 23 * * *"),
            ("weekly", lambda b: b.weekly(), "0 0 * * 0"),
            ("monthly", lambda b: b.monthly(), "0 0 1 * *"),
            ("quarterly", lambda b: b.quarterly(), "0 0 1 1,4,7,10 *"),
            ("yearly", lambda b: b.yearly(), "0 0 1 1 *"),
            ("weekdays", lambda b: b.weekdays(), "* * * * 1-5"),
            ("weekends", lambda b: b.weekends(), "* * * * 0,6"),
            ("on_days", lambda b: b.on_days("Mon", "friday", 0), "* * * * 0,1,5"),
            ("on_days with 7 for Sunday", lambda b: b.on_days([7, 0], 6), "* * * * 0,6"),
            ("in_months", lambda b: b.in_months("jan", ["July", 12]), "* * * 1,7,12 *"),
            ("helpers keep other fields", lambda b: b.daily_at("08:30").weekdays(), "30 8 * * 1-5"),
            ("in any order", lambda b: b.weekdays().daily_at("08:30"), "30 8 * * 1-5"),
            ("monthly at six", lambda b: b.monthly().daily_at("06:00"), "0 6 1 * *"),
            ("on top of cron", lambda b: b.cron("1 2 3 4 5").hourly_at(9), "9 2 3 4 5"),
            ("every_minute names the minute", lambda b: b.daily().every_minute(10), "*/10 0 * * *"),
        ]
        for case, step, expression in rows:
            assert step(JobBuilder("report")).to_definition().cron_expression == expression, case

    def test_out_of_range_is_refused(self) -> None:
        rows: list[tuple[str, Callable[[JobBuilder], JobBuilder], str]] = [
            ("cron", lambda b: b.cron("* * *"), "must have five fields"),
            ("every_minute", lambda b: b.every_minute(0), "minutes must be a whole number from 1 to 59"),
            ("every_minute 60", lambda b: b.every_minute(60), "minutes must be .* not 60"),
            ("every_hour", lambda b: b.every_hour(24), "hours must be a whole number from 1 to 23"),
            ("every_hour minute", lambda b: b.every_hour(2, minute=60), "minute must be .* 0 to 59"),
            ("hourly_at", lambda b: b.hourly_at(-1), "minute must be"),
            ("24:00", lambda b: b.daily_at("24:00"), "the time of day '24:00' is refused: write HH:MM"),
            ("no minutes", lambda b: b.daily_at("8"), "write HH:MM"),
            ("one digit of minutes", lambda b: b.daily_at("08:5"), "write HH:MM"),
            ("negative", lambda b: b.daily_at("-1:00"), "write HH:MM"),
            ("odd digits", lambda b: b.daily_at("²:00"), "write HH:MM"),
            ("number", lambda b: b.daily_at(8), "write HH:MM"),  # type: ignore[arg-type]
            ("day", lambda b: b.on_days("mo"), "day 'mo' is refused: one of sun, mon"),
            ("day number", lambda b: b.on_days(8), "day must be a whole number from 0 to 7"),
            ("no day", lambda b: b.on_days(), "on_days needs at least one value"),
            ("month number", lambda b: b.in_months(0), "month must be a whole number from 1 to 12"),
            ("no month", lambda b: b.in_months([]), "in_months needs at least one value"),
        ]
        for case, step, text in rows:
            with row(case), pytest.raises(InvalidJob, match=text):
                step(JobBuilder("report"))


class TestDelay:
    def test_it_counts_from_each_dispatch_and_is_exact_to_the_microsecond(self) -> None:
        for wait, seconds in ((90, 90.0), (90.0, 90.0), (timedelta(seconds=90), 90.0), (0.000001, 0.000001)):
            clock = ManualClock(wall=NOON.timestamp())
            builder = JobBuilder("report", clock=clock).delay(wait)
            assert builder.to_definition().scheduled_at == NOON + timedelta(seconds=seconds), wait
            clock.advance(10)
            assert builder.to_definition().scheduled_at == NOON + timedelta(seconds=seconds + 10), wait

    def test_delay_and_scheduled_at_replace_each_other(self) -> None:
        clock = ManualClock(wall=NOON.timestamp())
        later = JobBuilder("report", clock=clock).scheduled_at(NOON).delay(5).to_definition()
        fixed = JobBuilder("report", clock=clock).delay(5).scheduled_at(NOON).to_definition()
        assert (later.scheduled_at, fixed.scheduled_at) == (NOON + timedelta(seconds=5), NOON)

    def test_out_of_range_is_refused(self) -> None:
        for wait in (-1, float("nan"), float("inf"), timedelta(seconds=-1), "5"):
            with row(wait), pytest.raises(InvalidJob, match="delay must be 0 to"):
                JobBuilder("report").delay(wait)  # type: ignore[arg-type]

    def test_all_steps_of_seconds_take_a_timedelta(self) -> None:
        minute = timedelta(minutes=1)
        made = JobBuilder("report").timeout(minute).expires_in(minute).result_ttl(minute).to_definition()
        found = made.timeout, made.expires_in, made.result_ttl
        assert [(value, type(value)) for value in found] == [(60.0, float)] * 3
        with pytest.raises(InvalidJob, match="timeout must be 0 to 3162240000 seconds, or a timedelta, not"):
            JobBuilder("report").timeout(-minute).to_definition()

    def test_what_would_expire_before_its_delay_is_over_is_refused(self) -> None:
        def delayed(seconds: float) -> JobBuilder:
            return JobBuilder("report", clock=ManualClock(wall=NOON.timestamp())).expires_in(60).delay(seconds)

        with pytest.raises(InvalidJob) as raised:
            delayed(60).to_definition()
        assert str(raised.value) == (
            "job 'report' would never run: it starts after 60 s at the earliest (delay, scheduled_at), and"
            " expires after 60 s (expires_in), both from its enqueue"
        )
        assert delayed(59.9).to_definition().expires_in == 60.0

    def test_a_job_that_is_enqueued_later_or_by_another_clock_may_start_after_its_expiry_from_now(self) -> None:
        def timed(step: str, value: object) -> JobBuilder:
            builder = JobBuilder("report", clock=ManualClock(wall=NOON.timestamp())).expires_in(60)
            made: JobBuilder = getattr(builder, step)(value)
            return made

        later = NOON + timedelta(hours=1)
        assert timed("scheduled_at", later).to_definition().scheduled_at == later  # the broker's clock may say so
        for step, value in (("delay", 3600), ("scheduled_at", later)):
            with row(step):
                [link] = JobBuilder("a").then(timed(step, value)).to_definition().then
                assert link.scheduled_at == later


class TestChecks:
    def test_the_payload_is_checked_and_copied_at_once(self) -> None:
        payload = {"x": [1]}
        builder = JobBuilder("report", payload)
        payload["x"].append(2)
        assert builder.to_definition().payload == {"x": [1]}
        with pytest.raises(InvalidJob, match=r"payload\.x: JSON has no set"):
            JobBuilder("report", {"x": {1}})

    def test_max_attempts_is_at_least_one(self) -> None:
        for attempts in (0, -1, 1.0, True):
            with row(attempts), pytest.raises(InvalidJob, match="max_attempts must be a whole number from 1"):
                JobBuilder("report").max_attempts(attempts)  # type: ignore[arg-type]


class TestDispatch:
    def test_to_the_backend_given_or_its_own_producer_or_the_default_of_the_process(self, default: Recorder) -> None:
        own, other = Recorder(), Recorder()
        builder = JobBuilder("report", producer=own).queue("reports")
        assert builder.dispatch(other) == "id-1"
        assert other.jobs == [JobDefinition("report", queue="reports")]
        assert own.jobs == default.jobs == []
        builder.dispatch()
        assert (len(own.jobs), len(other.jobs), default.jobs) == (1, 1, [])
        plain = JobBuilder("report")
        assert [plain.dispatch(), plain.dispatch()] == ["id-1", "id-2"]
        assert len(default.jobs) == 2

    def test_the_steps_of_a_schedule_are_not_dropped_in_silence(self, default: Recorder) -> None:
        steps: list[tuple[Callable[[JobBuilder], JobBuilder], str]] = [
            (lambda b: b.daily_at("02:30"), "cron times"),
            (lambda b: b.depends_on("first"), "depends_on"),
            (lambda b: b.zone("Europe/Zurich").disable(), "enabled and zone"),
            (lambda b: b.environments("production"), "environments"),
            (lambda b: b.misfire("skip"), "misfire"),
        ]
        for step, named in steps:
            builder = step(JobBuilder("report"))
            for send in (builder.dispatch, lambda builder=builder: definition_of(builder)):
                with pytest.raises(InvalidJob, match=f"job 'report' has {named}, which only a schedule may have"):
                    send()
            assert builder.to_definition().handler == "report", named
        assert default.jobs == []


def test_the_id_of_a_job_is_not_taken_for_the_name_of_a_handler() -> None:
    handle = JobBuilder("report").dispatch(Recorder())
    for take in (JobBuilder, named_job):
        with pytest.raises(InvalidJob, match="'id-1' is the id of a job that is enqueued already"):
            take(handle)
    with pytest.raises(InvalidJob, match="a handler is named by a str, not by JobBuilder"):
        JobBuilder(JobBuilder("report"))  # type: ignore[arg-type]


def test_a_builder_that_is_enqueued_names_its_own_word() -> None:
    for word, instead in [("enqueue", "dispatch"), ("aenqueue", "adispatch")]:
        with pytest.raises(AttributeError, match=rf"has no attribute '{word}'; use \.{instead}\(\)"):
            getattr(JobBuilder("report"), word)
    with pytest.raises(AttributeError, match=r"has no attribute 'name'; did you mean 'named'\?$"):
        JobBuilder("report").name  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(JobBuilder("report"), "send")


def test_a_builder_shows_that_it_is_not_sent() -> None:
    assert repr(JobBuilder("report")) == "<JobBuilder of 'report': dispatch() enqueues it>"
