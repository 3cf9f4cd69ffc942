"""The Service Bus backend against the peer: sending, fetching, waiting, settling, and what goes wrong there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from azure.servicebus.aio import ServiceBusReceiver
from servicebus_peer import Counts, PeerThread
from servicebus_peer.errors import SERVER_BUSY
from support.peers import let_go
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable, InvalidJob, JobpoolError, WriteRefused
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement
from jobpool_backends.servicebus import ServiceBusBackend, internals
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.queue_client import PREFETCH_KEPT_S

LOCK = 60.0
KILO = "x" * 1000

_numbers = count()


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerThread]:
    with PeerThread() as peer:
        yield peer


@pytest.fixture(scope="module")
def backend(peer: PeerThread) -> Iterator[ServiceBusBackend]:
    backend = ServiceBusBackend.from_url(peer.connection_string)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def other(peer: PeerThread) -> Iterator[ServiceBusBackend]:
    """Another client, with two receivers a queue."""
    backend = ServiceBusBackend.from_url(peer.connection_string, receivers=2)
    yield backend
    backend.close()


@pytest.fixture
def brief(peer: PeerThread) -> Iterator[ServiceBusBackend]:
    """A client that does not wait for long."""
    backend = ServiceBusBackend.from_url(peer.connection_string, timeout=2.0)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def shared_queue(peer: PeerThread) -> str:
    return make_queue(peer)


@pytest.fixture
def queue(peer: PeerThread, backend: ServiceBusBackend, other: ServiceBusBackend, shared_queue: str) -> str:
    """The same for all, emptied: to open a handler takes half a second."""
    for client in (backend, other):
        let_go(client.namespace)
        client.leases.clear()
        client.reap(shared_queue)
    for store in (shared_queue, f"{shared_queue}/$DeadLetterQueue"):
        peer.control.purge(store)
    return shared_queue


def make_queue(peer: PeerThread, **properties: object) -> str:
    name = f"jobs-{next(_numbers)}"
    peer.control.create_queue(name, **{"lock_duration": LOCK, "max_delivery_count": 100, **properties})
    return name


def a_job(queue: str, payload: object = 1) -> JobDefinition:
    return JobDefinition("report", payload, queue=queue)


def fetch_all(backend: ServiceBusBackend, queue: str, limit: int = 100) -> list[JobLease]:
    return backend.fetch_many(queue, limit=limit)


def counts(peer: PeerThread, queue: str) -> Counts:
    return peer.control.counts(queue)


# --- sending -----------------------------------------------------------------------------------------


def test_a_call_is_as_many_batches_as_its_size_asks_for(
    peer: PeerThread, backend: ServiceBusBackend, queue: str
) -> None:
    ids = backend.enqueue_many([a_job(queue, [number, 100 * KILO]) for number in range(7)])
    leases = fetch_all(backend, queue)
    assert [lease.id for lease in leases] == ids
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 7
    assert counts(peer, queue).locked == 0


def test_what_is_too_large_for_a_batch_goes_alone(peer: PeerThread, backend: ServiceBusBackend) -> None:
    queue = make_queue(peer, max_message_size=600_000)
    ids = backend.enqueue_many([a_job(queue, size * KILO) for size in (1, 400, 2)])
    assert [lease.id for lease in fetch_all(backend, queue)] == ids


def test_what_is_too_large_for_the_queue_is_refused_before_anything_is_sent(
    peer: PeerThread, backend: ServiceBusBackend, queue: str
) -> None:
    with pytest.raises(InvalidJob, match=rf"has 30\d{{4}} bytes, and queue '{queue}' takes at most 262144 a message"):
        backend.enqueue_many([a_job(queue), a_job(queue, 300 * KILO)])
    assert counts(peer, queue).ready == 0


def test_the_largest_job_that_is_taken_can_be_retried_and_texts_are_cut(backend: ServiceBusBackend, queue: str) -> None:
    size = 262_144
    while not is_taken(backend, a_job(queue, "x" * size)):
        size -= 16
    [lease] = fetch_all(backend, queue)
    for settlement in (Nack(error=12 * KILO, cause=KILO), Forfeit(KILO), Release(0.001), Nack()):
        assert backend.settle_many([(lease, settlement)]) == [Settled.OK]
        lease = backend.fetch_many(queue, limit=1, wait=10.0)[0]
    assert (len(lease.envelope.payload), lease.attempts, lease.crashes, lease.deliveries) == (size, 2, 1, 5)
    assert backend.ack(lease)


def is_taken(backend: ServiceBusBackend, job: JobDefinition) -> bool:
    try:
        backend.enqueue(job)
    except InvalidJob:
        return False
    return True


# --- what cannot work, in a sentence -----------------------------------------------------------------


def trouble_of(connection_string: str, queue: str) -> str:
    backend = ServiceBusBackend.from_url(connection_string, timeout=5)
    try:
        with pytest.raises(JobpoolError) as caught:
            backend.enqueue(a_job(queue))
    finally:
        backend.close()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_others_are_waited_for_although_one_is_not_there(backend: ServiceBusBackend, queue: str) -> None:
    backend.enqueue(a_job(queue))
    assert backend.wait_any(["not-there", queue], 5.0) == queue
    assert backend.ack(fetch_all(backend, queue)[0])
    assert backend.wait_any(["not-there", queue], 0.1) is None


def test_a_wrong_key(peer: PeerThread, queue: str) -> None:
    told = trouble_of(peer.connection_string.replace("AccessKey=", "AccessKey=aGlkZGVu"), queue)
    assert told.startswith("AccessRefused")
    assert "refuses the key: mend SharedAccessKeyName and SharedAccessKey" in told
    assert "aGlkZGVu" not in told


def test_a_string_for_one_queue_is_good_for_that_one(peer: PeerThread, queue: str) -> None:
    told = trouble_of(f"{peer.connection_string}EntityPath=orders", queue)
    assert f"good for queue 'orders' only (EntityPath), not for '{queue}'" in told


# --- fetching and waiting ----------------------------------------------------------------------------


def test_an_empty_fetch_leaves_no_credit_behind(
    peer: PeerThread, backend: ServiceBusBackend, other: ServiceBusBackend, queue: str
) -> None:
    """Else what comes next would be locked in a receiver that nobody reads."""
    backend.enqueue(a_job(queue))
    [lease] = fetch_all(backend, queue, 50)
    assert fetch_all(backend, queue, 50) == []
    assert backend.wait_any([queue], 0.05) is None
    other.enqueue_many([a_job(queue)] * 3)
    assert (counts(peer, queue).ready, counts(peer, queue).locked) == (3, 1)
    leases = fetch_all(other, queue)
    assert [each.deliveries for each in leases] == [1, 1, 1]
    assert fetch_all(backend, queue) == []
    assert all(other.settle_many([(each, Ack()) for each in leases]))
    assert backend.ack(lease)


def test_what_arrived_before_the_broker_fell_silent_is_not_thrown_away(
    peer: PeerThread, backend: ServiceBusBackend, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks would hold, with nobody to use them."""
    monkeypatch.setattr(internals, "ROUND_TRIP_LIMIT_S", 0.3)
    backend.enqueue_many([a_job(queue)] * 3)
    peer.control.limit_unsettled(2)
    leases = fetch_all(backend, queue)
    peer.control.heal()
    assert len(leases) == 2
    assert backend.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 2
    [last] = fetch_all(backend, queue)
    assert backend.ack(last)


