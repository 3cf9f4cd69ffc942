"""A backend under the witness of a torture does what it did, and all that it answers to a pool is in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from support.accounts import count
from support.harness import Harness
from support.jobs import QUEUE, a_job

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import ReapPolicy
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
