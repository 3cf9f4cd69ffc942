"""What a call costs does not grow with what else is there: the commands that it sends, and how much is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from support.jobs import QUEUE, a_job, at
from support.servers import fresh_name, shared_beanstalk

from jobpool.broker.values import State
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settlement
from jobpool_backends.beanstalk import BeanstalkBackend

FEW, MANY = 20, 400
BATCH = 20

Work = Callable[[BeanstalkBackend], object]


@pytest.fixture
def backend() -> Iterator[BeanstalkBackend]:
    with closing(BeanstalkBackend.from_url(shared_beanstalk().url, tube_prefix=f"{fresh_name()}.")) as backend:
        yield backend


def fill(backend: BeanstalkBackend, count: int, state: State) -> None:
    """So many messages in this state, behind those that a test works on."""
    due = at(4e9) if state is State.DELAYED else None
    first = 0 if state is State.DEAD else 9
    backend.enqueue_many([a_job("x", priority=first, scheduled_at=due) for _ in range(count)])
    while state is State.DEAD and (leases := backend.fetch_many(QUEUE, limit=500)):
        backend.settle_many([(lease, Abandon("failed")) for lease in leases])


def take(backend: BeanstalkBackend) -> list[JobLease]:
    leases = backend.fetch_many(QUEUE, limit=BATCH)
    assert len(leases) == BATCH
    return leases


def settled_as(settlement: Settlement) -> Work:
    def work(backend: BeanstalkBackend) -> None:
        assert all(backend.settle_many([(lease, settlement) for lease in take(backend)]))

    return work


def reaped(backend: BeanstalkBackend) -> None:
    """It reaps by itself; what the verb does is to give back what was forfeited."""
    leases = take(backend)
    backend.renew_many(leases, 30.0)
    backend.reap(QUEUE)
    backend.settle_many([(lease, Ack()) for lease in leases])


def look(backend: BeanstalkBackend) -> None:
    backend.stats(QUEUE)
    backend.wait_any([QUEUE], 0.0)
    backend.queues()


WORK: dict[str, Work] = {
    "ack": settled_as(Ack()),
    "nack": settled_as(Nack(60.0, "boom")),
    "abandon": settled_as(Abandon("x", "boom")),
    "release": settled_as(Release(60.0)),
    "renew and reap": reaped,
    "look": look,
}


@pytest.mark.parametrize("state", [State.WAITING, State.DELAYED, State.DEAD])
def test_the_commands_are_the_same_among_few_and_among_many(backend: BeanstalkBackend, state: State) -> None:
    fill(backend, FEW, state)
    costs(backend)  # opens the connections
    few = costs(backend)
    fill(backend, MANY - FEW, state)
    assert costs(backend) == few


def costs(backend: BeanstalkBackend) -> dict[str, Counter[str]]:
    return {name: cost(backend, work) for name, work in WORK.items()}


def cost(backend: BeanstalkBackend, work: Work) -> Counter[str]:
    """What the server was asked; the looks with which we count are the same each time."""
    backend.enqueue_many([a_job(number) for number in range(BATCH)])
    before = commands()
    work(backend)
    return commands() - before


def commands() -> Counter[str]:
    """How often the server has carried out each."""
    with shared_beanstalk().client() as client:
        counted = client.stats()
    return Counter({name: int(count) for name, count in counted.items() if name.startswith("cmd-")})  # type: ignore[call-overload]
