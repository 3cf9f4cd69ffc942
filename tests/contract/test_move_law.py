"""Move: to another queue in one step, under its id, with its counters, signed for where it goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, new_lease, numbered
from support.looks import a_lease, is_refusal, recover, seen
from support.looks import picture as picture_of

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, ReapPolicy, Verb
from jobpool.errors import InvalidJob
from jobpool.message.envelope import verify
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Move, Nack, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner

pytestmark = [pytest.mark.needs("leases"), pytest.mark.spans]

THERE = "big-machines"
TO_THERE = Move(THERE, crashes=1, error="killed", cause="SIGKILL")


def move(backend: QueueBackend, lease: JobLease, settlement: Move = TO_THERE) -> Settled:
    [answer] = backend.settle_many([(lease, settlement)])
    return answer


def moved(backend: QueueBackend, settlement: Move = TO_THERE, **fields: object) -> Message:
    """A new message, leased and moved: as it is there."""
    ident = backend.enqueue(a_job(**fields))
    assert move(backend, a_lease(backend), settlement) is Settled.OK
    return seen(backend, ident, settlement.queue)


def picture(backend: QueueBackend) -> list[object]:
    return picture_of(backend, QUEUE, THERE)


# --- what it does -----------------------------------------------------------------------------------------


@pytest.mark.needs("lists_live", "atomic_across_queues")
def test_whoever_looks_finds_it_here_or_there_at_every_moment(harness: Harness, opener: Opener) -> None:
    moving, looking = harness.keep(opener()), harness.keep(opener())
    ident = moving.enqueue(a_job())

    def to_and_fro() -> None:
        for _ in range(30):
            for queue, other in ((QUEUE, THERE), (THERE, QUEUE)):
                assert move(moving, a_lease(moving, queue), Move(other))

    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(to_and_fro)
        while not done.done():
            assert looking.inspect(ident) is not None
        done.result()


def test_it_is_signed_for_where_it_goes(backend: QueueBackend) -> None:
    backend.signer = EnvelopeSigner("a key of sixteen or more")
    moved(backend, payload={"x": 1})
    lease = a_lease(backend, THERE)
    assert lease.envelope.queue == THERE
    verify(lease.envelope, backend.signer, THERE)


@pytest.mark.parametrize(
    ("settlement", "attempts", "crashes"),
    [(Move(THERE), 2, 1), (Move(THERE, attempts=1), 3, 1), (Move(THERE, crashes=1), 2, 2), (Move(THERE, 1, 1), 3, 2)],
)
@pytest.mark.needs("exact_crashes")
def test_its_counters_go_on_there(
    harness: Harness, backend: QueueBackend, settlement: Move, attempts: int, crashes: int
) -> None:
    backend.enqueue(a_job())
    a_lease(backend, ttl=1.0)
    recover(harness, backend, 1.0)
    backend.nack(a_lease(backend))
    backend.nack(a_lease(backend))
    here = a_lease(backend)
    assert (here.attempts, here.crashes, here.deliveries) == (2, 1, 4)
    assert move(backend, here, settlement)
    there = a_lease(backend, THERE)
    assert (there.attempts, there.crashes, there.envelope.attempts) == (attempts, crashes, attempts)


@pytest.mark.needs("priorities")
def test_it_waits_at_the_end_of_that_queue_by_its_priority(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job("old"), a_job("old and urgent", priority=1)])
    harness.advance(1.0)
    backend.enqueue_many([a_job("there", queue=THERE), a_job("late", queue=THERE, priority=9)])
    harness.advance(1.0)
    for lease in backend.fetch_many(QUEUE, limit=2):
        move(backend, lease)
    backend.enqueue(a_job("behind", queue=THERE))
    order = [lease.envelope.payload for lease in backend.fetch_many(THERE, limit=9)]
    assert order == ["old and urgent", "there", "old", "behind", "late"]


def test_a_schedule_of_the_past_delays_nothing_there(backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    backend.nack(a_lease(backend), delay=0.0)
    assert move(backend, a_lease(backend))
    assert backend.stats(THERE).waiting == 1


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
@pytest.mark.parametrize(("ticks", "crashes"), [(0, 3), (1, 1)])
def test_the_crashes_that_came_with_it_count_from_the_move_on(
    harness: Harness, backend: QueueBackend, ticks: int, crashes: int
) -> None:
    """A window after the move they are forgotten, as those of the place itself are."""
    backend.enqueue(a_job())
    a_lease(backend, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    harness.advance(50.0)
    assert move(backend, a_lease(backend))
    a_lease(backend, THERE, ttl=30.0)
    harness.advance(30.0 + ticks * harness.tick)
    [reaped] = backend.reap(THERE, ReapPolicy(window=30.0))
    assert reaped.crashes == crashes


def test_there_it_can_be_retried_deleted_and_moved_on(backend: QueueBackend) -> None:
    message = moved(backend)
    backend.abandon(a_lease(backend, THERE), "hopeless")
    assert backend.bulk(MessageFilter(queue=THERE), Verb.RETRY) == 1
    assert move(backend, a_lease(backend, THERE), Move("third")) is Settled.OK
    third = MessageFilter(ids=(message.id,)) if backend.capabilities.keeps_records else MessageFilter(queue="third")
    assert backend.bulk(third, Verb.DELETE) == 1
    assert backend.queues() == []


# --- once, or not at all ----------------------------------------------------------------------------------


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_move_is_already_done(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job())
    batch: list[tuple[JobLease, Settlement]] = [(a_lease(backend), TO_THERE)]
    assert backend.settle_many(batch, "the-call") == [Settled.OK]
    before = picture(backend)
    assert harness.open().settle_many(batch, "the-call") == [Settled.ALREADY]
    assert picture(backend) == before
    assert backend.ack(a_lease(backend, THERE))
    assert backend.settle_many(batch, "the-call") == [Settled.ALREADY]
    assert backend.stats(THERE).pending == 0


def test_the_old_lease_settles_nothing_there(backend: QueueBackend) -> None:
    old = new_lease(backend)
    assert move(backend, old)
    there = a_lease(backend, THERE)
    assert not backend.ack(old)
    assert not move(backend, old)
    assert backend.renew_many([old], 30.0) == [None]
    assert backend.ack(there) is Settled.OK


@pytest.mark.needs("atomic_across_queues")
def test_its_id_is_known_there_and_remembered_after_its_end(backend: QueueBackend) -> None:
    moved(backend, identifier="order-17")
    assert backend.enqueue(a_job("second", identifier="order-17")) == "order-17"
    assert (backend.stats(QUEUE).pending, backend.stats(THERE).pending) == (0, 1)
    backend.ack(a_lease(backend, THERE))
    assert backend.enqueue(a_job("third", identifier="order-17", queue=THERE)) == "order-17"
    assert backend.stats(THERE).pending == 0


def test_a_message_is_not_lost_where_another_of_its_id_has_ended(backend: QueueBackend) -> None:
    moved(backend, identifier="order-17")
    backend.ack(a_lease(backend, THERE))
    backend.enqueue(a_job("second", identifier="order-17", queue=QUEUE))
    again = backend.fetch(QUEUE)  # None where the id is remembered in all queues
    assert again is None or move(backend, again) is Settled.OK
    assert backend.stats(THERE).pending == (again is not None)


def test_a_batch_may_move_some_and_settle_others(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(5))
    leases = backend.fetch_many(QUEUE, limit=5)
    backend.ack(leases[4])
    batch: list[tuple[JobLease, Settlement]] = [
        (leases[0], Move(THERE)),
        (leases[1], Ack()),
        (leases[2], Move("third")),
        (leases[4], Move(THERE)),
        (leases[3], Nack(60.0)),
    ]
    answers = backend.settle_many(batch)
    assert is_refusal(backend, answers.pop(3), Settled.NOT_IN_FLIGHT)
    assert answers == [Settled.OK] * 4
    assert backend.queues() == sorted([THERE, QUEUE, "third"])
    assert [backend.stats(queue).pending for queue in (THERE, QUEUE, "third")] == [1, 1, 1]


def test_a_queue_that_cannot_be_leaves_the_message_where_it_is(backend: QueueBackend) -> None:
    lease = new_lease(backend)
    with pytest.raises(InvalidJob, match="queue name"):
        move(backend, lease, Move("no queue"))
    assert backend.ack(lease) is Settled.OK
