"""Waiting for messages of beanstalkd: nobody polls, nobody plays ping-pong, and what was reserved is given back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import greenstalk
import pytest
from beanstalk_clients import Clients, one
from support.jobs import QUEUE, a_job
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool.message.settlement import Ack
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.beanstalk.wait import RESERVE_S
from jobpool_torture.network import Proxy


def reserves(clients: Clients) -> int:
    return clients.raw.stats()["cmd-reserve-with-timeout"]


def watching(clients: Clients) -> bool:
    """Whether somebody's reserve waits for the queue."""
    return clients.raw.stats_tube(clients.prefix + QUEUE)["current-waiting"] > 0


# --- what is found ---------------------------------------------------------------------------------------------


def test_what_a_wait_found_is_fetched_without_another_reserve_of_it_and_what_else_there_is(clients: Clients) -> None:
    backend = clients.open()
    backend.enqueue(a_job())
    assert backend.wait_any(["mails", QUEUE], 5.0) == QUEUE
    assert clients.counts() == (0, 0, 1, 0)
    [lease] = backend.fetch_many(QUEUE, limit=1)
    assert (lease.deliveries, lease.crashes) == (1, 0)
    assert clients.about(lease)["reserves"] == 1
    assert backend.ack(lease)
    backend.enqueue_many([a_job(n) for n in range(5)])
    backend.wait_any([QUEUE], 5.0)
    assert [lease.envelope.payload for lease in backend.fetch_many(QUEUE, limit=9)] == [0, 1, 2, 3, 4]


# --- what nobody fetches -----------------------------------------------------------------------------------------


def test_what_comes_when_nobody_waits_any_more_is_released_at_once(clients: Clients) -> None:
    backend, other = clients.open(), clients.open()
    wait_until(lambda: backend.wait_any([QUEUE], 0.02) is None and watching(clients))
    other.enqueue(a_job())  # the reserve goes on for up to a second
    [lease] = wait_until(lambda: other.fetch_many(QUEUE, limit=1))
    assert clients.about(lease)["releases"] == lease.deliveries - 1 == 1
    assert lease.crashes == 0
    assert backend.wait_any([QUEUE], 0.01) == QUEUE, "a hint, for who waits in glances"
    assert backend.wait_any([QUEUE], 0.01) is None


def test_a_close_gives_back_what_was_found(clients: Clients) -> None:
    backend, other = clients.open(), clients.open()
    backend.enqueue(a_job())
    assert backend.wait_any([QUEUE], 5.0) == QUEUE
    backend.close()
    [lease] = wait_until(lambda: other.fetch_many(QUEUE, limit=1))
    assert (lease.crashes, clients.about(lease)["releases"]) == (0, 1)


def test_a_found_message_that_waited_long_has_its_whole_lease_when_it_is_fetched() -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=10)
        backend.enqueue(a_job())
        assert clients.clock
        assert backend.wait_any([QUEUE], 5.0) == QUEUE
        clients.advance(4.0)
        assert one(backend).expires_at == clients.clock.boot() + 10.0


# --- quiet ---------------------------------------------------------------------------------------------------


def test_waits_in_a_row_cost_one_command_a_second(clients: Clients) -> None:
    backend = clients.open()
    backend.wait_any([QUEUE], 0.01)
    before, began, used = reserves(clients), time.monotonic(), time.process_time()
    while time.monotonic() - began < 0.3:
        assert backend.wait_any([QUEUE], 0.03) is None
    assert reserves(clients) - before <= 2 + time.monotonic() - began
    assert time.process_time() - used < 0.3 * (time.monotonic() - began)


def test_a_lease_in_its_last_second_makes_nobody_spin() -> None:
    with Clients(turned=True) as clients:  # its last second lasts for as long as the test
        backend = clients.open(ttr=10)
        backend.enqueue(a_job())
        lease = one(backend)
        clients.advance(9.5)
        assert soon(backend)
        before = reserves(clients)
        for _ in range(5):
            assert backend.fetch_many(QUEUE, limit=1) == []
            assert backend.wait_any([QUEUE], 0.03) is None
        assert reserves(clients) - before <= 5 + 2
        assert backend.ack(lease)


def soon(backend: BeanstalkBackend) -> bool:
    """Whether the connection that holds leases is told that one is about to end."""
    with backend._connections.fetching() as connection:
        [answer] = connection.burst([b"reserve-with-timeout 0"])
    return isinstance(answer, greenstalk.DeadlineSoonError)


def test_a_lease_that_nobody_knows_of_makes_nobody_spin(clients: Clients) -> None:
    backend = clients.open()
    clients.raw.put(b"x", ttr=1)
    with backend._connections.spare() as connection:
        connection.watch([clients.prefix + QUEUE])
        connection.burst([b"reserve-with-timeout 0"])
    before = reserves(clients)
    assert backend.wait_any([QUEUE], 5.0) == QUEUE, "the connection was closed, and the next one found it"
    assert reserves(clients) <= before + 2


def test_a_ready_message_is_fetched_though_a_lease_is_in_its_last_second() -> None:
    with Clients(turned=True) as clients:
        backend = clients.open(ttr=10)
        backend.enqueue(a_job(1))
        first = one(backend)
        clients.advance(9.5)
        backend.enqueue(a_job(2))
        second = one(backend)
        assert all(backend.settle_many([(first, Ack()), (second, Ack())]))


def test_who_holds_leases_never_waits_behind_a_reserve(clients: Clients) -> None:
    backend = clients.open()
    backend.enqueue(a_job())
    lease = one(backend)
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(backend.wait_any, [QUEUE], 30.0)
        wait_until(lambda: watching(clients))
        asked = Stopwatch()
        assert all(backend.renew_many([lease], 30.0))
        assert backend.ack(lease)
        assert asked.seconds() < RESERVE_S / 2
        assert not waiter.done()
        backend.close()
        assert waiter.result(5.0) is None


# --- trouble -------------------------------------------------------------------------------------------------


def test_who_waits_is_told_of_a_break_and_waits_again_when_it_is_over(clients: Clients) -> None:
    with Proxy(clients.server.host, clients.server.port) as proxy:
        backend = clients.open(f"beanstalk://{proxy.host}:{proxy.port}")
        with ThreadPoolExecutor(2) as executor:
            waiters = [executor.submit(backend.wait_any, [QUEUE], 10.0) for _ in range(2)]
            wait_until(lambda: watching(clients))
            proxy.refuse()
            proxy.cut()
            for waiter in waiters:
                with pytest.raises(BackendUnavailable, match=r"closed the connection|refuses connections"):
                    waiter.result(5.0)
        with pytest.raises(BackendUnavailable, match=r"closed the connection|refuses connections"):
            backend.wait_any([QUEUE], 0.5)
        proxy.restore()
        clients.open().enqueue(a_job())
        assert backend.wait_any([QUEUE], 5.0) == QUEUE
        assert backend.lost() == [], "nobody had fetched anything"
