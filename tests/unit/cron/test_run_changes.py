"""`CronRunner` when what is scheduled changes: between deployments or firings, or by being switched off for a while."""

from __future__ import annotations

from typing import Any

import pytest
from support.cronrig import CronRig, told

from jobpool.cron.scheduler import Scheduler
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.envelope import decode


def deploy(rig: CronRig, name: str = "job") -> JobBuilder:
    """A new app, with one schedule. The schedulers of the old one are gone."""
    scheduler = rig.scheduler = Scheduler()
    return scheduler.define("a").named(name).queue("reports")


def after(rig: CronRig, minutes: float, **options: Any) -> list[int]:
    """Minutes after the rig's beginning that fire when a new scheduler looks so much later."""
    rig.pass_minutes(minutes)
    return [number for _, number, status in told(rig.runner(**options).run()) if status == "fired"]


def test_a_new_expression_counts_from_the_last_instant_of_the_old_one(rig: CronRig) -> None:
    deploy(rig).hourly()
    assert after(rig, 0) == [0]

    deploy(rig).every_minute(20).misfire("all(5)")
    assert after(rig, 50) == [20, 40]

    deploy(rig).hourly_at(30)
    assert after(rig, 0) == [], "08:30 is before what was fired last"
    assert after(rig, 40) == [90]


def test_a_new_zone_fires_no_instant_again(rig: CronRig) -> None:
    deploy(rig).daily_at("08:00")
    assert after(rig, 0) == [0]

    deploy(rig).daily_at("09:00").zone("Europe/Berlin")  # the same instant
    assert after(rig, 0.5) == []

    deploy(rig).daily_at("08:30").zone("Europe/London")
    assert after(rig, 29.5) == [30]


def test_a_new_policy_is_what_counts_for_what_the_old_one_missed(rig: CronRig) -> None:
    deploy(rig).every_minute().misfire("skip")
    after(rig, 0)

    deploy(rig).every_minute().misfire("all(3)")
    assert after(rig, 10) == [8, 9, 10]

    deploy(rig).every_minute(7).misfire("skip")
    assert after(rig, 20) == [], "08:28 was missed"


def test_a_new_name_is_a_new_schedule_and_an_old_one_that_comes_back_has_its_past(rig: CronRig) -> None:
    deploy(rig).every_minute(10)
    after(rig, 0)

    deploy(rig, "another").every_minute(10)
    assert after(rig, 15) == [], "08:10 was before its time"

    deploy(rig).every_minute(10)
    assert after(rig, 3) == [10]


@pytest.mark.parametrize(("misfire", "fires"), [("skip", []), ("one", [20]), ("all(2)", [10, 20])])
def test_what_is_enabled_again_has_missed_its_last_instants(rig: CronRig, misfire: str, fires: list[int]) -> None:
    deploy(rig).every_minute(10).misfire(misfire)
    after(rig, 0)

    deploy(rig).every_minute(10).misfire(misfire).disable()
    assert after(rig, 11) == []

    deploy(rig).every_minute(10).misfire(misfire)
    assert after(rig, 11) == fires


def test_what_moves_to_another_environment_goes_on_there(rig: CronRig) -> None:
    deploy(rig).every_minute(10).environments("staging")
    assert after(rig, 0, environment="staging") == [0]

    deploy(rig).every_minute(10).environments("production")
    assert after(rig, 12, environment="staging") == []
    assert after(rig, 0, environment="production") == [10]


def test_a_schedule_that_is_gone_leaves_the_others_alone(rig: CronRig) -> None:
    for number in range(3):
        deploy(rig, f"of release {number}").every_minute(10)
        after(rig, 0)
    deploy(rig, "of release 1").every_minute(10)
    assert after(rig, 10) == [10]
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
