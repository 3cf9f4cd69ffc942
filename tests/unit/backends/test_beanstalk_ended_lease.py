"""beanstalkd 1.12 can forget a lease that ran out, until its holder speaks or hangs up: so a holder that lives does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.jobs import QUEUE, a_job, new_lease
from support.servers import fresh_name, shared_beanstalk
from support.waiting import wait_until

from jobpool.clock import ManualClock
from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk import BeanstalkBackend

TTR = 30.0


@pytest.fixture
def pair(clock: ManualClock) -> Iterator[tuple[BeanstalkBackend, BeanstalkBackend]]:
    """Two clients of the same queue, on a server whose clock stands still."""
    server = shared_beanstalk(turned=True)
    server.turn_to(clock.wall())
    prefix = fresh_name()
    pair = [BeanstalkBackend.from_url(server.url, clock=clock, tube_prefix=prefix, ttr=TTR) for _ in range(2)]
    yield pair[0], pair[1]
    for backend in pair:
        backend.close()


def let_it_end(clock: ManualClock, seconds: float = TTR) -> None:
    """Time lands on the deadline itself, where the server forgets the lease."""
    clock.advance(seconds)
    shared_beanstalk(turned=True).turn_to(clock.wall())
    clock.advance(1.0)
    shared_beanstalk(turned=True).turn_to(clock.wall())


def soon(backend: BeanstalkBackend) -> JobLease:
    """What it leases as soon as the server has heard that the holder hung up."""
    [lease] = wait_until(lambda: backend.fetch_many(QUEUE, limit=1))
    return lease


def test_what_a_living_holder_let_end_goes_to_others(
    clock: ManualClock, pair: tuple[BeanstalkBackend, BeanstalkBackend]
) -> None:
    holder, other = pair
    lease = new_lease(holder)
    let_it_end(clock)
    assert other.fetch_many(QUEUE, limit=1) == [], "forgotten"
    assert holder.lost() == []  # as a pool asks all the time
    again = soon(other)
    assert (again.id, again.crashes, again.deliveries) == (lease.id, 1, 2)
    assert not holder.ack(lease)
    assert other.ack(again)


def test_the_holder_itself_can_fetch_it_again(
    clock: ManualClock, pair: tuple[BeanstalkBackend, BeanstalkBackend]
) -> None:
    holder, _ = pair
    lease = new_lease(holder)
    let_it_end(clock)
    holder.lost()
    again = soon(holder)
    assert again.id == lease.id
    assert not holder.ack(lease)
    assert holder.ack(again)


def test_other_leases_of_the_holder_go_on(clock: ManualClock, pair: tuple[BeanstalkBackend, BeanstalkBackend]) -> None:
    holder, other = pair
    holder.enqueue_many([a_job("ends"), a_job("goes on")])
    first, second = holder.fetch_many(QUEUE, limit=2)
    clock.advance(TTR / 2)
    shared_beanstalk(turned=True).turn_to(clock.wall())
    [renewed] = holder.renew_many([second], TTR)
    assert renewed is not None
    let_it_end(clock, TTR / 2)
    assert holder.lost() == []
    [renewed] = holder.renew_many([renewed], TTR)
    assert renewed is not None
    again = soon(other)
    assert again.id == first.id
    assert holder.ack(renewed)
    assert other.ack(again)
