"""Batches: each end of a member is counted once, in its own step, and the last one brings the callbacks, once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import settle

from jobpool.broker import control, editing
from jobpool.broker.backend import QueueBackend
from jobpool.broker.packing import pack
from jobpool.broker.values import MessageFilter, NewBatch, ReapPolicy, State, Verb
from jobpool.client.jobs import Jobs
from jobpool.errors import InvalidJob
from jobpool.master.observer import Recorded, attempt_of
from jobpool.master.slots import Delivery
from jobpool.message.batches import BATCH_MEMORY_S, MAX_FAILED_IDS, BatchCall, BatchStatus
from jobpool.message.dead_letters import copy_of_abandoned, hook_job_of_abandoned
from jobpool.message.definition import JobDefinition
from jobpool.message.envelope import verify
from jobpool.message.lease import JobLease
from jobpool.message.outcome import Failed
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store", "atomic_across_queues")

BATCH = "batch-1"
DONE, SUCCESS = "done", "success"  # queues of the callbacks


def opened(backend: QueueBackend, ident: str = BATCH, parent: str | None = None) -> str:
    """An open batch whose callbacks go to queues of their own."""
    on_done = JobDefinition("finish", {"of": ident}, queue=DONE, identifier=f"{ident}:done")
    on_success = JobDefinition("celebrate", queue=SUCCESS, identifier=f"{ident}:success")
    backend.call_batch(BatchCall("open", ident, parent, ("on_done", "on_success")), [on_done, on_success])
    return ident


def leased(backend: QueueBackend, count: int, queue: str = QUEUE, batch: str | None = BATCH) -> list[JobLease]:
    """New members, leased; no other message waits in their queue."""
    backend.enqueue_many(numbered(count, queue=queue, batch=batch))
    leases = backend.fetch_many(queue, limit=count, ttl=100.0)
    assert len(leases) == count
    return leases


def counts(backend: QueueBackend, ident: str = BATCH) -> tuple[int, int, int, int]:
    """Total, succeeded, failed, cancelled."""
    found = known(backend, ident)
    return found.total, found.succeeded, found.failed, found.cancelled


def known(backend: QueueBackend, ident: str = BATCH) -> BatchStatus:
    found = backend.batches.get(ident)
    assert found is not None
    return found


def callbacks(backend: QueueBackend) -> list[tuple[str, str]]:
    """The handler and id of each callback that waits, by queue."""
    found = backend.list_messages(MessageFilter(states=(State.WAITING,)), limit=100)
    return sorted((message.handler, message.id) for message in found if message.queue in (DONE, SUCCESS))


def told(backend: QueueBackend, queue: str = DONE) -> dict[str, Any]:
    """The end of the batch as its callback in this queue finds it, verified."""
    [lease] = backend.fetch_many(queue, limit=1)
    verify(lease.envelope, backend.signer, queue)
    backend.release(lease)
    assert lease.envelope.ended is not None
    return lease.envelope.ended


BOTH = [("celebrate", f"{BATCH}:success"), ("finish", f"{BATCH}:done")]
ONLY_DONE = BOTH[1:]

# --- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.spans
def test_the_last_member_of_a_closed_batch_brings_the_callbacks(backend: QueueBackend) -> None:
    opened(backend)
    leases = leased(backend, 2) + leased(backend, 1, "mails")
    assert counts(backend) == (3, 0, 0, 0)
    assert known(backend).open
    backend.batches.close(BATCH)
    for number, lease in enumerate(leases):
        assert callbacks(backend) == []
        assert not known(backend).has_ended
        assert counts(backend) == (3, number, 0, 0)
        assert backend.ack(lease) is Settled.OK
    assert callbacks(backend) == BOTH
    assert told(backend) == told(backend, SUCCESS)
    assert told(backend) == {
        "id": BATCH,
        "total": 3,
        "succeeded": 3,
        "failed": 0,
        "cancelled": 0,
        "failed_ids": [],
    }
    found = known(backend)
    assert found.has_ended
    assert not found.open
    assert found.left == 0


def test_an_open_batch_does_not_end(backend: QueueBackend) -> None:
    opened(backend)
    for lease in leased(backend, 2):
        backend.ack(lease)
    assert callbacks(backend) == []
    [late] = leased(backend, 1)
    backend.batches.close(BATCH)
    assert callbacks(backend) == []
    backend.ack(late)
    assert callbacks(backend) == BOTH
    assert counts(backend) == (3, 3, 0, 0)


def test_one_without_members_ends_when_it_is_closed(backend: QueueBackend) -> None:
    opened(backend)
    backend.batches.close(BATCH)
    assert callbacks(backend) == BOTH
    backend.batches.close(BATCH)
    backend.batches.open(NewBatch(BATCH))
    backend.batches.close("unknown")
    assert callbacks(backend) == BOTH
    assert known(backend).total == 0
    assert known(backend).has_ended


def test_one_that_has_no_callbacks_ends_all_the_same(backend: QueueBackend) -> None:
    backend.batches.open(NewBatch(BATCH))
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    backend.ack(lease)
    assert known(backend).has_ended


ENDS: list[tuple[Settlement, tuple[int, int, int]]] = [
    (Ack(), (1, 0, 0)),
    (Abandon("failed", "boom"), (0, 1, 0)),
    (Abandon("expired"), (0, 1, 0)),
    (Abandon("rejected"), (0, 1, 0)),
    (Abandon("cancelled"), (0, 0, 1)),
]
NO_ENDS: list[Settlement] = [Nack(0.0, "boom"), Nack(50.0), Release(0.0), Release(50.0, begun=False), Forfeit("oom")]


@pytest.mark.parametrize(("settlement", "ends"), ENDS, ids=str)
def test_each_end_is_counted(backend: QueueBackend, settlement: Settlement, ends: tuple[int, int, int]) -> None:
    opened(backend)
    first, second = leased(backend, 2)
    backend.batches.close(BATCH)
    assert settle(backend, first, settlement) is Settled.OK
    assert counts(backend) == (2, *ends)
    assert callbacks(backend) == []
    assert settle(backend, second, Ack()) is Settled.OK
    is_failed = ends[0] == 0
    assert callbacks(backend) == (ONLY_DONE if is_failed else BOTH)
    assert told(backend)["failed_ids"] == [first.id] * ends[1]


@pytest.mark.parametrize("settlement", NO_ENDS, ids=str)
def test_what_comes_back_has_not_ended(harness: Harness, backend: QueueBackend, settlement: Settlement) -> None:
    opened(backend)
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    assert settle(backend, lease, settlement) is Settled.OK
    assert counts(backend) == (1, 0, 0, 0)
    harness.advance(60.0)
    backend.reap(QUEUE)
    [again] = backend.fetch_many(QUEUE, limit=5, ttl=100.0)
    assert backend.ack(again) is Settled.OK
    assert callbacks(backend) == BOTH


@pytest.mark.spans
def test_a_move_is_no_end(backend: QueueBackend) -> None:
    opened(backend)
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    assert settle(backend, lease, Move("slow")) is Settled.OK
    assert counts(backend) == (1, 0, 0, 0)
    assert backend.batches.members(BATCH, 10) == [lease.id]
    [moved] = backend.fetch_many("slow", limit=1)
    assert backend.ack(moved) is Settled.OK
    assert callbacks(backend) == BOTH


@pytest.mark.spans
@pytest.mark.needs("edits")
def test_an_edited_member_is_one_still(backend: QueueBackend) -> None:
    opened(backend)
    ids = backend.enqueue_many(numbered(2, batch=BATCH))
    backend.batches.close(BATCH)
    editing.edit(backend, editing.read_changes(backend, priority=1, at=0), ids[:1])
    editing.edit(backend, editing.read_changes(backend, queue="slow"), ids)
    assert sorted(backend.batches.members(BATCH, 5)) == sorted(ids)
    leases = backend.fetch_many("slow", limit=5, ttl=100.0)
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 2
    assert counts(backend) == (2, 2, 0, 0)
    assert callbacks(backend) == BOTH


def test_the_crash_limit_is_an_end(harness: Harness, backend: QueueBackend) -> None:
    opened(backend)
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    for crash in (1, 2):
        assert counts(backend) == (1, 0, 0, 0)
        harness.expire_leases(100.0)
        [reaped] = backend.reap(QUEUE, ReapPolicy(max_crashes=1))
        if crash == 1:
            assert backend.fetch_many(QUEUE, limit=1, ttl=100.0)
    assert reaped.dead
    assert counts(backend) == (1, 0, 1, 0)
    assert callbacks(backend) == ONLY_DONE
    assert told(backend)["failed_ids"] == [lease.id]


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.DELETE])
@pytest.mark.parametrize("delay", [None, 50.0])
def test_cancelled_and_deleted_members_end(
    harness: Harness, backend: QueueBackend, verb: Verb, delay: float | None
) -> None:
    opened(backend)
    due = None if delay is None else at(harness.now() + delay)
    ids = backend.enqueue_many(numbered(3, batch=BATCH, scheduled_at=due))
    backend.batches.close(BATCH)
    assert backend.bulk(MessageFilter(ids=tuple(ids[:2])), verb) == 2
    assert counts(backend) == (3, 0, 0, 2)
    assert backend.batches.members(BATCH, 10) == ids[2:]
    assert callbacks(backend) == []
    assert backend.bulk(MessageFilter(queue=QUEUE, states=(State.WAITING, State.DELAYED)), verb) == 1
    assert counts(backend) == (3, 0, 0, 3)
    assert callbacks(backend) == ONLY_DONE
    assert told(backend)["failed_ids"] == []


def test_what_is_deleted_under_a_claim_has_ended(backend: QueueBackend) -> None:
    opened(backend)
    ids = backend.enqueue_many(numbered(3, batch=BATCH))
    backend.batches.close(BATCH)
    claim = backend.claims.claim(QUEUE, limit=2, ttl=100.0, grace=100.0)
    assert claim is not None
    assert counts(backend) == (3, 0, 0, 0)
    backend.claims.delete_many(QUEUE, ids[:2], claim.id)
    assert counts(backend) == (3, 0, 0, 2)
    assert [popped.id for popped in backend.claims.pop(QUEUE, 5)] == ids[2:]
    assert callbacks(backend) == ONLY_DONE


def test_the_claim_limit_is_an_end(backend: QueueBackend) -> None:
    opened(backend)
    [ident] = backend.enqueue_many(numbered(1, batch=BATCH))
    backend.batches.close(BATCH)
    claim = backend.claims.claim(QUEUE, limit=2, ttl=100.0, grace=100.0, max_claims=1)
    assert claim is not None
    backend.claims.release(QUEUE, claim.id)
    assert backend.claims.claim(QUEUE, limit=2, ttl=100.0, grace=100.0, max_claims=1) is None
    assert counts(backend) == (1, 0, 1, 0)
    assert callbacks(backend) == ONLY_DONE
    assert told(backend)["failed_ids"] == [ident]


def test_a_callback_keeps_its_body_and_its_key_and_is_told_of_any_name(backend: QueueBackend) -> None:
    name = 'Größe "7"/\\\u4e2d'
    payload = {"text": 'x\\u0000\\"\n' + name, "empty": {}}
    job = JobDefinition("finish", payload, queue=DONE, idempotency_key="k", unique=True)
    first, second = (pack(backend, job, ident, callback_of=name) for ident in ("first", "second"))
    for batch in (name, "same-key"):
        backend.batches.open(NewBatch(batch, on_done=first, on_success=second))
    backend.enqueue(a_job(batch=name, identifier="shop/17"))
    [member] = backend.fetch_many(QUEUE, limit=5)
    backend.batches.close(name)
    backend.abandon(member, "failed")
    backend.batches.close("same-key")
    [lease] = backend.fetch_many(DONE, limit=5)
    assert (lease.id, lease.envelope.payload) == (first.id, payload)
    counted = {"total": 1, "succeeded": 0, "failed": 1, "cancelled": 0, "failed_ids": ["shop/17"]}
    assert lease.envelope.ended == {"id": name, **counted}


# --- once --------------------------------------------------------------------------------------------------


def test_a_repeated_call_counts_nothing(backend: QueueBackend) -> None:
    opened(backend)
    first, second = leased(backend, 2)
    backend.batches.close(BATCH)
    assert settle(backend, first, Ack(), "call-1") is Settled.OK
    assert settle(backend, first, Ack(), "call-1") is Settled.ALREADY
    assert settle(backend, first, Abandon("failed"), "call-2") is Settled.NOT_IN_FLIGHT
    assert counts(backend) == (2, 1, 0, 0)
    assert settle(backend, second, Ack(), "call-3") is Settled.OK
    assert settle(backend, second, Ack(), "call-3") is Settled.ALREADY
    assert callbacks(backend) == BOTH


def test_a_late_owner_ends_nothing(harness: Harness, backend: QueueBackend) -> None:
    opened(backend)
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    harness.expire_leases(100.0)
    assert backend.ack(lease) is Settled.EXPIRED
    assert backend.reap_expired(QUEUE) == 1
    assert settle(backend, lease, Abandon("failed")) is Settled.NOT_IN_FLIGHT
    assert counts(backend) == (1, 0, 0, 0)


def test_a_dead_member_that_is_raised_again_or_deleted_is_not_counted_again(backend: QueueBackend) -> None:
    opened(backend)
    [lease, other] = leased(backend, 2)
    backend.batches.close(BATCH)
    for member in (lease, other):
        assert backend.abandon(member, "failed") is Settled.OK
    assert callbacks(backend) == ONLY_DONE
    assert backend.bulk(MessageFilter(ids=(lease.id,)), Verb.RETRY) == 1
    assert backend.bulk(MessageFilter(states=(State.DEAD,)), Verb.DELETE) == 1
    [again] = backend.fetch_many(QUEUE, limit=1, ttl=100.0)
    assert backend.batches.members(BATCH, 10) == []
    assert backend.ack(again) is Settled.OK
    assert counts(backend) == (2, 0, 2, 0)
    assert callbacks(backend) == ONLY_DONE


def test_the_same_id_is_one_member(backend: QueueBackend) -> None:
    opened(backend)
    job = a_job(identifier="order-7", batch=BATCH)
    assert backend.enqueue(job) == backend.enqueue(job) == "order-7"
    backend.enqueue_many([job, job])
    assert counts(backend) == (1, 0, 0, 0)
    backend.batches.close(BATCH)
    assert backend.enqueue(job) == "order-7"  # a repeat after a lost answer is not a new member
    [lease] = backend.fetch_many(QUEUE, limit=5, ttl=100.0)
    backend.ack(lease)
    assert backend.enqueue(job) == "order-7"
    assert counts(backend) == (1, 1, 0, 0)


def test_a_unique_job_that_is_there_already_is_no_member_and_may_name_a_closed_batch(backend: QueueBackend) -> None:
    """It is not added, so it does not matter that its batch is closed."""
    opened(backend)
    first, member = (a_job(idempotency_key="k", unique=True, batch=batch) for batch in (None, BATCH))
    known = backend.enqueue(first)
    assert backend.enqueue(member) == known
    assert counts(backend) == (0, 0, 0, 0)
    backend.batches.close(BATCH)
    assert backend.enqueue(member) == known
    assert backend.bulk(MessageFilter(), Verb.DELETE) > 0
    one, other = backend.enqueue_many([first, member])
    assert one == other != known


@pytest.mark.spans
def test_many_in_one_call_and_batches_beside_each_other(backend: QueueBackend) -> None:
    """Batches, no batch, two queues and several verbs in one settle call."""
    opened(backend, "one")
    opened(backend, "two")
    one = leased(backend, 3, batch="one") + leased(backend, 2, "mails", batch="one")
    two = leased(backend, 2, batch="two")
    none = leased(backend, 2, batch=None)
    backend.batches.close("one")
    backend.batches.close("two")
    work: list[tuple[JobLease, Settlement]] = [
        *((lease, Ack()) for lease in one),
        (two[0], Abandon("failed")),
        (none[0], Abandon("failed")),
        (two[1], Ack()),
        (none[1], Ack()),
    ]
    assert backend.settle_many(work) == [Settled.OK] * len(work)
    assert counts(backend, "one") == (5, 5, 0, 0)
    assert counts(backend, "two") == (2, 1, 1, 0)
    assert callbacks(backend) == [("celebrate", "one:success"), ("finish", "one:done"), ("finish", "two:done")]


def test_only_the_first_failed_ids_are_kept(backend: QueueBackend) -> None:
    opened(backend)
    leases = leased(backend, MAX_FAILED_IDS + 5)
    backend.batches.close(BATCH)
    backend.settle_many([(lease, Abandon("failed")) for lease in leases])
    end = told(backend)
    assert end["failed"] == MAX_FAILED_IDS + 5
    assert len(end["failed_ids"]) == MAX_FAILED_IDS
    assert set(end["failed_ids"]) < {lease.id for lease in leases}


# --- joining -------------------------------------------------------------------------------------------------


@pytest.mark.spans
def test_nobody_joins_a_batch_that_is_not_open(backend: QueueBackend) -> None:
    opened(backend)
    backend.batches.close(BATCH)
    for batch in (BATCH, "unknown"):
        with pytest.raises(InvalidJob, match=f"batch {batch} is not open"):
            backend.enqueue_many([a_job(), a_job(queue="mails", batch=batch)])
    assert backend.stats(QUEUE).waiting == backend.stats("mails").waiting == 0
    assert counts(backend) == (0, 0, 0, 0)


@pytest.mark.spans
@pytest.mark.parametrize("settlement", [Ack(), Abandon("failed")], ids=str)
def test_a_member_brings_another_until_it_ends(backend: QueueBackend, settlement: Ack | Abandon) -> None:
    """What a settlement brings joins before it ends the member: a closed batch with one left goes on."""
    opened(backend)
    [lease] = leased(backend, 1)
    backend.batches.close(BATCH)
    follow_ups = (a_job(identifier="f1", batch=BATCH), a_job(identifier="f2", queue="mails", batch=BATCH))
    assert settle(backend, lease, replace(settlement, follow_ups=follow_ups)) is Settled.OK
    assert callbacks(backend) == []
    assert known(backend).total == 3
    assert known(backend).left == 2
    for queue in (QUEUE, "mails"):
        [member] = backend.fetch_many(queue, limit=5, ttl=100.0)
        backend.ack(member)
    assert callbacks(backend) == (BOTH if isinstance(settlement, Ack) else ONLY_DONE)


def test_one_that_comes_too_late_with_a_settlement_is_added_without_a_batch(backend: QueueBackend) -> None:
    opened(backend)
    backend.batches.close(BATCH)
    [lease] = leased(backend, 1, batch=None)
    late = (a_job(batch=BATCH, identifier="late"), a_job(batch="unknown", identifier="lost"))
    assert settle(backend, lease, Ack(follow_ups=late)) is Settled.OK
    leases = backend.fetch_many(QUEUE, limit=5, ttl=100.0)
    assert [each.id for each in leases] == ["late", "lost"]
    assert backend.settle_many([(each, Ack()) for each in leases]) == [Settled.OK] * 2
    assert counts(backend) == (0, 0, 0, 0)


def test_a_producer_that_runs_again_leaves_its_closed_batch_alone(backend: QueueBackend) -> None:
    jobs = Jobs(backend=backend)

    def produce(run: str) -> None:
        with jobs.batch(on_done=JobDefinition("finish", queue=DONE), identifier=BATCH) as batch:
            batch.add(a_job(identifier="known"))
            batch.add_many(numbered(2, name=run))

    produce("first")
    [running] = backend.fetch_many(QUEUE, limit=1, ttl=100.0)
    for _ in range(2):
        with pytest.raises(InvalidJob, match=f"batch {BATCH} is not open: it was closed, and stays"):
            produce("again")
    assert (known(backend).stopped, counts(backend)) == (False, (3, 0, 0, 0))
    assert backend.ack(running) is Settled.OK
    for lease in backend.fetch_many(QUEUE, limit=5, ttl=100.0):
        backend.ack(lease)
    assert counts(backend) == (3, 3, 0, 0)
    assert [handler for handler, _ in callbacks(backend)] == ["finish"]


def test_a_batch_that_is_made_anew_has_a_callback_of_its_own(harness: Harness, backend: QueueBackend) -> None:
    jobs, finish = Jobs(backend=backend), JobDefinition("finish", queue=DONE)
    jobs.batch(on_done=finish, identifier=BATCH).close()
    [first] = backend.fetch_many(DONE, limit=5)
    backend.abandon(first, "failed")
    harness.advance(BATCH_MEMORY_S + 10.0)
    jobs.batch(on_done=finish, identifier=BATCH).close()
    [second] = backend.fetch_many(DONE, limit=5)
    assert second.id != first.id


def test_a_member_with_the_id_of_the_callback_is_refused(backend: QueueBackend) -> None:
    batch = Jobs(backend=backend).batch(on_done=JobDefinition("finish", queue=DONE, identifier="end"))
    member = a_job(identifier="end")
    for job, add in product((member, a_job().with_then([member])), (batch.add, lambda job: batch.add_many([job]))):
        with pytest.raises(InvalidJob, match="'end' is the id of a callback of its batch"):
            add(job)
    batch.close()
    assert callbacks(backend) == [("finish", "end")]


def test_a_call_with_what_no_program_sends_is_refused(backend: QueueBackend) -> None:
    """A handler's process may send anything to its master, which makes these calls."""
    jobs = [JobDefinition("finish", queue=DONE)]
    for call in (
        BatchCall("get", "\0"),
        BatchCall("open", BATCH, parent="\0"),
        BatchCall("open", BATCH, callbacks=("on_done", "on_success")),
        BatchCall("open", BATCH, callbacks=("parent",)),
    ):
        with pytest.raises((InvalidJob, TypeError, ValueError)):
            backend.call_batch(call, jobs)
    assert backend.batches.get(BATCH) is None