def test_what_came_for_a_wait_and_is_not_fetched_goes_back_unharmed(
    peer: PeerThread, backend: ServiceBusBackend, other: ServiceBusBackend, queue: str
) -> None:
    backend.enqueue(a_job(queue))
    assert backend.wait_any([queue], 5.0) == queue
    assert counts(peer, queue).locked == 1
    assert fetch_all(other, queue) == []
    wait_until(lambda: counts(peer, queue).ready == 1, limit=PREFETCH_KEPT_S + 10)
    [lease] = fetch_all(other, queue)
    assert lease.deliveries == 1
    assert other.ack(lease)


def test_whoever_waits_gives_way_to_whoever_settles_and_goes_on(backend: ServiceBusBackend, queue: str) -> None:
    backend.enqueue_many([a_job(queue)] * 2)
    first, second = fetch_all(backend, queue)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(backend.wait_any, [queue], 30.0)
        assert backend.ack(first) is Settled.OK
        assert backend.renew(second, 30.0).id == second.id
        assert not waiting.done()
        assert backend.nack(second) is Settled.OK
        assert waiting.result(10.0) == queue
    [again] = fetch_all(backend, queue)
    assert backend.ack(again)


def test_two_receivers_share_the_work(other: ServiceBusBackend, queue: str) -> None:
    ids = other.enqueue_many([a_job(queue, number) for number in range(12)])
    leases = [lease for _ in range(4) for lease in fetch_all(other, queue, 3)]
    assert [lease.id for lease in leases] == ids
    receivers = {held.delivery.receiver for held in other.leases.of(queue).values()}
    assert len(receivers) == 2
    assert other.settle_many([(lease, Ack()) for lease in leases]) == [Settled.OK] * 12


