"""What breaks under the SDK, and how it breaks itself: nothing is lost, nobody goes deaf, no connection is left behind.

One backend meets one fault after the other: what a fault leaves behind would be met by the next test.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
from azure.servicebus.aio import ServiceBusClient
from support.jobs import QUEUE, a_job
from support.servicebus import Control, PeerThread
from support.waiting import wait_until

from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable
from jobpool.lease import JobLease
from jobpool.settlement import Settled
from jobpool_backends.servicebus import ServiceBusBackend, taker
from jobpool_backends.servicebus.address import read_address
from jobpool_backends.servicebus.channel import Channel
from jobpool_backends.servicebus.hub import Hub

T = TypeVar("T")

LIMIT = 20.0
"""Seconds: far more than anything here takes."""

CHANNELS = 4
"""Connections that a backend has to one queue, at most."""

SHORT = 0.2
"""Seconds after which a reply that was lost, or a stall, is followed by something else."""


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerThread]:
    with PeerThread() as peer:
        for queue in (QUEUE, "mails"):
            peer.control.create_queue(queue, max_delivery_count=100)
        yield peer


@pytest.fixture(scope="module")
def shared(peer: PeerThread) -> Iterator[ServiceBusBackend]:
    backend = ServiceBusBackend.from_url(peer.connection_string)
    yield backend
    backend.close()
    wait_until(lambda: peer.control.connections() == 0, LIMIT, "no connection left open")


@pytest.fixture
def control(peer: PeerThread) -> Iterator[Control]:
    yield peer.control
    peer.control.heal()


@pytest.fixture
def backend(shared: ServiceBusBackend, control: Control) -> Iterator[ServiceBusBackend]:
    """All its channels are open and in order, and its queue is empty."""
    backend = ServiceBusBackend(shared.hub, owns=False)
    persist(lambda: backend.enqueue(a_job()))
    ack(backend, persist(lambda: backend.fetch_many(QUEUE, limit=9)))
    persist(lambda: backend.stats(QUEUE))
    for name in (QUEUE, f"{QUEUE}/$DeadLetterQueue"):
        control.purge(name)
    yield backend
    backend.close()


def persist(call: Callable[[], T]) -> T:
    """What the call answers, as soon as the broker can be asked: a pool calls again, too."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(call())
        except BackendUnavailable:
            return False
        return True

    wait_until(answered, LIMIT)
    return answers[0]


def ack(backend: ServiceBusBackend, leases: Iterable[JobLease]) -> list[str]:
    """The ids of those of which that was accepted."""
    return [lease.id for lease in leases if persist(partial(backend.ack, lease))]


