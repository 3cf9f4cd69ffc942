"""What breaks under the SDK, and how it breaks itself: nothing is lost, nobody goes deaf, no connection is left behind.

Most of these are scenes, each on a peer of its own: to connect again takes half a second, so they are all played at the
same time, before the first test, and each test looks at one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import pytest
from azure.servicebus._pyamqp.aio import Connection
from azure.servicebus.aio import ServiceBusClient
from servicebus_peer import Control, PeerThread
from support.jobs import QUEUE, a_job, new_lease
from support.peers import SharedNamespace
from support.waiting import patiently, wait_until

from jobpool.broker.values import MessageFilter, Verb
from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.servicebus import (
    ServiceBusBackend,
    channel,
    internals,
    queue_client,
)
from jobpool_backends.servicebus.channel import Channel

pytestmark = pytest.mark.xdist_group("servicebus-traps")  # the scenes are played once

T = TypeVar("T")

LIMIT = 20.0
"""Seconds: far more than anything here takes."""

CHANNELS = 4
"""Connections that a backend has to one queue, at most."""

SHORT = 0.2
"""Seconds after which a reply that was lost, or a stall, is followed by something else."""


def together(*calls: Callable[[], Any]) -> list[Any]:
    """`patiently` with each, at the same time: to open a connection takes half a second."""
    with ThreadPoolExecutor(len(calls)) as executor:
        return list(executor.map(patiently, calls))


def warm_up(backend: ServiceBusBackend) -> None:
    """Open all its channels."""
    together(
        lambda: backend.enqueue(a_job()),
        lambda: ack(backend, backend.fetch_many(QUEUE, limit=9)),
        lambda: backend.stats(QUEUE),
    )
    backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE)


def ack(backend: ServiceBusBackend, leases: Iterable[JobLease]) -> list[str]:
    """The ids of those of which that was accepted."""
    return [lease.id for lease in leases if patiently(partial(backend.ack, lease))]


def later(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(SHORT, act)
    timer.start()
    return timer


def drain(backend: ServiceBusBackend, control: Control) -> list[str]:
    """Fetch and ack until the queue is empty; the ids."""
    acked: list[str] = []

    def is_empty() -> bool:
        leases = patiently(lambda: backend.fetch_many(QUEUE, limit=9))
        acked.extend(ack(backend, leases))
        if not leases:  # what was on its way over a connection that broke is locked until its time is over
            control.expire_locks(QUEUE)
        return control.counts(QUEUE).empty

    wait_until(is_empty, LIMIT, "an empty queue")
    assert control.counts(QUEUE).dead == 0
    return acked


# --- scenes -------------------------------------------------------------------------------------------------

Scene = Callable[[ServiceBusBackend, Control], None]
SCENES: dict[str, Scene] = {}


def scene(name: str) -> Callable[[Scene], Scene]:
    """One more of them."""

    def add(play: Scene) -> Scene:
        SCENES[name] = play
        return play

    return add


def stall(control: Control) -> None:
    control.stall()
    later(lambda: control.stall(False))


def half_open(control: Control) -> None:
    """What is sent is lost, and nobody is told, until the network says so."""
    control.stall(keep=False)
    later(lambda: (control.stall(False), control.drop_connections()))


def unwelcome(control: Control) -> None:
    """Who comes back is sent away at first."""
    control.fail("attach", times=2, match=QUEUE)
    control.drop_connections()


FAULTS: dict[str, Callable[[Control], object]] = {
    "reset": lambda control: control.drop_connections(),
    "closed by the service": lambda control: control.close_connections(),
    "idle links detached": lambda control: control.detach_links(management=True),
    "failover": lambda control: control.restart(),
    "busy when sent to": lambda control: control.fail("send", times=2),
    "busy when settled": lambda control: control.fail("settle", times=2),
    "busy when managed": lambda control: control.fail("management", times=2),
    "busy when attached to": unwelcome,
    "stall": stall,
    "half-open": half_open,
}


def in_the_middle_of_everything(
    fault: Callable[[Control], object], backend: ServiceBusBackend, control: Control
) -> None:
    """Nothing is lost."""
    known = backend.enqueue_many([a_job(identifier=f"job-{number}") for number in range(4)])
    one, two = backend.fetch_many(QUEUE, limit=2)
    fault(control)
    _, renewed, fetched = together(
        lambda: backend.enqueue(a_job(identifier="during")),
        lambda: backend.renew_many([one, two], 30.0),
        lambda: backend.fetch_many(QUEUE, limit=1),
    )
    assert renewed != [None, None]
    fault(control)
    acked = ack(backend, [one, two, *fetched]) + drain(backend, control)
    assert sorted(set(acked)) == sorted([*known, "during"])


for _name, _fault in FAULTS.items():
    SCENES[_name] = partial(in_the_middle_of_everything, _fault)


@scene("locks that ended with a failover are not a loss")
def failover(backend: ServiceBusBackend, control: Control) -> None:
    ident = backend.enqueue(a_job())
    [lost] = backend.fetch_many(QUEUE, limit=1)
    control.restart(keep_locks=False)
    assert patiently(lambda: backend.renew_many([lost], 30.0)) == [None]
    [again] = wait_until(lambda: patiently(lambda: backend.fetch_many(QUEUE, limit=1)), LIMIT)
    assert again.id == ident
    assert not backend.ack(lost)
    assert backend.ack(again)


@scene("a lost reply to an ack is not a lost lease")
def lost_reply_to_an_ack(backend: ServiceBusBackend, control: Control) -> None:
    """The lock is gone when it is asked for again, because the first request was carried out."""
    lease = new_lease(backend)
    control.lose_replies("settle")
    later(control.drop_connections)
    assert backend.ack(lease)
    assert control.counts(QUEUE).empty


@scene("a reply lost in a call that ended without an answer is not a lost lease for the next")
def lost_reply_and_no_answer(backend: ServiceBusBackend, control: Control) -> None:
    backend.enqueue(a_job())
    with closing(
        ServiceBusBackend.from_url(str(backend.namespace.address.connection_string), timeout=1.0)
    ) as impatient:
        [lease] = patiently(lambda: impatient.fetch_many(QUEUE, limit=1))
        control.lose_replies("settle")
        with pytest.raises(BackendUnavailable, match="did not answer within 1 s"):
            impatient.ack(lease)
        assert control.counts(QUEUE).empty
        assert patiently(partial(impatient.ack, lease))


@scene("a lost reply to a nack makes no second copy")
def lost_reply_to_a_nack(backend: ServiceBusBackend, control: Control) -> None:
    ident = backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    control.lose_replies("settle")
    later(control.drop_connections)
    assert backend.nack(lease)
    [again] = patiently(lambda: backend.fetch_many(QUEUE, limit=9))
    assert (again.id, again.attempts) == (ident, 1)


@scene("a lost reply to a renewal is asked for again")
def lost_reply_to_a_renewal(backend: ServiceBusBackend, control: Control) -> None:
    lease = new_lease(backend)
    control.lose_replies("management")
    later(control.drop_connections)
    assert backend.renew(lease, 30.0).expires_at > lease.expires_at
    assert patiently(lambda: backend.ack(lease))


@scene("a lock that is really gone is not taken for a lost reply")
def really_gone(backend: ServiceBusBackend, control: Control) -> None:
    lease = new_lease(backend)
    control.expire_locks(QUEUE)
    assert not backend.ack(lease)
    assert control.counts(QUEUE).ready == 1


@scene("many threads on breaking connections leave none behind")
def many_threads(backend: ServiceBusBackend, control: Control) -> None:
    known = backend.enqueue_many([a_job(identifier=f"job-{number}") for number in range(60)])
    acked: list[str] = []

    def work(_: int) -> None:
        for _ in range(5):
            leases = patiently(lambda: backend.fetch_many(QUEUE, limit=2))
            patiently(partial(backend.renew_many, leases, 30.0))
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


@scene("management goes on where the service replies no more")
def replies_end(backend: ServiceBusBackend, control: Control) -> None:
    """The SDK gives its management link credit for 10,000 replies, once; after these every call times out."""
    address = backend.namespace.address
    client = ServiceBusClient.from_connection_string(str(address.connection_string), retry_total=0)
    often = Channel(lambda: client.get_queue_receiver(QUEUE), address, QUEUE, most=8)
    control.limit_management_replies(8)

    async def peek_often() -> int:
        for _ in range(20):
            await often.run(lambda receiver: receiver.peek_messages(1, sequence_number=1), time.monotonic() + LIMIT)
        generation = often.generation
        await often.close()
        await client.close()
        return generation

    assert backend.namespace.call(peek_often(), 3 * LIMIT) == 3


def play(act: Scene) -> None:
    """On a peer of its own, with all connections open before; none is left when its backend was closed."""
    with PeerThread() as peer:
        for queue in (QUEUE, "mails"):
            peer.control.create_queue(queue, max_delivery_count=100)
        backend = ServiceBusBackend.from_url(peer.connection_string)
        warm_up(backend)
        act(backend, peer.control)
        peer.control.heal()
        backend.close()
        wait_until(lambda: peer.control.connections() == 0, LIMIT, "no connection left open")


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Future[None]]]:
    with ThreadPoolExecutor(6) as executor:  # of all at once none has its connections soon: each costs a processor much
        yield {name: executor.submit(play, act) for name, act in SCENES.items()}


@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_lost_and_nothing_left_behind(played: dict[str, Future[None]], name: str) -> None:
    played[name].result(6 * LIMIT)


# --- alone --------------------------------------------------------------------------------------------------


@pytest.fixture
def peer(played: dict[str, Future[None]]) -> Iterator[PeerThread]:
    """When all scenes are over."""
    wait(played.values())
    with PeerThread() as peer:
        for queue in (QUEUE, "mails"):
            peer.control.create_queue(queue, max_delivery_count=100)
        yield peer


@pytest.fixture
def backend(peer: PeerThread) -> Iterator[ServiceBusBackend]:
    backend = ServiceBusBackend.from_url(peer.connection_string)
    warm_up(backend)
    yield backend
    backend.close()


def test_a_receiver_whose_token_link_is_gone_does_not_go_deaf(
    backend: ServiceBusBackend, peer: PeerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's receiver then answers on time, for ever, that there is nothing."""
    monkeypatch.setattr(internals, "ROUND_TRIP_LIMIT_S", SHORT)
    ident = backend.enqueue(a_job())
    assert peer.control.detach_links("$cbs", cbs=True) > 0
    [lease] = wait_until(lambda: patiently(lambda: backend.fetch_many(QUEUE, limit=1)), LIMIT)
    assert lease.id == ident
    assert backend.ack(lease)