# --- nested ------------------------------------------------------------------------------------------------


def test_a_batch_is_a_member_of_another(backend: QueueBackend) -> None:
    opened(backend, "outer")
    opened(backend, "inner", parent="outer")
    opened(backend, "inner", parent="outer")
    [outer] = leased(backend, 1, batch="outer")
    [inner] = leased(backend, 1, batch="inner")
    backend.batches.close("outer")
    backend.ack(outer)
    assert counts(backend, "outer") == (2, 1, 0, 0)
    assert known(backend, "outer").nested == ("inner",)
    assert known(backend, "inner").parent == "outer"
    backend.batches.close("inner")
    backend.ack(inner)
    assert callbacks(backend) == sorted(
        [("finish", f"{name}:done") for name in ("inner", "outer")]
        + [("celebrate", f"{name}:success") for name in ("inner", "outer")]
    )


@pytest.mark.parametrize("way", ["fails", "is stopped"])
def test_one_that_fails_or_is_stopped_does_so_in_its_parent(backend: QueueBackend, way: str) -> None:
    opened(backend, "outer")
    opened(backend, "inner", parent="outer")
    inner = leased(backend, 1, batch="inner") if way == "fails" else []
    backend.batches.close("inner", stop=way == "is stopped")
    backend.batches.close("outer")
    for lease in inner:
        backend.abandon(lease, "failed")
    assert counts(backend, "outer") == ((1, 0, 1, 0) if way == "fails" else (1, 0, 0, 1))
    assert known(backend, "outer").failed_ids == (("inner",) if way == "fails" else ())
    assert callbacks(backend) == [("finish", "inner:done"), ("finish", "outer:done")]


