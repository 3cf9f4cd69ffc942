"""What a client of a broker is told, and gets, when the reply to its call was lost on the way.

Pools whose replies are lost: tests/faults/test_dropped_replies.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.outages import insist
from support.poolrig import Rig
from support.poolrig_brokers import Broker, Host

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.errors import BackendUnavailable
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settled, Settlement

NOW_AND_THEN = 0.2
"""The share of replies that are lost."""


@pytest.fixture
def host(broker: Broker) -> Host:
    return broker.host()


@pytest.fixture
def client(host: Host) -> Iterator[QueueBackend]:
    """A backend whose network can fail, and which has made every call before."""
    backend = open_backend(host.url)
    backend.enqueue(JobDefinition("work", {}))
    backend.enqueue_many([JobDefinition("work", {})] * 2)
    leases = backend.fetch_many("default", limit=3)
    backend.release(leases[0])
    leases[0] = backend.fetch_many("default", limit=1)[0]
    backend.settle_many([(lease, Ack()) for lease in leases])
    yield backend
    backend.close()


def test_a_repeated_settlement_is_answered_already(rig: Rig, host: Host, client: QueueBackend) -> None:
    ids = rig.enqueue_many("work", [{}] * 4)
    leases = client.fetch_many("default", limit=4, ttl=30)
    settlements: list[Settlement] = [Ack(), Nack(0.0, "no"), Abandon("no", "no"), Release(0.0)]
    host.proxy.drop_replies(1)
    answers = insist(lambda: client.settle_many(list(zip(leases, settlements, strict=True)), call_id="mine"))
    assert host.proxy.counts().dropped == 1
    assert answers == [Settled.ALREADY] * 4
    assert rig.backend.inspect(ids[0]) is None
    assert [rig.inspect(ident).attempts for ident in ids[1:]] == [1, 0, 0]
    assert (rig.stats().waiting, rig.stats().dead, rig.stats().leased) == (2, 1, 0)


def test_a_repeated_fetch_gets_the_same_leases(rig: Rig, host: Host, client: QueueBackend) -> None:
    ids = rig.enqueue_many("work", [{}] * 5)
    host.proxy.drop_replies(1)
    leases = insist(lambda: client.fetch_many("default", limit=3, ttl=30, fetch_id="mine"))
    assert host.proxy.counts().dropped == 1
    assert [lease.id for lease in leases] == ids[:3]
    assert (rig.stats().leased, rig.stats().waiting) == (3, 2)
    assert {lease.deliveries for lease in leases} == {1}
    assert {client.ack(lease) for lease in leases} == {Settled.OK}


def test_a_repeated_enqueue_makes_no_duplicate(rig: Rig, host: Host, client: QueueBackend) -> None:
    jobs = [JobDefinition("work", {}, identifier=f"given-{number}") for number in range(30)]
    host.proxy.drop_replies(1)
    assert insist(lambda: client.enqueue_many(jobs)) == [job.identifier for job in jobs]
    assert host.proxy.counts().dropped == 1
    assert rig.stats().waiting == 30


def test_an_enqueue_whose_reply_is_lost_is_there_once_or_says_so(rig: Rig, host: Host, client: QueueBackend) -> None:
    """With ids that jobpool mints the caller cannot insist; what it is told must be true."""
    host.proxy.drop_replies(share=NOW_AND_THEN, seed=7)
    told, untold = 0, 0
    for _ in range(60):
        try:
            client.enqueue(JobDefinition("work", {}))
        except BackendUnavailable:
            untold += 1
        else:
            told += 1
    assert host.proxy.counts().dropped > 3
    assert told <= rig.stats().waiting <= told + untold
