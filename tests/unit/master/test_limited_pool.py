"""What a pool with limits tells its fetch thread: the places it holds, and the starts it did not use."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace
from stage import Stage, of

from jobpool.errors import ConfigurationError
from jobpool.ipc.frames import to_raw
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.deadlines import STALE_AFTER_S
from jobpool.message.definition import JobDefinition, SentJobs
from jobpool.message.guards import Guards, Hold
from jobpool.message.lease import JobLease
from jobpool.message.outcome import AlreadyDone, Contended, Outcome
from jobpool.message.settlement import Abandon, Ack, Release

GUARDS = Guards(holds=(Hold("queue", 4),))
NEXT = JobDefinition("mail", queue="mails")


def guarded(stage: Stage) -> JobLease:
    return stage.a_lease("report").guarded(GUARDS)


def test_places_are_those_of_guarded_deliveries_until_they_are_settled() -> None:
    stage = Stage(workers=2, concurrency_limits={"reports": 4}).boot()
    stage.take_in(guarded(stage), stage.a_lease("report"))
    assert stage.pool.places() == {"reports": 1}
    for slot in stage.busy:
        stage.answer(slot)
    assert stage.pool.places() == {}


def test_a_renewed_lease_keeps_its_place() -> None:
    stage = Stage(workers=1, concurrency_limits={"reports": 4}).boot()
    stage.take_in(guarded(stage))
    [delivery] = stage.pool.held.values()
    stage.tell(ev.Renewed([(delivery, replace(delivery.lease, expires_at=stage.now + 90.0))]))
    assert stage.pool.places() == {"reports": 1}


def test_starts_that_were_not_used_are_given_back_and_told() -> None:
    stage = Stage(workers=1, rate_limits={"reports": 4}).boot()
    stage.take_in(guarded(stage), guarded(stage))
    stage.after(STALE_AFTER_S + 0.01)
    assert stage.verdicts() == [Release(begun=False)]
    assert stage.pool.unused_starts == {"reports"}
    assert stage.pool.places() == {"reports": 1}


def test_without_limits_nothing_is_told(stage: Stage) -> None:
    assert not stage.pool.limited
    stage.take_in(stage.a_lease("report"), stage.a_lease("report"))
    stage.after(STALE_AFTER_S + 0.01)
    assert stage.pool.unused_starts == set()


def test_what_is_refused_is_settled_and_counted_and_no_failure() -> None:
    for case, outcome, settlement, counter in [
        ("done", AlreadyDone(), Ack(), "skipped"),
        ("done, in a chain", AlreadyDone((NEXT,)), Ack(SentJobs(to_raw([NEXT]), ())), "skipped"),
        ("held elsewhere", Contended(3.0), Release(3.0, begun=False), "released"),
        ("the queue's limit", Contended(0.0), Release(0.0, begun=False), "released"),
    ]:
        stage = Stage(workers=1).boot()
        stage.lease("report", outcome=cast(Outcome, outcome))
        assert stage.verdicts() == [settlement], case
        counters = stage.pool.counters
        assert getattr(counters, counter) == 1, case
        assert (counters.fetched, counters.succeeded, counters.failed, counters.dead) == (1, 0, 0, 0), case


def test_a_next_job_that_the_broker_refuses_makes_a_dead_letter_of_the_skipped_one() -> None:
    stage = Stage(workers=1, enqueue_to=["mails"]).boot()
    [settle] = of(stage.lease("report", outcome=AlreadyDone((NEXT.with_queue("other"),))), act.Settle)
    [(delivery, ack)] = settle.work
    assert isinstance(ack, Ack)
    with pytest.raises(ConfigurationError, match="may not enqueue to queue 'other'") as refused:
        list(ack.follow_ups)
    stage.settled.clear()
    stage.tell(ev.FollowUpsRefused(delivery, str(refused.value)))
    assert stage.verdict(Abandon).reason == "unrecoverable"


@pytest.mark.parametrize("level", ["info", "debug"])
def test_with_every_line_asked_for_the_log_says_which_jobs_are_skipped_and_what_others_wait_for(level: str) -> None:
    stage = Stage(workers=1, log_level=level).boot()
    stage.pool.notes.clear()
    stage.lease("report", outcome=AlreadyDone())
    stage.lease("report", outcome=Contended(3.0, "key"))
    skipped = [note.fields["handler"] for note in stage.pool.notes if note.event.startswith("job skipped")]
    waiting = [(note.event, note.fields["taken"]) for note in stage.pool.notes if "taken" in note.fields]
    told = (["report"], [("job waits, as what it needs is taken", "key")])
    assert (skipped, waiting) == (told if level == "debug" else ([], []))