def test_the_cancel_of_a_batch_spares_one_that_has_the_id_of_a_forgotten_member(
    harness: Harness, backend: QueueBackend
) -> None:
    opened(backend, "outer")
    opened(backend, "inner", parent="outer")
    backend.batches.close("inner")
    harness.advance(BATCH_MEMORY_S + 10.0)
    opened(backend, "inner")
    assert control.cancel(backend, ["outer"], wait=0.0) == {"outer": control.Cancel.CANCELLED}
    assert not known(backend, "inner").stopped
    assert known(backend, "inner").open


def test_the_cancel_of_a_batch_waits_for_those_that_run_once_when_nothing_waits_any_more(
    backend: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(backend)
    for part in range(3):
        leased(backend, 1, queue="busy")
        backend.enqueue_many(numbered(700, queue=f"part{part}", batch=BATCH))
    cancel_jobs, waiting = control._cancel_jobs, []

    def look_and_cancel(*call: Any) -> Any:
        waiting.append(backend.count(MessageFilter(states=(State.WAITING,))))
        return cancel_jobs(*call)

    monkeypatch.setattr(control, "_cancel_jobs", look_and_cancel)
    assert control.cancel(backend, [BATCH], wait=0.0) == {BATCH: control.Cancel.ASKED}
    assert waiting == [2100, 0]  # the first call looks for a job with this id
    assert counts(backend) == (2103, 0, 0, 2100)


def test_the_cancel_of_a_batch_says_that_a_claim_holds_a_member(backend: QueueBackend) -> None:
    opened(backend, "outer")
    opened(backend, parent="outer")
    backend.enqueue_many(numbered(2, batch=BATCH))
    claim = backend.claims.claim(QUEUE, limit=1, ttl=60.0, grace=60.0)
    assert claim is not None
    assert control.cancel(backend, ["outer"], wait=0.0) == {"outer": control.Cancel.CLAIMED}
    assert counts(backend) == (2, 0, 0, 1)
    backend.claims.release(QUEUE, claim.id)
    assert control.cancel(backend, ["outer"], wait=0.0) == {"outer": control.Cancel.CANCELLED}
    assert counts(backend) == (2, 0, 0, 2)


def test_the_cancel_of_a_batch_ends_one_that_was_opened_in_it_meanwhile(
    backend: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(backend, "outer")
    close = backend.batches.close

    def close_late(ident: str, stop: bool = False) -> None:
        if ident == "outer":
            opened(backend, "inner", parent="outer")
        close(ident, stop)

    monkeypatch.setattr(backend.batches, "close", close_late)
    assert control.cancel(backend, ["outer"], wait=0.0) == {"outer": control.Cancel.CANCELLED}
    assert known(backend, "inner").stopped
    assert known(backend, "outer").has_ended


@pytest.mark.parametrize("members", [0, 2])
def test_one_that_is_stopped_has_no_success(backend: QueueBackend, members: int) -> None:
    opened(backend)
    for lease in leased(backend, members) if members else []:
        backend.ack(lease)
    backend.batches.close(BATCH, stop=True)
    assert counts(backend) == (members, members, 0, 0)
    assert known(backend).stopped
    assert callbacks(backend) == ONLY_DONE


def test_one_that_is_closed_can_be_stopped_until_it_ends(backend: QueueBackend) -> None:
    opened(backend)
    [first, second] = leased(backend, 2)
    backend.batches.close(BATCH)
    backend.ack(first)
    backend.batches.close(BATCH, stop=True)
    backend.batches.close(BATCH)
    backend.ack(second)
    assert known(backend).stopped
    assert callbacks(backend) == ONLY_DONE

    opened(backend, "other")
    backend.batches.close("other")
    backend.batches.close("other", stop=True)
    assert not known(backend, "other").stopped


def test_no_batch_joins_one_that_is_not_open_or_itself(backend: QueueBackend) -> None:
    opened(backend, "outer")
    backend.batches.close("outer")
    for parent in ("outer", "unknown", "inner"):
        with pytest.raises(InvalidJob, match="is not open"):
            opened(backend, "inner", parent=parent)
    assert backend.batches.get("inner") is None


def test_a_callback_may_be_a_member_of_another_batch(backend: QueueBackend) -> None:
    opened(backend, "next")
    callback = backend.pack(JobDefinition("finish", queue=DONE, identifier="callback", batch="next"))
    backend.batches.open(NewBatch(BATCH, on_done=callback))
    backend.batches.close(BATCH)
    assert counts(backend, "next") == (1, 0, 0, 0)
    assert backend.batches.members("next", 10) == ["callback"]


@pytest.mark.above
def test_what_is_told_of_a_callback_that_fails_has_the_end_of_the_batch(backend: QueueBackend) -> None:
    opened(backend)
    backend.batches.close(BATCH)
    end = told(backend)
    whole = {"of": BATCH, "batch": end}
    claim = Jobs(backend=backend).queue(DONE).claim()
    assert claim is not None
    assert [message.payload for message in claim.messages] == [whole]
    claim.release()
    [lease] = backend.fetch_many(DONE, limit=1)
    failed = Abandon("failed", "no printer")
    copy = copy_of_abandoned(lease, failed, "failures", datetime.now(UTC))
    assert copy is not None
    assert copy.payload.items() >= whole.items()
    hooks = hook_job_of_abandoned(lease, failed, backend.pack)
    assert hooks is not None
    assert hooks.payload["payload"] == whole
    delivery = Delivery(lease, 0, 0.0, "", 0.0, outcome=Failed("no printer"))
    assert attempt_of(Recorded(delivery, failed, Settled.OK, 0.0)).payload == whole


# --- memory ------------------------------------------------------------------------------------------------


def test_it_is_known_for_a_while_after_its_end(harness: Harness, backend: QueueBackend) -> None:
    opened(backend, "old")
    opened(backend, "live")
    backend.batches.close("old")
    harness.advance(BATCH_MEMORY_S - 10.0)
    assert known(backend, "old").has_ended
    harness.advance(20.0)
    backend.enqueue_many(numbered(1))  # gives a sweep an occasion
    assert backend.batches.get("old") is None
    assert not known(backend, "live").has_ended


@pytest.mark.spans
def test_its_members_are_told_while_they_live(backend: QueueBackend) -> None:
    opened(backend)
    ids = backend.enqueue_many([*numbered(2, batch=BATCH), *numbered(2, queue="mails", batch=BATCH), a_job()])
    assert sorted(backend.batches.members(BATCH, 10)) == sorted(ids[:4])
    assert len(backend.batches.members(BATCH, 3)) == 3
    assert backend.batches.members("unknown", 3) == []


@pytest.mark.spans
def test_clients_share_a_batch(harness: Harness, backend: QueueBackend) -> None:
    other = harness.open()
    opened(backend)
    ids: Sequence[str] = other.enqueue_many(numbered(2, batch=BATCH))
    other.batches.close(BATCH)
    for _ in ids:
        [lease] = backend.fetch_many(QUEUE, limit=1, ttl=100.0)
        other.ack(lease)
    assert callbacks(backend) == BOTH


@pytest.mark.spans
def test_members_are_told_in_one_order(backend: QueueBackend) -> None:
    """The first of them stay the first while others end and join: who cancels them relies on it."""
    opened(backend)
    ids = backend.enqueue_many([a_job(number, queue=f"q{number % 2}", batch=BATCH) for number in range(12)])
    first = backend.batches.members(BATCH, 8)
    assert set(first) < set(ids)
    backend.bulk(MessageFilter(ids=tuple(first[:5])), Verb.CANCEL)
    backend.enqueue_many(numbered(12, batch=BATCH))
    assert backend.batches.members(BATCH, 8)[:3] == first[5:]
