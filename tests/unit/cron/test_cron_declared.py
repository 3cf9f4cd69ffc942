"""What is declared: the order of jobs that depend on one another, and what is refused, with both places."""

from __future__ import annotations

import gc
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.cron import scheduler as schedulers
from jobpool.cron.runner import CronRunner
from jobpool.cron.scheduler import Scheduler, execution_order, job_name, known_schedulers, plan
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.handlers.registry import HandlerRegistry
from jobpool.message.builder import JobBuilder
from jobpool.message.definition import JobDefinition
from jobpool_backends.memory import MemoryBackend

HERE = __file__
MEND = "give it a queue"


def test_definitions_come_in_the_order_of_declaration_and_may_be_described_later() -> None:
    scheduler = Scheduler()
    first = scheduler.define("report", {"kind": "sales"})
    scheduler.define("clean_up").hourly()
    first.named("nightly").queue("reports").daily_at("02:30").zone("Europe/Zurich").misfire("skip")
    assert scheduler.get_definitions() == [
        JobDefinition(
            "report",
            {"kind": "sales"},
            name="nightly",
            queue="reports",
            cron_expression="30 2 * * *",
            zone="Europe/Zurich",
            misfire="skip",
        ),
        JobDefinition("clean_up", cron_expression="0 * * * *"),
    ]
    assert repr(scheduler) == "<Scheduler of 2 jobs>"


def test_a_handlers_own_job_may_be_declared_and_keeps_its_queue() -> None:
    scheduler = Scheduler()

    @HandlerRegistry().handler("sweep", queue="cleaning")
    def handler(path: str) -> None: ...

    scheduler.define(handler.define(path="/tmp")).hourly()
    assert scheduler.get_definitions() == [
        JobDefinition("sweep", {"path": "/tmp"}, queue="cleaning", cron_expression="0 * * * *")
    ]
    with pytest.raises(InvalidJob, match="named by a str, not by Handler: give its name, or its"):
        scheduler.define(handler)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="give a payload with a handler's name only"):
        scheduler.define(handler.define(path="/tmp"), {"path": "/"})


def test_the_order_of_execution_is_that_of_dependencies() -> None:
    scheduler = Scheduler()
    scheduler.define("a").depends_on("c")
    scheduler.define("b")
    scheduler.define("c")
    assert [one.handler for one in scheduler.get_execution_order()] == ["b", "c", "a"]


def test_several_schedulers_are_one_plan() -> None:
    one, two = Scheduler(), Scheduler()
    one.define("a").depends_on("b")
    two.define("b")
    assert [planned.name for planned in plan([one, two])] == ["b", "a"]
    with pytest.raises(ConfigurationError, match="Dependency 'b' for job 'a' does not exist"):
        plan([one])


def test_all_are_known_in_their_order_even_if_nobody_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "_all", [])
    Scheduler().define("first").hourly()
    Scheduler().define("second").hourly()
    gc.collect()
    assert [planned.name for planned in plan(known_schedulers())] == ["first", "second"]


def _two_of_one_name(scheduler: Scheduler) -> None:
    scheduler.define("report").daily()
    scheduler.define("other").named("report").hourly()


def _circle(scheduler: Scheduler) -> None:
    scheduler.define("a").depends_on("b")
    scheduler.define("b").depends_on("a")


def _missing(scheduler: Scheduler) -> None:
    scheduler.define("a").depends_on("a1")
    scheduler.define("a11")


def _moment(scheduler: Scheduler) -> None:
    scheduler.define("a").queue("reports").scheduled_at(datetime(2027, 1, 1, tzinfo=UTC))


def test_a_mistake_is_refused_when_the_schedules_are_read() -> None:
    for declare, lines, texts in [
        (_two_of_one_name, [1, 2], ["'report'"]),
        (_circle, [1, 2], ["Circular dependency detected in jobs.", "a", "b"]),
        (_missing, [1], ["Dependency 'a1' for job 'a' does not exist.", "did you mean 'a11'?"]),
        (_moment, [1], ["scheduled_at", "leave it out", "delay(seconds)"]),
        (lambda s: s.define("a").identifier("mine"), [0], ["identifier", "leave it out"]),
        (lambda s: s.define("a").then(JobBuilder("b").identifier("mine")), [0], ["identifier", "leave it out"]),
        (lambda s: s.define("a").queue("q").delay(60).then(JobBuilder("b").delay(60)), [0], ["a delay in then(…)"]),
        (lambda s: s.define("a").priority(999), [0], ["priority"]),
        (lambda s: s.define("a").cron("0 0 30 * *").in_months("feb"), [0], ["0 0 30 2 *"]),
        (lambda s: s.define("a").max_retries(3), [0], ["no max_retries", MEND]),
        (lambda s: s.define("a").single_instance().concurrency_key("x"), [0], ["no single_instance and no con", MEND]),
        (lambda s: s.define("a").idempotency_key("x").unique(), [0], ["no idempotency_key and no unique", MEND]),
        (lambda s: s.define("a").expires_in(60), [0], ["no expires_in", MEND]),
        (lambda s: s.define("a").priority(1).result_ttl(60), [0], ["no result_ttl and no priority", MEND]),
        (lambda s: s.define("a").delay(60), [0], ["no delay", MEND]),
    ]:
        scheduler = Scheduler()
        declare(scheduler)
        with row(texts), pytest.raises(ConfigurationError) as refused:
            CronRunner(scheduler, MemoryBackend())
        places = [f"{HERE}:{declare.__code__.co_firstlineno + line}" for line in lines]
        assert [text for text in texts + places if text not in str(refused.value)] == [], texts