def test_a_wait_goes_on_when_its_connection_breaks(peer: PeerThread, backend: ServiceBusBackend, queue: str) -> None:
    assert backend.wait_any([queue], 0.01) is None
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(backend.wait_any, [queue], 30.0)
        wait_until(lambda: peer.control.drop_connections() > 0 and not waiting.done())
        wait_until(lambda: is_enqueued(backend, queue))
        assert waiting.result(10.0) == queue


def is_enqueued(backend: ServiceBusBackend, queue: str) -> bool:
    try:
        backend.enqueue(a_job(queue))
    except BackendUnavailable:
        return False
    return True


def test_a_handler_is_replaced_before_the_sdk_runs_out_of_replies(peer: PeerThread, queue: str) -> None:
    backend = ServiceBusBackend.from_url(peer.connection_string)
    client = backend.namespace.queue(queue)
    channel: Channel[ServiceBusReceiver] = Channel(client.management._make, backend.namespace.address, queue, most=2)
    before = peer.control.connections()

    async def look() -> None:
        await channel.run(lambda receiver: receiver.peek_messages(max_message_count=1))

    for _ in range(5):
        backend.namespace.call(look())
    assert channel.generation == 3
    backend.namespace.call(channel.close())
    wait_until(lambda: peer.control.connections() <= before)
    backend.close()


# --- settling and renewing ---------------------------------------------------------------------------


def test_what_an_earlier_connection_received_is_settled_by_its_lock(
    peer: PeerThread, backend: ServiceBusBackend, queue: str
) -> None:
    backend.enqueue_many([a_job(queue, number) for number in range(5)])
    leases = fetch_all(backend, queue)
    peer.control.drop_connections()
    verbs: list[Settlement] = [Ack(), Nack(), Abandon("rejected"), Release(), Forfeit("x")]
    assert backend.settle_many(list(zip(leases, verbs, strict=True))) == [Settled.OK] * 5
    after = counts(peer, queue)
    assert (after.ready, after.locked, after.dead) == (3, 0, 1)


def test_of_several_locks_the_one_that_is_gone_is_refused_and_the_others_renewed(
    peer: PeerThread, backend: ServiceBusBackend, other: ServiceBusBackend, queue: str
) -> None:
    backend.enqueue_many([a_job(queue, number) for number in range(2)])
    [gone] = fetch_all(backend, queue, 1)
    peer.control.expire_locks(queue)
    [theirs], [mine] = fetch_all(other, queue, 1), fetch_all(backend, queue, 1)
    assert theirs.id == gone.id
    assert [renewed and renewed.id for renewed in backend.renew_many([gone, mine], 30.0)] == [None, mine.id]
    assert not backend.ack(gone)
    assert backend.settle_many([(mine, Ack())]) == other.settle_many([(theirs, Ack())]) == [Settled.OK]


