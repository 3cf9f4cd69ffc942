"""A backend under the witness of a torture does what it did, and all that it answers to a pool is in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from support.accounts import count
from support.harness import Harness
from support.jobs import QUEUE, a_job, new_lease, numbered

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settled, Settlement
from jobpool_torture.ledger import Ledger, Line
from jobpool_torture.witness import Witness

pytestmark = pytest.mark.needs("leases")

AT_ONCE = ReapPolicy(back_off=0.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def witnessed(backend: QueueBackend, ledger: Ledger, harness: Harness) -> QueueBackend:
    return cast(QueueBackend, Witness(backend, ledger.path, clock=getattr(harness, "clock", None)))


def of(ledger: Ledger, event: str) -> list[Line]:
    return [line for line in ledger.read() if line.event == event]


def test_fetches_and_settlements(witnessed: QueueBackend, ledger: Ledger) -> None:
    ids = witnessed.enqueue_many(numbered(4))
    leases = witnessed.fetch_many(QUEUE, limit=4)
    verbs: list[Settlement] = [Ack(), Nack(), Abandon("rejected"), Release()]
    answers = witnessed.settle_many(list(zip(leases, verbs, strict=True)))

    assert answers == [Settled.OK] * 4
    assert [(line.id, line.fence, line.attempt, line.crashes) for line in of(ledger, "fetched")] == [
        (lease.id, lease.deliveries, lease.attempts + 1, lease.crashes) for lease in leases
    ]
    assert [line.verb for line in of(ledger, "asked")] == ["ack", "nack", "abandon", "release"]
    assert [(line.id, line.answer) for line in of(ledger, "settled")] == [(lease.id, "ok") for lease in leases]
    assert {lease.id for lease in leases} == set(ids)


def test_leases_that_were_lost(witnessed: QueueBackend, ledger: Ledger) -> None:
    lease = new_lease(witnessed)
    witnessed.ack(lease)

    assert witnessed.renew_many([lease], 30.0) == [None]
    assert [(line.id, line.verb) for line in of(ledger, "lost")] == [(lease.id, "renew")]


@pytest.mark.lacks("native_reap")
def test_what_was_reaped(harness: Harness, witnessed: QueueBackend, ledger: Ledger) -> None:
    ident = witnessed.enqueue(a_job())
    witnessed.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    witnessed.reap(QUEUE, AT_ONCE)

    assert [(line.id, line.crashes, line.answer) for line in of(ledger, "reaped")] == [(ident, 1, "back")]


def fail(backend: QueueBackend, _: Harness) -> None:
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.nack(lease)


def give_back(backend: QueueBackend, _: Harness) -> None:
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.release(lease)


def crash(backend: QueueBackend, harness: Harness) -> None:
    backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    harness.expire_leases(1.0)
    backend.reap(QUEUE, AT_ONCE)


def die(backend: QueueBackend, _: Harness) -> None:
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.abandon(lease, "no such customer")


def finish(backend: QueueBackend, _: Harness) -> None:
    [lease] = backend.fetch_many(QUEUE, limit=1)
    backend.ack(lease)


@pytest.mark.spans
@pytest.mark.parametrize("end", [finish, die])
def test_the_oracle_agrees_with_every_broker(
    harness: Harness,
    witnessed: QueueBackend,
    ledger: Ledger,
    end: Callable[[QueueBackend, Harness], None],
) -> None:
    ident = witnessed.enqueue(a_job(max_retries=9))
    for step in (fail, give_back, crash, fail, end):
        step(witnessed, harness)

    account = count(ledger.read(), [ident], witnessed.list_messages(), can=witnessed.capabilities)
    account.assert_clean()
    assert not account.excused
    assert [line.fence for line in of(ledger, "fetched")] == sorted({line.fence for line in of(ledger, "fetched")})
    assert of(ledger, "fetched")[-1].attempt == 3
