"""`depends_on`: order, and what is held back when an inline job failed, whichever scheduler ran it."""

from __future__ import annotations

import pytest
from support.cronrig import CronRig, text, told

from jobpool.cron.runner import CronRunner


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
