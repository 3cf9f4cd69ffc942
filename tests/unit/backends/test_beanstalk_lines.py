"""Connections to beanstalkd: who owns what, what a break costs, and what never reaches the server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest
from beanstalk_clients import Clients, one
from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Nack
from jobpool_backends.beanstalk.connections import MAX_IDLE, MAX_LEASES_PER_CONNECTION
from jobpool_torture.network import Proxy


@pytest.fixture
def proxy(clients: Clients) -> Iterator[Proxy]:
    with Proxy(clients.server.host, clients.server.port) as proxy:
        yield proxy


def address(proxy: Proxy) -> str:
    return f"beanstalk://{proxy.host}:{proxy.port}"


def lost(backend: QueueBackend) -> list[JobLease]:
    return wait_until(backend.lost, what="a lost lease")


# --- a connection that breaks --------------------------------------------------------------------------------------


def test_a_broken_line_loses_all_its_leases_at_once_and_loudly(
    clients: Clients, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    backend = clients.open(address(proxy))
    backend.enqueue_many([a_job(n) for n in range(3)])
    leases = backend.fetch_many(QUEUE, limit=3)
    requests = proxy.counts().requests
    proxy.cut()
    with caplog.at_level(logging.WARNING, "jobpool.beanstalk"):
        assert {lease.id for lease in lost(backend)} == {lease.id for lease in leases}
    [warning] = caplog.messages
    assert "3 leases" in warning
    assert backend.lost() == []
    assert backend.renew_many(leases, 30.0) == [None] * 3
    assert not any(backend.settle_many([(lease, Ack()) for lease in leases]))
    assert proxy.counts().requests == requests, "nothing of a lost lease reaches the server"
    again = clients.open().fetch_many(QUEUE, limit=9)
    assert [(lease.id, lease.crashes, lease.deliveries) for lease in again] == [(lease.id, 1, 2) for lease in leases]


def test_a_renewal_that_meets_the_break_answers_that_the_leases_are_lost(clients: Clients, proxy: Proxy) -> None:
    backend = clients.open(address(proxy))
    backend.enqueue(a_job())
    lease = one(backend)
    proxy.drop_replies(1, match="touch")
    assert backend.renew_many([lease], 30.0) == [None]
    assert [found.id for found in backend.lost()] == [lease.id]


def test_a_nack_whose_last_answer_is_lost_stands_for_the_copy_is_there(clients: Clients, proxy: Proxy) -> None:
    backend = clients.open(address(proxy))
    backend.enqueue(a_job())
    lease = one(backend)
    proxy.drop_replies(1, match="delete")
    assert backend.nack(lease, error="boom")
    assert one(clients.open()).attempts == 1
    assert clients.counts() == (0, 0, 1, 0)


def test_a_silent_server_is_given_up_after_the_timeout(clients: Clients, proxy: Proxy) -> None:
    backend = clients.open(address(proxy), timeout=0.2)
    backend.enqueue(a_job())
    lease = one(backend)
    proxy.black_hole()
    with pytest.raises(BackendUnavailable, match=r"did not answer within 0\.2 s"):
        backend.ack(lease)
    proxy.restore()
    assert [found.id for found in backend.lost()] == [lease.id]
    backend.ping()


def test_a_kept_line_that_died_meanwhile_is_replaced_without_a_word(clients: Clients, proxy: Proxy) -> None:
    backend = clients.open(address(proxy))
    backend.enqueue(a_job())
    for _ in range(3):
        connections = proxy.counts().connections
        proxy.cut()
        backend.enqueue(a_job())
        assert proxy.counts().connections == connections + 1


# --- deadlines -------------------------------------------------------------------------------------------------


def test_a_lease_that_has_ended_here_is_refused_without_asking_and_its_line_gives_it_back() -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=5)
        backend.enqueue(a_job())
        lease = one(backend)
        assert clients.clock
        clients.clock.advance(5.0)  # the server's clock stands still: it would take an ack
        deletes = clients.raw.stats()["cmd-delete"]
        assert not backend.ack(lease)
        assert not backend.nack(lease)
        assert backend.renew_many([lease], 5.0) == [None]
        assert clients.raw.stats()["cmd-delete"] == deletes
        assert backend.lost() == [], "it was not lost before its time"
        wait_until(lambda: clients.counts() == (1, 0, 0, 0), what="a connection without living leases is closed")


def test_a_lease_lasts_from_before_the_reserve_for_the_jobs_own_ttr() -> None:
    with Clients(turned=True) as clients:
        clients.open(ttr=7).enqueue(a_job())
        backend = clients.open(ttr=90)
        assert clients.clock
        lease = backend.fetch_many(QUEUE, limit=1, ttl=500.0)[0]
        assert lease.expires_at == clients.clock.boot() + 7.0
        clients.advance(4.0)
        assert backend.renew(lease, 500.0).expires_at == clients.clock.boot() + 7.0
        clients.advance(6.0)
        assert backend.ack(lease)


# --- many connections ------------------------------------------------------------------------------------------------


def test_a_refusal_of_ours_is_told_as_it_is_and_the_line_is_kept(clients: Clients) -> None:
    backend = clients.open()
    backend.ping()
    before = clients.raw.stats()["total-connections"]
    with pytest.raises(InvalidJob, match="too large for me"), backend._connections.spare():
        raise InvalidJob("too large for me")
    backend.ping()
    assert clients.raw.stats()["total-connections"] == before


def test_settlements_of_one_call_go_to_the_lines_that_own_them(clients: Clients) -> None:
    backend = clients.open()
    leases = []
    for number in range(4):  # each is prefetched on a connection of its own by whoever waits
        backend.enqueue(a_job(number))
        assert wait_until(lambda: backend.wait_any([QUEUE], 5.0)) == QUEUE
        leases += backend.fetch_many(QUEUE, limit=1)
    assert all(backend.renew_many(leases, 30.0))
    first, second, third, fourth = leases
    answers = backend.settle_many([(fourth, Ack()), (first, Nack()), (third, Ack()), (second, Ack()), (second, Ack())])
    assert [bool(answer) for answer in answers] == [True, True, True, True, False]
    assert one(backend).id == first.id


def test_idle_lines_beyond_a_few_are_closed(clients: Clients) -> None:
    backend = clients.open()
    taken = [backend._connections.take_idle() for _ in range(MAX_IDLE + 3)]
    for connection in taken:
        with backend._connections.lending(connection):
            connection.burst([b"list-tube-used"])
    assert sum(not connection.broken for connection in taken) == MAX_IDLE


def test_fetches_prefer_the_line_that_holds_leases_already(clients: Clients, proxy: Proxy) -> None:
    backend = clients.open(address(proxy))
    backend.enqueue_many([a_job(n) for n in range(20)])
    connections = proxy.counts().connections
    assert sum(len(backend.fetch_many(QUEUE, limit=4)) for _ in range(5)) == 20
    assert proxy.counts().connections <= connections + 1


def test_a_line_with_many_leases_gets_no_more(clients: Clients) -> None:
    backend = clients.open()
    backend.enqueue_many([a_job(n) for n in range(2 * MAX_LEASES_PER_CONNECTION)])
    leases = [lease for _ in range(2) for lease in backend.fetch_many(QUEUE, limit=MAX_LEASES_PER_CONNECTION)]
    holding = [len(connection.held) for connection in backend._connections._open if connection.held]
    assert holding == [MAX_LEASES_PER_CONNECTION] * 2
    assert all(backend.renew_many(leases, 30.0))
    assert all(backend.settle_many([(lease, Ack()) for lease in leases]))
    assert clients.counts() == (0, 0, 0, 0)


# --- the end, and forks ------------------------------------------------------------------------------------------


def test_after_a_fork_the_child_is_refused_and_the_parents_leases_stand(clients: Clients) -> None:
    backend = clients.open()
    backend.enqueue(a_job())
    lease = one(backend)
    held = backend._connections.owner(lease)
    assert held
    backend._prefetched.put([held])  # as it is when somebody waited for it
    child = os.fork()
    if child == 0:  # whatever happens here, it must not return into pytest
        os._exit(_told(backend, lease))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.lost() == []
    assert backend.fetch_many(QUEUE, limit=1) == [lease]
    assert backend.ack(lease)


def _told(backend: QueueBackend, lease: JobLease) -> int:
    """0: every call is refused, and told why."""
    calls = (lambda: backend.fetch_many(QUEUE, limit=1), lambda: backend.ack(lease), lambda: backend.renew(lease, 1.0))
    try:
        refused = [_is_refused(call) for call in (*calls, lambda: backend.wait_any([QUEUE], 0.1), backend.lost)]
        backend.close()
        return 0 if all(refused) else 1
    except BaseException:  # noqa: BLE001 - its status tells
        return 2


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConfigurationError as error:
        return "after the fork" in str(error)
    return False
