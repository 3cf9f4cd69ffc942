"""A broker that is silent or refuses: nothing is lost, nothing is fired twice, and order is kept."""

from __future__ import annotations

import pytest
from msgspec import json
from support.cronrig import CronRig, minute, text, told

from jobpool.broker.key_store import read_record
from jobpool.cron.records import SPACE, Fired, Owner, Record
from jobpool.errors import AccessRefused, BackendUnavailable
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition


@pytest.fixture(
    params=[BackendUnavailable("nobody there"), AccessRefused("no right to write")], ids=["silent", "refuses"]
)
def rig(rig: CronRig, request: pytest.FixtureRequest) -> CronRig:
    """Its broker is silent, or refuses."""
    rig.backend.error = request.param
    return rig


def test_what_could_not_be_enqueued_is_tried_again(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(1)
    rig.backend.silent = True
    assert told(runner.run()) == [("a", 1, "later")]
    assert runner.next_due() == minute(1)
    rig.backend.silent = False
    assert told(runner.run()) == [("a", 1, "fired")]


@pytest.mark.parametrize(("policy", "fired"), [("skip", [30]), ("one", [30]), ("all(2)", [29, 30])])
def test_after_a_long_outage_the_misfire_policy_decides(rig: CronRig, policy: str, fired: list[int]) -> None:
    rig.scheduler.define("a").queue("reports").every_minute().misfire(policy)
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(30)
    rig.backend.silent = True
    with pytest.raises(type(rig.backend.error)):
        runner.run()  # it has been away, and must hear first what others have done
    rig.backend.silent = False
    assert [number for _, number, status in told(runner.run()) if status == "fired"] == fired


def test_a_silent_queue_is_asked_once_a_turn_and_dependents_keep_their_order(rig: CronRig) -> None:
    for name in ("first", "second", "third"):
        rig.scheduler.define("a").named(name).queue("reports")
    rig.scheduler.define("b").queue("other").depends_on("third")
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(1)
    rig.backend.silent = rig.backend.keys_work = True
    rig.backend.calls = 0
    assert [status for _, _, status in told(runner.run())] == ["later"] * 4
    assert rig.backend.calls == (2 if isinstance(rig.backend.error, AccessRefused) else 1), "which one is refused?"
    rig.backend.silent = False
    assert [status for _, _, status in told(runner.run())] == ["fired"] * 4
    assert len(rig.queued()) == 8


def test_an_inline_job_whose_right_was_not_answered_runs_once_it_is(rig: CronRig) -> None:
    rig.scheduler.define("a")
    runner = rig.runner()
    runner.run()
    rig.pass_minutes(1)
    rig.backend.silent = True
    assert told(runner.run()) == [("a", 1, "later")]
    rig.backend.silent = False
    runner.run()
    assert rig.ran == [("a", text(0)), ("a", text(1))]


def test_follow_ups_of_an_inline_job_are_enqueued_once_the_broker_takes_them(rig: CronRig) -> None:
    @rig.registry.handler("starter")
    def starter(ctx: JobContext) -> None:
        rig.ran.append(("starter", ctx.meta["scheduled_for"]))
        ctx.enqueue(JobDefinition("a", queue="reports"))
        rig.backend.silent = rig.backend.keys_work = True

    rig.scheduler.define("starter")
    runner = rig.runner()
    [firing] = runner.run()
    assert (firing.status.value, firing.why) == ("failed", f"its follow-ups are not enqueued: {rig.backend.error}")
    rig.pass_minutes(1)
    assert told(runner.run()) == [("starter", 1, "later")]
    rig.backend.silent = False
    assert told(runner.run()) == [("starter", 1, "failed")], "its own are refused again"
    rig.backend.silent = False
    runner.run()
    assert (len(rig.ran), rig.backend.stats("reports").waiting) == (2, 2)


def test_a_scheduler_that_dies_between_the_enqueue_and_its_record_causes_no_second_firing(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.runner().run()
    before = rig.backend.keys.get_record(SPACE, "a")
    rig.pass_minutes(1)
    rig.runner().run()
    rig.backend.keys.put_records(SPACE, {"a": before}, 3600.0)
    [lease, *_] = rig.backend.fetch_many("reports", limit=2)
    rig.backend.ack(lease)
    rig.clock.advance(30.0)
    assert told(rig.runner().run()) == [("a", 1, "already")]
    assert len(rig.queued()) == 1


# --- records --------------------------------------------------------------------------------------------------------


def test_a_record_says_who_fired_what_when(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").every_minute(5)
    rig.clock.advance(2.0)
    [firing] = rig.runner("shop").run()
    data = rig.backend.keys.get_record(SPACE, "a")
    record = read_record(data, Record)
    assert record is not None
    assert (record.last, record.next, record.id) == (minute(0), minute(5), firing.id)
    assert record.lateness == firing.lateness == 2.0
    assert isinstance(record.owner, Owner)
    assert record.owner.name == "shop"
    assert json.encode(record) == data


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"seen": 7}', b"\xff"])
def test_a_record_that_cannot_be_read_is_none(rig: CronRig, data: bytes) -> None:
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.backend.keys.put_records(SPACE, {"a": data}, 3600.0)
    assert read_record(data, Record) is None
    assert read_record(b'{"x":' + b"[" * 100_000, Fired) is None
    assert told(rig.runner().run()) == [("a", 0, "fired")]


def test_an_older_record_does_not_overwrite_a_newer_one(rig: CronRig) -> None:
    """The slow one has enqueued the second minute, and tells of it after another one has told of the third."""
    rig.scheduler.define("a").queue("reports").every_minute()
    slow, quick = rig.runner("slow"), rig.runner("quick")
    slow.run()
    quick.run()
    rig.pass_minutes(1)
    late = minute(1)
    rig.pass_minutes(1)
    quick.run()
    slow.run(late)
    record = read_record(rig.backend.keys.get_record(SPACE, "a"), Record)
    assert record is not None
    assert record.seen == minute(2)


def test_what_was_never_met_and_could_not_be_fired_in_its_first_minute_is_not_lost(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").hourly()
    rig.scheduler.define("b").queue("reports").hourly().environments("elsewhere")
    runner = rig.runner()
    rig.backend.silent = rig.backend.keys_work = True
    assert told(runner.run()) == [("a", 0, "later")]
    rig.backend.silent = False
    rig.pass_minutes(10)
    assert told(runner.run()) == [("a", 0, "fired")]
    assert [name for name, _ in rig.backend.keys.list_records(SPACE)] == ["a"]


def test_a_new_schedule_is_made_up_for_from_its_first_sight_on(rig: CronRig) -> None:
    rig.scheduler.define("a").queue("reports").cron("10 8 * * *")
    assert rig.runner().run() == []
    rig.pass_minutes(20)
    assert told(rig.runner().run()) == [("a", 10, "fired")]


def test_a_record_has_the_fields_that_schedulers_of_older_versions_read(rig: CronRig) -> None:
    """They refuse any other, would take the schedule for a new one, and make up for nothing that was missed."""
    rig.scheduler.define("a").queue("reports").every_minute()
    rig.runner().run()
    [written] = [json.decode(data) for _, data in rig.backend.keys.list_records(SPACE)]
    assert set(written) == {"seen", "last", "fired_at", "lateness", "owner", "next", "id", "failed"}
