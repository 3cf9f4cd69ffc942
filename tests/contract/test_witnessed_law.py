"""A backend under the witness of a torture does what it did, and all that it answers to a pool is in the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from support.accounts import count
from support.claims import AT_ONCE
from support.harness import Harness
from support.jobs import QUEUE, a_job
from support.looks import recover

from jobpool.broker.backend import QueueBackend
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settled, Settlement
from jobpool_torture.ledger import Ledger, Line
from jobpool_torture.witness import Witness

pytestmark = pytest.mark.needs("leases")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def witnessed(backend: QueueBackend, ledger: Ledger, harness: Harness) -> QueueBackend:
    return cast(QueueBackend, Witness(backend, ledger.path, clock=getattr(harness, "clock", None)))


def of(ledger: Ledger, event: str) -> list[Line]:
    return [line for line in ledger.read() if line.event == event]


@pytest.mark.spans
@pytest.mark.parametrize("end", [Ack(), Abandon("no such customer")])
def test_the_oracle_agrees_with_every_broker(
    harness: Harness, witnessed: QueueBackend, ledger: Ledger, end: Settlement
) -> None:
    ident = witnessed.enqueue(a_job(max_retries=9))
    for settlement in (Nack(), Release(), None, Nack(), end):
        [lease] = witnessed.fetch_many(QUEUE, limit=1, ttl=1.0)
        if settlement is None:
            recover(harness, witnessed, 1.0, AT_ONCE)
        else:
            assert witnessed.settle_many([(lease, settlement)]) == [Settled.OK]

    account = count(ledger.read(), [ident], witnessed.list_messages(), can=witnessed.capabilities)
    account.assert_clean()
    assert not account.excused
    assert [line.fence for line in of(ledger, "fetched")] == sorted({line.fence for line in of(ledger, "fetched")})
    assert of(ledger, "fetched")[-1].attempt == 3