def test_a_call_that_broke_off_says_how_many_jobs_of_all_its_queues_were_sent(
    peer: PeerThread, backend: ServiceBusBackend, queue: str
) -> None:
    full = make_queue(peer)
    peer.control.fail("send", "amqp:resource-limit-exceeded", times=100, match=full)
    with pytest.raises(WriteRefused, match=r"is full.*; 2 of 3 messages were sent before$"):
        backend.enqueue_many([a_job(queue), a_job(queue), a_job(full)])
    with pytest.raises(WriteRefused, match=r"resource-limit-exceeded\.\)$"):
        backend.enqueue(a_job(full))
    peer.control.heal()
    assert [backend.ack(lease) for lease in fetch_all(backend, queue)] == [Settled.OK] * 2


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("amqp:resource-limit-exceeded", "is full"),
        (SERVER_BUSY, "is busy"),
        ("amqp:internal-error", r"broke off: .*internal-error\.\)$"),
        ("amqp:unauthorized-access", "Send and Listen are needed"),
    ],
)
def test_a_queue_that_takes_no_copies_holds_up_no_ack(
    peer: PeerThread, brief: ServiceBusBackend, queue: str, condition: str, told: str
) -> None:
    backend = brief
    backend.enqueue_many([a_job(queue) for _ in range(3)])
    leases = fetch_all(backend, queue)
    work: list[tuple[JobLease, Settlement]] = list(zip(leases, (Ack(), Nack(error="boom"), Ack()), strict=True))
    peer.control.fail("send", condition, times=100)
    with pytest.raises(WriteRefused, match=told) as refused:
        backend.settle_many(work, call_id=told)
    assert refused.value.answers == [Settled.OK, None, Settled.OK]
    assert counts(peer, queue).locked == 1
    with pytest.raises(WriteRefused, match=told) as refused:
        backend.settle_many(work, call_id=told)
    assert refused.value.answers == [Settled.OK, None, Settled.OK], "what was done is remembered with the call"
    peer.control.heal()
    assert backend.settle_many(work[1:2]) == [Settled.OK], "what was refused is as it was"
    [again] = fetch_all(backend, queue)
    assert again.attempts == 1
    assert backend.ack(again)


def test_who_is_told_that_the_service_is_busy_may_come_again_at_once(
    peer: PeerThread, backend: ServiceBusBackend, queue: str
) -> None:
    backend.enqueue(a_job(queue))
    generation = backend.namespace.queue(queue).sending.generation
    peer.control.fail("send")
    with pytest.raises(BackendUnavailable, match="is busy and asks to wait"):
        backend.enqueue(a_job(queue))
    backend.enqueue(a_job(queue))
    assert counts(peer, queue).ready == 2
    assert backend.namespace.queue(queue).sending.generation == generation


# --- connections -----------------------------------------------------------------------


def test_whose_time_was_taken_by_others_costs_no_connection(backend: ServiceBusBackend, queue: str) -> None:
    backend.enqueue(a_job(queue))
    sending = backend.namespace.queue(queue).sending

    async def come_too_late() -> None:
        async with sending.lock:
            late = asyncio.ensure_future(sending.run(lambda _: asyncio.sleep(0), time.monotonic()))
            await asyncio.sleep(0)
        await late

    with pytest.raises(BackendUnavailable, match="did not answer"):
        backend.namespace.call(come_too_late())
    assert sending._handler is not None


def test_nothing_is_left_open_and_closing_is_quick(peer: PeerThread, queue: str) -> None:
    before = peer.control.connections()
    backend = ServiceBusBackend.from_url(peer.connection_string)
    backend.enqueue_many([a_job(queue)] * 2)
    [lease] = fetch_all(backend, queue, 1)
    assert backend.renew(lease, 30.0)
    assert backend.wait_any([queue], 5.0) == queue
    assert backend.stats(queue).dead == 0
    client = backend.namespace.queue(queue)
    channels = client.sending, client.management, client.dead, client.receivers[0].channel
    assert None not in [channel._handler for channel in channels]
    started = time.monotonic()
    backend.close()
    assert time.monotonic() - started < 15.0
    assert [channel._handler for channel in channels] == [None] * 4, "the SDK's own close would wait for a silent one"
    wait_until(lambda: peer.control.connections() <= before, limit=10.0)
    assert (counts(peer, queue).ready, counts(peer, queue).locked) == (1, 1)
    assert backend.wait_any([queue], 5.0) is None
