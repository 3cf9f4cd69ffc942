"""Leases that end before their time, because the connection that owned them broke."""

from __future__ import annotations

from functools import partial

from running import Running
from stage import Stage, of
from support.jobs import QUEUE, a_job
from support.modest import Breakable, Faulty
from support.waiting import wait_until

from jobpool.broker.values import Capabilities, Leases
from jobpool.master import actions as act
from jobpool.master import events as ev
from jobpool.master.deadlines import lose_expired, next_due
from jobpool.master.on_messages import REMEMBER_BROKEN_S
from jobpool.master.threads import LostLeaseThread
from jobpool.message.outcome import EndReason
from jobpool.message.settlement import Ack, Settled
from jobpool.policy.inspection import Inspected

BROKE = "leases ended with their connection to the broker"


def notes(stage: Stage, event: str = BROKE) -> list[dict[str, object]]:
    return [note.fields for note in stage.pool.notes if note.event == event]


def test_the_thread_tells_of_each_once() -> None:
    backend = Breakable()
    backend.enqueue_many([a_job(), a_job()])
    leases = backend.fetch_many(QUEUE, limit=2)
    backend.break_all(leases)
    with Running(partial(LostLeaseThread, backend)) as thread:
        wait_until(lambda: backend.looks >= 2)
    assert thread.told() == [ev.LeasesBroke(leases)]


def test_a_fault_of_a_backend_that_is_not_ours_is_not_told_as_ours() -> None:
    with Running(partial(LostLeaseThread, Faulty())) as thread:
        [died] = thread.until(ev.ThreadDied)
    stage = Stage(workers=1).boot()
    stage.tell(died)
    assert notes(stage, "a thread of the master failed: a fault in support, please report it")


def test_every_attempt_on_a_broken_lease_is_killed_at_once_and_one_line_says_it() -> None:
    stage = Stage(workers=3).boot()
    stage.lease("report", "report", "report")
    stage.after(0.02)
    first, second, third = stage.busy
    broken = [slot.deliveries[0].lease for slot in (first, second)]
    begun = stage.now
    actions = stage.tell(ev.LeasesBroke(broken))
    while not of(actions, act.KillChild):
        assert next_due(stage.pool, stage.now) == stage.now, "the loop looks again without sleeping"
        actions = stage.after(0.01)
    assert stage.now - begun < 0.1
    assert {kill.slot.index for kill in of(actions, act.KillChild)} == {first.index, second.index}
    assert [slot.ending for slot in (first, second)] == [EndReason.LOST, EndReason.LOST]
    assert stage.busy == [third]
    assert stage.pool.counters.lost == 2
    assert notes(stage) == [{"count": 2, "queues": "reports"}]
    assert notes(stage, "a lease was lost") == []
    assert stage.settled == []


def test_what_no_child_has_begun_is_dropped(stage: Stage) -> None:
    stage.lease("report", "report")
    [ready] = stage.pool.ready or [stage.busy[0].deliveries[1]]
    stage.tell(ev.LeasesBroke([ready.lease]))
    stage.after(0.02)
    assert not stage.pool.ready
    assert ready.lost
    assert [slot.deliveries[0].lost for slot in stage.busy] == [False]


def test_a_lease_whose_settlement_is_under_way_is_left_to_its_answer(stage: Stage) -> None:
    stage.lease("report")
    [delivery] = stage.busy[0].deliveries
    delivery.settling = True
    stage.tell(ev.LeasesBroke([delivery.lease]), ev.Renewed([(delivery, None)]))
    assert delivery.nonce in stage.pool.held
    assert stage.pool.counters.lost == 0
    stage.tell(ev.Answered([(delivery, Ack(), Settled.NOT_IN_FLIGHT)]))
    assert not stage.pool.held
    [told] = notes(stage, "a settlement was refused")
    assert "others settled or deleted it, or the broker was flushed" in str(told["why"])


def test_a_lost_lease_says_why() -> None:
    stage = Stage(workers=2).boot()
    stage.lease("report", "report")
    first, second = [slot.deliveries[0] for slot in stage.busy]
    stage.tell(ev.Renewed([(first, None)]))
    lose_expired(stage.pool, second.lease.expires_at)
    gone, late = [str(fields["why"]) for fields in notes(stage, "a lease was lost")]
    assert "or the broker was flushed" in gone
    assert late == "it was not renewed in time"


def test_a_lease_that_broke_before_its_fetch_was_taken_in_is_not_begun(stage: Stage) -> None:
    lease, good = stage.a_lease("report"), stage.a_lease("report")
    stage.tell(ev.LeasesBroke([lease]))
    stage.tell(ev.Leased([Inspected(lease, None), Inspected(good, None)]))
    [slot] = stage.busy
    assert [delivery.lease for delivery in slot.deliveries] == [good]
    assert stage.pool.counters.lost == 1
    assert not stage.pool.broken


def test_what_is_nobodys_any_more_is_soon_forgotten(stage: Stage) -> None:
    stage.tell(ev.LeasesBroke([stage.a_lease("report")]))
    stage.now += REMEMBER_BROKEN_S
    stage.lease("report")
    assert not stage.pool.broken
    assert notes(stage) == []


def test_leases_much_shorter_than_asked_for_are_told_of_once() -> None:
    stage = Stage(workers=1, ttl=30.0).boot()
    for lasts in (0.0, 29.0, 16.0, 3.0, 2.0):
        stage.tell(ev.Leased([Inspected(stage.a_lease("report", ttl=lasts or 30.0), None)], lasts=lasts))
    told = notes(stage, "leases are much shorter than `ttl` asks for; each is renewed by its own length")
    assert [(fields["ttl"], fields["lasts"]) for fields in told] == [(30.0, 3.0)]


def test_a_broker_that_compares_the_lengths_itself_is_not_told_of_twice() -> None:
    stage = Stage(workers=1, ttl=30.0).boot()
    stage.pool.can = Capabilities(leases=Leases.BROKER)
    stage.tell(ev.Leased([Inspected(stage.a_lease("report", ttl=3.0), None)], lasts=3.0))
    assert notes(stage) == []