def test_a_mistake_of_one_word_is_refused_where_it_is_written() -> None:
    job = Scheduler().define("a")
    for describe, word, text in [
        (job.daily_at, "25:00", "HH:MM"),
        (job.cron, "60 * * * *", "'60' is none of that"),
        (job.cron, "0 0 30 2 *", "never comes"),
        (job.zone, "Europe/Berln", "did you mean 'Europe/Berlin'"),
        (job.misfire, "onc", "'skip', 'one' or"),
    ]:
        with row(word), pytest.raises(InvalidJob, match=text):
            describe(word)


def test_one_attempt_is_what_runs_inline_has_and_it_may_be_asked_for() -> None:
    scheduler = Scheduler()
    scheduler.define("a").max_retries(0)
    assert CronRunner(scheduler, MemoryBackend()).planned[0].is_inline


def jobs(text: str) -> list[JobDefinition]:
    """`c:ab` is a job `c` that depends on `a` and `b`; in the order of declaration."""
    return [
        JobDefinition("run", name=name, depends_on=tuple(before))
        for name, _, before in (word.partition(":") for word in text.split())
    ]


def order(text: str) -> str:
    return "".join(job_name(job) for job in ordered(jobs(text)))


def ordered(jobs: list[JobDefinition]) -> list[JobDefinition]:
    return [jobs[number] for number in execution_order(jobs, [f"{job_name(job)}.py" for job in jobs])]


def test_each_comes_after_what_it_depends_on() -> None:
    for case, declared, expected in [
        ("none", "", ""),
        ("all free", "a b c", "abc"),
        ("backwards", "c:b b:a a", "abc"),
        ("b does not wait", "a:c b c", "bca"),
        ("as declared where free", "z y:x x w:z", "zxyw"),
        ("a diamond: who becomes free goes first if declared first", "d:bc b:a c:a a e", "abcde"),
        ("twice the same", "b:aa a", "ab"),
    ]:
        assert order(declared) == expected, case


def test_a_job_without_a_name_is_called_like_its_handler() -> None:
    after = JobDefinition("report", depends_on=("import",))
    before = JobDefinition("import")

    assert ordered([after, before]) == [before, after]


def test_a_dependency_that_is_missing() -> None:
    with pytest.raises(ConfigurationError) as refused:
        order("a b:ax")
    assert str(refused.value) == "Dependency 'x' for job 'b' does not exist."
    assert refused.value.__notes__ == ["'b', which depends on it, is declared in b.py"]


def test_a_circle_is_named_in_the_notes() -> None:
    for case, declared, circle in [
        ("itself", "a:a", "'a' (a.py) → 'a'"),
        ("two", "a:b b:a", "'a' (a.py) → 'b' (b.py) → 'a'"),
        ("three, with others before them", "x a:x d:c b:ad c:b", "'d' (d.py) → 'c' (c.py) → 'b' (b.py) → 'd'"),
        ("who waits for a circle is not in it", "w:a a:b b:a", "'a' (a.py) → 'b' (b.py) → 'a'"),
    ]:
        with row(case), pytest.raises(ConfigurationError) as refused:
            order(declared)
        assert str(refused.value) == "Circular dependency detected in jobs.", case
        assert refused.value.__notes__ == [f"Each waits for the next: {circle}"], case


def test_two_of_one_name_are_both_described() -> None:
    twice = [JobDefinition("report", cron_expression="@daily"), JobDefinition("other", name="report")]

    with pytest.raises(ConfigurationError) as refused:
        execution_order(twice, ["shop.py:10", "mails.py:7"])
    assert str(refused.value) == (
        "two scheduled jobs are named 'report': handler 'report', '0 0 * * *' in shop.py:10 and handler 'other',"
        " '* * * * *' in mails.py:7; give one of them another name with .named(…)"
    )


@given(st.lists(st.sets(st.integers(0, 11)), min_size=12, max_size=12), st.permutations(range(12)))
def test_any_order_of_jobs_without_a_circle(waits: list[set[int]], shuffled: list[int]) -> None:
    """Each may wait for lower numbers only, so there is no circle, however they are declared."""
    declared = [
        JobDefinition("run", name=str(number), depends_on=tuple(str(low) for low in waits[number] if low < number))
        for number in shuffled
    ]

    found = ordered(declared)

    assert sorted(map(job_name, found)) == sorted(map(job_name, declared))
    placed: list[JobDefinition] = []
    for job in found:
        free = [each for each in declared if each not in placed and _is_free(each, placed)]
        assert job == free[0]
        placed.append(job)


def _is_free(job: JobDefinition, placed: list[JobDefinition]) -> bool:
    return set(job.depends_on) <= {job_name(each) for each in placed}