def test_a_token_that_ended_while_this_machine_slept_is_brought_anew(backend: ServiceBusBackend) -> None:
    """The SDK renews its tokens in time, by the wall clock; and refuses to go on when the time has been leapt over."""
    client = backend.namespace.queue(QUEUE)

    def end_tokens() -> None:
        for opened in (client.sending, client.management, client.receivers[0].channel):
            opened._clients[-1]._cbs_authenticator._expires_on = time.time() - 1

    end_tokens()
    ident = backend.enqueue(a_job())
    [lease] = wait_until(lambda: backend.fetch_many(QUEUE, limit=1), LIMIT)
    assert lease.id == ident
    end_tokens()
    assert backend.renew(lease, 30.0) is not None
    assert backend.ack(lease)


def test_deliveries_that_ran_out_do_not_fill_up_the_session(
    backend: ServiceBusBackend, peer: PeerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker sends nothing to a session that has too many of them open, and the SDK never settles these."""
    monkeypatch.setattr(queue_client, "MAX_UNSETTLED", 2)
    peer.control.limit_unsettled(3)
    clock = ManualClock(wall=time.time())
    forgetful = ServiceBusBackend(SharedNamespace(backend.namespace), clock=clock)
    known = backend.enqueue_many([a_job() for _ in range(3)])
    assert len(forgetful.fetch_many(QUEUE, limit=3)) == 3
    peer.control.expire_locks(QUEUE)
    clock.advance(1000.0)
    again = wait_until(lambda: patiently(lambda: forgetful.fetch_many(QUEUE, limit=3)), LIMIT)
    assert sorted(lease.id for lease in again) == sorted(known)


def test_a_broken_connection_is_one_line_of_ours_and_none_of_the_sdks(
    backend: ServiceBusBackend, peer: PeerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs them as warnings, and as errors with a traceback; both are got over."""
    management = backend.namespace.queue(QUEUE).management
    with caplog.at_level(logging.INFO):
        peer.control.detach_links(management=True)
        assert (
            backend.namespace.call(management.run(lambda receiver: receiver.peek_messages(1, sequence_number=1))) == []
        )
        peer.control.close_connections()
        assert backend.fetch_many(QUEUE, limit=1) == []
    sdks = [record for record in caplog.records if record.name.startswith("azure") and record.levelno > logging.INFO]
    assert [record.getMessage() for record in sdks] == []
    assert [record for record in caplog.records if record.name == "jobpool.servicebus"]


def test_an_outage_is_told_by_who_calls_and_not_by_each_attempt(
    peer: PeerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(ServiceBusBackend.from_url(peer.connection_string, timeout=0.5)) as backend:
        peer.control.refuse()
        with caplog.at_level(logging.INFO), pytest.raises(BackendUnavailable):
            backend.fetch_many(QUEUE, limit=1)
    assert [record.getMessage() for record in caplog.records if record.name == "jobpool.servicebus"] == []


def test_a_connection_that_was_cut_short_while_it_was_opened_is_not_left_behind(
    peer: PeerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK forgets it, and it would stay open for as long as the other side likes."""
    before = peer.control.connections()

    async def hang(_: object) -> None:
        await asyncio.sleep(LIMIT)

    monkeypatch.setattr(Connection, "_outgoing_open", hang)
    with closing(ServiceBusBackend.from_url(peer.connection_string, timeout=0.3)) as backend:
        with pytest.raises(BackendUnavailable, match="did not answer"):
            backend.fetch_many(QUEUE, limit=1)
        wait_until(lambda: peer.control.connections() <= before, LIMIT, "as many connections as before")


def test_closing_does_not_wait_for_a_service_that_is_silent(peer: PeerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its calls may take: what it got while it waited is not given back then, and runs out."""
    monkeypatch.setattr(queue_client, "GIVE_BACK_LIMIT_S", SHORT)
    monkeypatch.setattr(channel, "CLOSE_LIMIT_S", SHORT)
    backend = ServiceBusBackend.from_url(peer.connection_string, timeout=3600.0)
    backend.enqueue(a_job())
    assert backend.wait_any([QUEUE], LIMIT) == QUEUE
    peer.control.stall()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(backend.close).result(LIMIT)
    peer.control.stall(False)
    wait_until(lambda: peer.control.connections() == 0, LIMIT, "no connection left open")


# --- fork ---------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_and_disturbs_nobody(backend: ServiceBusBackend, peer: PeerThread) -> None:
    mine = backend.enqueue(a_job("mine"))
    [lease] = backend.fetch_many(QUEUE, limit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that the parent has threads is what this is about
        pid = os.fork()
    if pid == 0:
        os._exit(in_child(backend, lease))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (lease.id, backend.renew(lease, 30.0).id) == (mine, mine)
    assert backend.ack(lease) is Settled.OK
    assert peer.control.counts(QUEUE).empty


def in_child(backend: ServiceBusBackend, held: JobLease) -> int:
    """The exit status of a child that uses what it has inherited, and closes it."""
    try:
        for use in (lambda: backend.ack(held), lambda: backend.enqueue(a_job("theirs", queue="mails"))):
            with pytest.raises(ConfigurationError, match="before a fork"):
                use()
        backend.close()
    except BaseException:  # noqa: BLE001 - whatever it is, the parent is to see its status
        return 2
    return 0
