"""Enqueue: ids, order, delays, and that a retried call makes no duplicate (law 8)."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at, new_lease, numbered
from support.looks import in_order, seen

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ENQUEUE_MEMORY, MessageFilter, State, Verb
from jobpool.errors import InvalidJob
from jobpool.message.settlement import Ack

pytestmark = pytest.mark.needs("leases")


def payloads(backend: QueueBackend, limit: int = 100, queue: str = QUEUE) -> list[object]:
    return [lease.envelope.payload for lease in backend.fetch_many(queue, limit=limit)]


@pytest.mark.above
def test_ids_are_minted_as_sixteen_hex_characters(backend: QueueBackend) -> None:
    first, second = backend.enqueue_many([a_job(), a_job()])
    assert first != second
    assert all(len(ident) == 16 and int(ident, 16) >= 0 and ident == ident.lower() for ident in (first, second))
    assert backend.enqueue_many([]) == []


def test_messages_come_in_the_order_of_their_enqueue(backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(20))
    backend.enqueue(a_job(20))
    assert payloads(backend) == list(range(21))


def test_a_smaller_priority_comes_sooner_and_within_one_the_enqueue_order_holds(backend: QueueBackend) -> None:
    """Where there are no priorities the enqueue order holds."""
    backend.enqueue_many([a_job(index, priority=priority) for index, priority in enumerate([5, 255, 1, 5, 0, 1, 255])])
    assert payloads(backend) == ([4, 2, 5, 0, 3, 1, 6] if backend.capabilities.priorities else list(range(7)))


@pytest.mark.needs("priorities")
def test_every_priority_is_found_whenever_it_first_comes(backend: QueueBackend) -> None:
    for number, priority in enumerate([5, 7, 255, 0, 6, 1, 5]):
        backend.enqueue(a_job(number, priority=priority))
        assert payloads(backend, 1) == [number]
    backend.enqueue_many([a_job(priority, priority=priority) for priority in (200, 4, 6, 0, 255, 5)])
    assert payloads(backend) == [0, 4, 5, 6, 200, 255]


@pytest.mark.spans
def test_queues_do_not_mix(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(1), a_job(2, queue="mails"), a_job(3)])
    assert payloads(backend) == [1, 3]
    assert payloads(backend, queue="mails") == [2]


@pytest.mark.spans
@pytest.mark.needs("makes_queues")
def test_a_queue_may_be_called_null_and_a_limit_be_large(backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(1, queue="null"), a_job(2, queue="NULL")])
    leases = [lease for name in ("null", "NULL") for lease in backend.fetch_many(name, limit=2**40)]
    assert [lease.envelope.payload for lease in leases] == [1, 2]
    assert None not in backend.renew_many(leases, 30.0)
    assert all(backend.settle_many([(lease, Ack()) for lease in leases]))


def test_a_definition_without_a_queue_goes_to_default(backend: QueueBackend) -> None:
    backend.enqueue(a_job("here", queue=None))
    assert payloads(backend, queue="default") == ["here"]


def test_a_scheduled_message_is_due_at_its_microsecond_and_not_before(harness: Harness, backend: QueueBackend) -> None:
    """A time is rounded up to what the broker can tell."""
    for delay in (10.0, 1.5):
        backend.enqueue(a_job(scheduled_at=at(harness.now() + delay)))
        harness.advance(delay - harness.tick)
        assert backend.fetch_many(QUEUE, limit=1) == []
        harness.advance(harness.delayed(delay) - delay + harness.tick)
        assert len(backend.fetch_many(QUEUE, limit=1)) == 1, delay


@pytest.mark.needs("exact_stats")
@pytest.mark.parametrize("count", [1, 2, 200])
def test_delayed_and_due_messages_may_be_mixed(harness: Harness, backend: QueueBackend, count: int) -> None:
    due = [harness.now() + 60.0 * (number % 2) for number in range(count)]
    backend.enqueue_many([a_job(number, scheduled_at=at(moment)) for number, moment in enumerate(due)])
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.delayed) == ((count + 1) // 2, count // 2)
    if backend.capabilities.lists_live:
        [first, *_] = backend.list_messages()
        assert first.available_at == first.enqueued_at


@pytest.mark.needs("keeps_place")
def test_thousands_that_fall_due_together_all_come(harness: Harness, backend: QueueBackend) -> None:
    known = backend.enqueue_many(numbered(7000, scheduled_at=at(harness.now() + 5)))
    urgent = backend.enqueue(a_job(priority=0))
    harness.advance(5.0)
    assert backend.stats(QUEUE).waiting == 7001
    waiting = backend.list_messages(MessageFilter(states=(State.WAITING,)), limit=5)
    assert [message.id for message in waiting] == known[:5]
    fetched = [lease.id for _ in range(8) for lease in backend.fetch_many(QUEUE, limit=1000)]
    assert fetched[0] == urgent
    assert sorted(fetched) == sorted([urgent, *known])


def test_a_time_in_the_past_means_now(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue(a_job(scheduled_at=at(harness.now() - 86400)))
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


def test_a_delayed_message_that_falls_due_has_the_place_of_its_enqueue(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many([a_job(1, scheduled_at=at(harness.now() + 5)), a_job(2), a_job(3)])
    harness.advance(5.0)
    assert in_order(backend, payloads(backend)) == [1, 2, 3]


@pytest.mark.needs("known_ids")
def test_an_id_that_lives_is_returned_and_its_message_left_alone(backend: QueueBackend) -> None:
    assert backend.enqueue(a_job("first", identifier="order-17")) == "order-17"
    assert backend.enqueue(a_job("second", identifier="order-17")) == "order-17"
    assert payloads(backend) == ["first"]
    assert backend.enqueue(a_job("third", identifier="order-17")) == "order-17"
    assert backend.stats(QUEUE).pending == 1
    assert backend.enqueue_many([a_job(1, identifier="same"), a_job(2, identifier="same")]) == ["same", "same"]
    assert payloads(backend) == [1]


@pytest.mark.spans
@pytest.mark.needs("atomic_across_queues")
def test_an_id_that_lives_in_one_queue_is_known_in_all(backend: QueueBackend) -> None:
    backend.enqueue(a_job("first", identifier="order-17"))
    assert backend.enqueue(a_job("second", identifier="order-17", queue="mails")) == "order-17"
    assert payloads(backend) == ["first"]
    assert backend.stats("mails").pending == 0


@pytest.mark.needs("known_ids")
def test_an_id_that_is_dead_is_left_dead(backend: QueueBackend) -> None:
    lease = new_lease(backend, identifier="order-17")
    backend.abandon(lease, "hopeless")
    backend.enqueue(a_job(identifier="order-17"))
    assert payloads(backend) == []
    assert backend.stats(QUEUE).dead == 1


@pytest.mark.needs("known_ids")
def test_an_id_that_a_producer_gave_is_remembered_after_its_end(harness: Harness, backend: QueueBackend) -> None:
    lease = new_lease(backend, identifier="order-17")
    assert backend.ack(lease)
    harness.advance(ENQUEUE_MEMORY - harness.tick)
    assert backend.enqueue(a_job(identifier="order-17")) == "order-17"
    assert payloads(backend) == []
    harness.advance(harness.tick)
    backend.enqueue(a_job("again", identifier="order-17"))
    assert payloads(backend) == ["again"]


@pytest.mark.needs("known_ids")
def test_an_id_that_was_given_and_deleted_is_remembered_too(backend: QueueBackend) -> None:
    backend.enqueue(a_job(identifier="order-17"))
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 1
    backend.enqueue(a_job(identifier="order-17"))
    assert payloads(backend) == []


@pytest.mark.needs("known_ids")
@pytest.mark.parametrize("count", [1, 2, 50, 200])
def test_a_known_id_is_left_alone_among_any_number_of_others(backend: QueueBackend, count: int) -> None:
    backend.ack(new_lease(backend, identifier="gone", queue="mails"))
    backend.enqueue(a_job("live", identifier="live"))
    even, odd = numbered(count)[1::2], numbered(count)[2::2]
    for ident in ("live", "gone"):
        backend.enqueue_many([*even, a_job("again", identifier=ident), *odd])
    backend.enqueue_many([a_job("twice", identifier="twice"), *even, *odd, a_job("again", identifier="twice")])
    others = [job.payload for job in even + odd]
    assert payloads(backend, 1000) == ["live", *others * 2, "twice", *others]


def test_a_second_message_under_an_id_is_not_the_first(harness: Harness, backend: QueueBackend) -> None:
    """A lease of the first message of an id says nothing about the second."""
    old = new_lease(backend, identifier="order-17", ttl=30.0)
    backend.ack(old)
    harness.advance(ENQUEUE_MEMORY)
    new = new_lease(backend, identifier="order-17", ttl=30.0)
    assert not backend.abandon(old)
    assert backend.ack(new)


@pytest.mark.lacks("known_ids")
def test_messages_of_one_id_are_leased_and_settled_each_for_itself(backend: QueueBackend) -> None:
    """A retried enqueue may have made a second one: it takes nothing from the first."""
    for payload in ("first", "second"):
        assert backend.enqueue(a_job(payload, identifier="order-17")) == "order-17"
    known = backend.stats(QUEUE).pending
    assert known in (1, 2)
    leases = backend.fetch_many(QUEUE, limit=9)
    assert [lease.id for lease in leases] == ["order-17"] * known
    assert backend.ack(leases[0])
    assert not backend.ack(leases[0])
    assert backend.stats(QUEUE).pending == known - 1
    assert all(backend.settle_many([(lease, Ack()) for lease in leases[1:]]))
    assert backend.stats(QUEUE).pending == 0


@pytest.mark.above
def test_a_batch_with_one_bad_definition_enqueues_nothing(backend: QueueBackend) -> None:
    with pytest.raises(InvalidJob, match="1048576: put the data into a file"):
        backend.enqueue_many([a_job(1), a_job("x" * 1_048_577)])
    assert backend.stats(QUEUE).pending == 0


def test_what_one_client_enqueued_another_fetches(harness: Harness) -> None:
    ident = harness.open().enqueue(a_job())
    [lease] = harness.open().fetch_many(QUEUE, limit=1)
    assert lease.id == ident


def test_a_message_has_what_its_producer_said(harness: Harness, backend: QueueBackend) -> None:
    ident = backend.enqueue(a_job({"customer": 7}, handler="invoice", scheduled_at=at(harness.now() + 60)))
    enqueued = harness.now()
    harness.advance(60.0)
    message = seen(backend, ident)
    assert (message.queue, message.handler, message.state) == (QUEUE, "invoice", State.WAITING)
    assert (message.attempts, message.crashes, message.deliveries) == (0, 0, 0)
    assert message.enqueued_at == pytest.approx(enqueued, abs=1.0)
    assert b'"customer"' in message.body