def later(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(SHORT, act)
    timer.start()
    return timer


def drain(backend: ServiceBusBackend, control: Control) -> list[str]:
    """Fetch and ack until the queue is empty; the ids."""
    acked: list[str] = []

    def is_empty() -> bool:
        acked.extend(ack(backend, persist(lambda: backend.fetch_many(QUEUE, limit=9))))
        return control.counts(QUEUE).empty

    wait_until(is_empty, LIMIT, "an empty queue")
    assert control.counts(QUEUE).dead == 0
    return acked


# --- faults of the network and of the service ---------------------------------------------------------------


def stall(control: Control) -> None:
    control.stall()
    later(lambda: control.stall(False))


def half_open(control: Control) -> None:
    """What is sent to connections that were open then is lost, and nobody is told."""
    control.stall(keep=False)
    control.stall(False)
    later(control.drop_connections)  # at last the network says so


FAULTS: list[object] = [
    pytest.param(lambda control: control.drop_connections(), id="reset"),
    pytest.param(lambda control: control.close_connections(), id="closed by the service"),
    pytest.param(lambda control: control.detach_links(management=True), id="idle links detached"),
    pytest.param(lambda control: control.restart(), id="failover"),
    pytest.param(lambda control: control.fail("send", times=2), id="busy when sent to"),
    pytest.param(lambda control: control.fail("settle", times=2), id="busy when settled"),
    pytest.param(lambda control: control.fail("management", times=2), id="busy when managed"),
    pytest.param(lambda control: control.fail("attach", times=2), id="busy when attached to"),
    pytest.param(stall, id="stall"),
    pytest.param(half_open, id="half-open"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_of_everything_loses_nothing(
    backend: ServiceBusBackend, control: Control, fault: Callable[[Control], object]
) -> None:
    known = backend.enqueue_many([a_job(identifier=f"job-{number}") for number in range(4)])
    one, two = backend.fetch_many(QUEUE, limit=2)
    fault(control)
    persist(lambda: backend.enqueue(a_job(identifier="during")))
    assert persist(lambda: backend.renew_many([one, two], 30.0)) != [None, None]
    fetched = persist(lambda: backend.fetch_many(QUEUE, limit=1))
    fault(control)
    acked = ack(backend, [one, two, *fetched]) + drain(backend, control)
    assert sorted(set(acked)) == sorted([*known, "during"])


def test_locks_that_ended_with_a_failover_are_no_loss(backend: ServiceBusBackend, control: Control) -> None:
    ident = backend.enqueue(a_job())
    [lost] = backend.fetch_many(QUEUE, limit=1)
    control.restart(keep_locks=False)
    assert persist(lambda: backend.renew_many([lost], 30.0)) == [None]
    [again] = wait_until(lambda: persist(lambda: backend.fetch_many(QUEUE, limit=1)), LIMIT)
    assert again.id == ident
    assert not backend.ack(lost)
    assert backend.ack(again)


# --- the SDK's own traps ------------------------------------------------------------------------------------


def test_a_lost_reply_to_an_ack_is_no_lost_lease(backend: ServiceBusBackend, control: Control) -> None:
    """The lock is gone when it is asked for again, because the first request was carried out."""
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    control.lose_replies("settle")
    later(control.drop_connections)
    assert backend.ack(lease)
    assert control.counts(QUEUE).empty


def test_a_lost_reply_to_a_nack_makes_no_second_copy(backend: ServiceBusBackend, control: Control) -> None:
    ident = backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    control.lose_replies("settle")
    later(control.drop_connections)
    assert backend.nack(lease)
    [again] = backend.fetch_many(QUEUE, limit=9)
    assert (again.id, again.attempts) == (ident, 1)


def test_a_lock_that_is_really_gone_is_not_taken_for_a_lost_reply(backend: ServiceBusBackend, control: Control) -> None:
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    control.expire_locks(QUEUE)
    assert not backend.ack(lease)
    assert control.counts(QUEUE).ready == 1


def test_a_lost_reply_to_a_renewal_is_asked_for_again(backend: ServiceBusBackend, control: Control) -> None:
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    control.lose_replies("management")
    later(control.drop_connections)
    assert backend.renew(lease, 30.0).expires_at > lease.expires_at
    assert backend.ack(lease)


def test_management_goes_on_where_the_service_replies_no_more(peer: PeerThread, control: Control) -> None:
    """The SDK gives its management link credit for 10,000 replies, once; after these every call times out."""
    address = read_address(peer.connection_string, {})[0]
    hub = Hub(address)
    client = ServiceBusClient.from_connection_string(peer.connection_string, retry_total=0)
    channel = Channel(lambda: client.get_queue_receiver(QUEUE), address, QUEUE, most=8)
    control.limit_management_replies(8)

    async def peek_often() -> int:
        for _ in range(20):
            await channel.run(lambda receiver: receiver.peek_messages(1, sequence_number=1), time.monotonic() + 3.0)
        generation = channel.generation
        await channel.close()
        await client.close()
        return generation

    try:
        assert hub.call(peek_often()) == 3
    finally:
        hub.close()


def test_a_receiver_whose_token_link_is_gone_does_not_go_deaf(backend: ServiceBusBackend, control: Control) -> None:
    """The SDK's receiver then answers on time, for ever, that there is nothing."""
    ident = backend.enqueue(a_job())
    assert control.detach_links("$cbs", cbs=True) > 0
    [lease] = wait_until(lambda: persist(lambda: backend.fetch_many(QUEUE, limit=1)), LIMIT)
    assert lease.id == ident
    assert backend.ack(lease)


def test_deliveries_that_ran_out_do_not_fill_up_the_session(
    shared: ServiceBusBackend, backend: ServiceBusBackend, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker sends nothing to a session that has too many of them open, and the SDK never settles these."""
    monkeypatch.setattr(taker, "MOST_STRAYS", 2)
    control.limit_unsettled(3)
    clock = ManualClock(wall=time.time())
    forgetful = ServiceBusBackend(shared.hub, owns=False, clock=clock)
    known = backend.enqueue_many([a_job() for _ in range(3)])
    assert len(forgetful.fetch_many(QUEUE, limit=3)) == 3
    control.expire_locks(QUEUE)
    clock.advance(1000.0)
    again = wait_until(lambda: persist(lambda: forgetful.fetch_many(QUEUE, limit=3)), LIMIT)
    assert sorted(lease.id for lease in again) == sorted(known)


def test_many_threads_on_breaking_connections_leave_none_behind(backend: ServiceBusBackend, control: Control) -> None:
    known = backend.enqueue_many([a_job(identifier=f"job-{number}") for number in range(60)])
    acked: list[str] = []

    def work(_: int) -> None:
        for _ in range(5):
            leases = persist(lambda: backend.fetch_many(QUEUE, limit=2))
            persist(partial(backend.renew_many, leases, 30.0))
            acked.extend(ack(backend, leases))

    with ThreadPoolExecutor(6) as executor:
        done = executor.map(work, range(6))
        for _ in range(2):
            time.sleep(SHORT)
            control.drop_connections()
        list(done)
    acked += drain(backend, control)
    assert sorted(set(acked)) == sorted(known)
    wait_until(lambda: control.connections() <= CHANNELS, LIMIT, "as many connections as channels")


# --- fork ---------------------------------------------------------------------------------------------------


def test_a_forked_child_has_connections_of_its_own_and_disturbs_nobody(
    backend: ServiceBusBackend, control: Control
) -> None:
    mine = backend.enqueue(a_job("mine"))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    before = control.connections()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that the parent has threads is what this is about
        pid = os.fork()
    if pid == 0:
        os._exit(in_child(backend, lease.id))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_until(lambda: control.connections() <= before, LIMIT, "the child's connections are gone")
    assert control.counts("mails").empty
    assert (lease.id, backend.renew(lease, 30.0).id) == (mine, mine)
    assert backend.ack(lease) is Settled.OK
    assert control.counts(QUEUE).empty


def in_child(backend: ServiceBusBackend, held: str) -> int:
    """The exit status of a child that works on another queue, and closes what it has."""
    try:
        backend.enqueue(a_job("theirs", queue="mails"))
        [lease] = backend.fetch_many("mails", limit=9)
        works = backend.ack(lease) is Settled.OK and lease.id != held
        backend.hub.close()
    except Exception:
        return 2
    return 0 if works else 1
