"""Follow-ups: exactly once with what was accepted, none with what was refused, none twice when the call is repeated."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, new_lease, numbered
from support.looks import a_lease, dead_letter, is_refusal
from support.promises import PROMISES

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ENQUEUE_MEMORY, MessageFilter, State
from jobpool.errors import InvalidJob
from jobpool.message.context import next_of
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Settled, Settlement

pytestmark = [pytest.mark.needs("leases"), pytest.mark.spans]

MAIL = a_job("mail", queue="mails")


def with_follow_ups(*definitions: object) -> list[Settlement]:
    return [Ack(definitions), Abandon("hopeless", "boom", None, definitions)]  # type: ignore[arg-type]


both = pytest.mark.parametrize("settlement", with_follow_ups(MAIL, a_job("here")), ids=["ack", "abandon"])


def payloads(backend: QueueBackend, queue: str = "mails") -> list[object]:
    return [lease.envelope.payload for lease in backend.fetch_many(queue, limit=100)]


@both
def test_they_come_with_what_was_accepted(backend: QueueBackend, settlement: Settlement) -> None:
    assert backend.settle_many([(new_lease(backend, "first"), settlement)]) == [Settled.OK]
    assert (payloads(backend), payloads(backend, QUEUE)) == (["mail"], ["here"])


@pytest.mark.parametrize(
    "settlement",
    with_follow_ups(*numbered(5, queue="mails"), a_job("urgent", queue="mails", priority=0), a_job("here")),
    ids=["ack", "abandon"],
)
@pytest.mark.needs("priorities")
def test_there_may_be_several_in_their_order_and_over_queues(backend: QueueBackend, settlement: Settlement) -> None:
    assert backend.settle_many([(new_lease(backend, "first"), settlement)])[0]
    assert payloads(backend) == ["urgent", 0, 1, 2, 3, 4]
    assert payloads(backend, QUEUE) == ["here"]


@both
def test_they_come_once_when_the_call_is_repeated(
    harness: Harness, backend: QueueBackend, settlement: Settlement
) -> None:
    batch = [(new_lease(backend, "first"), settlement)]
    assert backend.settle_many(batch, "the-call") == [Settled.OK]
    again = [harness.open().settle_many(batch, "the-call"), backend.settle_many(batch, "the-call")]
    assert again == [[Settled.ALREADY]] * 2 or not PROMISES["idempotent_settle"](backend.capabilities)
    assert payloads(backend) == ["mail"]
    backend.settle_many(batch, "the-call")
    assert payloads(backend) == []


@pytest.mark.parametrize("way", ["expired", "settled", "reaped and taken again"])
def test_none_comes_with_what_was_refused(harness: Harness, backend: QueueBackend, way: str) -> None:
    lease = new_lease(backend, "first", ttl=5.0)
    if way == "settled":
        backend.nack(lease, delay=60.0)
    else:
        harness.expire_leases(5.0)
    if way == "reaped and taken again":
        backend.reap(QUEUE)
        assert len(backend.fetch_many(QUEUE, limit=1)) == 1
    for settlement in with_follow_ups(MAIL):
        [answer] = backend.settle_many([(lease, settlement)])
        assert answer in (Settled.EXPIRED, Settled.NOT_IN_FLIGHT, Settled.NOT_OWNER)
        assert backend.stats("mails").pending == 0


def test_in_a_batch_only_the_accepted_bring_theirs(harness: Harness, backend: QueueBackend) -> None:
    late = new_lease(backend, "first", ttl=1.0)
    harness.expire_leases(1.0)
    backend.enqueue_many(numbered(3))
    leases = backend.fetch_many(QUEUE, limit=3)
    batch: list[tuple[JobLease, Settlement]] = [
        (late, Ack((a_job("of the late", queue="mails"),))),
        (leases[0], Ack((a_job("of the first", queue="mails"),))),
        (leases[0], Ack((a_job("of the first, again", queue="mails"),))),
        (leases[1], Ack()),
        (leases[2], Abandon("hopeless", None, None, (a_job("of the dead", queue="mails"),))),
    ]
    answers = backend.settle_many(batch)
    refused = [answers.pop(2), answers.pop(0)]
    assert answers == [Settled.OK] * 3
    expected = [Settled.NOT_IN_FLIGHT, Settled.EXPIRED]
    assert all(is_refusal(backend, one, exactly) for one, exactly in zip(refused, expected, strict=True))
    assert payloads(backend) == ["of the first", "of the dead"]


def test_what_the_dead_leaves_is_a_message_of_its_own(backend: QueueBackend) -> None:
    """A copy of a failed payload for another queue; the dead letter stays."""
    lease = new_lease(backend, "first")
    copy = a_job({"failed": "first"}, queue="failed-payloads", handler="store")
    assert backend.settle_many([(lease, Abandon("failed", "boom", "cause", (copy,)))]) == [Settled.OK]
    dead = dead_letter(backend, lease.id)
    assert (dead.reason, dead.last_error, dead.cause) == ("failed", "boom", "cause")
    if backend.capabilities.lists_live:
        [listed] = backend.list_messages(MessageFilter(queue="failed-payloads"))
        assert (listed.queue, listed.handler, listed.state) == ("failed-payloads", "store", State.WAITING)
    [stored] = backend.fetch_many("failed-payloads", limit=2)
    assert (stored.queue, stored.envelope.job, stored.attempts) == ("failed-payloads", "store", 0)
    assert stored.id != lease.id


@both
def test_a_follow_up_may_be_delayed(harness: Harness, backend: QueueBackend, settlement: Settlement) -> None:
    later = a_job("later", queue="mails", scheduled_at=at(harness.now() + 10.0))
    [settlement] = [each for each in with_follow_ups(later) if type(each) is type(settlement)]
    assert backend.settle_many([(new_lease(backend, "first"), settlement)])[0]
    assert payloads(backend) == []
    harness.advance(10.0)
    assert payloads(backend) == ["later"]


@both
@pytest.mark.needs("atomic_across_queues")
def test_an_id_that_is_known_adds_nothing(backend: QueueBackend, settlement: Settlement) -> None:
    named = a_job("second", queue="mails", identifier="mail-1")
    backend.enqueue(a_job("first", queue="mails", identifier="mail-1"))
    [settlement] = [each for each in with_follow_ups(named) if type(each) is type(settlement)]
    assert backend.settle_many([(new_lease(backend, "first"), settlement)]) == [Settled.OK]
    assert payloads(backend) == ["first"]


@pytest.mark.needs("known_ids")
def test_a_chain_whose_first_job_comes_anew_has_jobs_of_its_own(harness: Harness, backend: QueueBackend) -> None:
    for _ in range(2):
        backend.enqueue(a_job("first", identifier="nightly", then=(a_job("next"), a_job("last", queue="mails"))))
        for payload in ("first", "next"):
            [lease] = backend.fetch_many(QUEUE, limit=5)
            assert lease.envelope.payload == payload
            assert backend.settle_many([(lease, Ack(next_of(lease.envelope)))]) == [Settled.OK]
        backend.abandon(a_lease(backend, "mails"), "failed")
        harness.advance(ENQUEUE_MEMORY + 10.0)


@pytest.mark.parametrize("settlement", with_follow_ups(a_job("x" * 1_048_577)), ids=["ack", "abandon"])
def test_one_that_cannot_be_enqueued_leaves_all_of_the_call_undone(
    backend: QueueBackend, settlement: Settlement
) -> None:
    backend.enqueue_many(numbered(2))
    first, second = backend.fetch_many(QUEUE, limit=2)
    with pytest.raises(InvalidJob, match="1048576"):
        backend.settle_many([(first, Ack()), (second, settlement)])
    assert backend.stats(QUEUE).leased == 2
    assert backend.settle_many([(first, Ack()), (second, Ack())]) == [Settled.OK] * 2


def test_many_follow_ups_of_many_messages_all_come(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(50))
    leases = backend.fetch_many(QUEUE, limit=50)
    backend.settle_many([(lease, Ack(tuple(numbered(4, queue="mails")))) for lease in leases])
    assert backend.stats("mails").waiting == 200
    assert sorted(map(str, payloads(backend)[:8])) == sorted("01230123")
