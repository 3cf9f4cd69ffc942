"""An enqueue and an ack on a connection of the caller's own: what its transaction decides, and never without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pkgutil import resolve_name
from typing import Any

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job

from jobpool.broker.backend import QueueBackend
from jobpool.errors import ConfigurationError
from jobpool.message.settlement import Settled

pytestmark = pytest.mark.needs("enqueue_in_transaction", "ack_in_transaction")

REFUSED = "the connection is in autocommit, with no transaction open: "


@pytest.fixture
def autocommit(harness: Harness) -> Iterator[Any]:
    with closing(harness.own_connection(autocommit=True)) as connection:
        yield connection


def test_an_enqueue_in_autocommit_is_refused_without_a_transaction(backend: QueueBackend, autocommit: Any) -> None:
    with pytest.raises(ConfigurationError, match=REFUSED):
        backend.enqueue_in(autocommit, [a_job()])
    assert backend.stats(QUEUE).waiting == 0


def test_an_ack_in_autocommit_is_refused_without_a_transaction(backend: QueueBackend, autocommit: Any) -> None:
    backend.enqueue(a_job())
    [lease] = backend.fetch_many(QUEUE, limit=1)
    ticket = backend.ticket(lease)
    with pytest.raises(ConfigurationError, match=REFUSED):
        resolve_name(str(ticket["ack"]))(autocommit, ticket, [backend.pack(a_job("next"))])
    assert backend.stats(QUEUE).waiting == 0
    assert backend.ack(lease) is Settled.OK


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_is_open_in_autocommit_decides(backend: QueueBackend, autocommit: Any, end: str) -> None:
    autocommit.execute("BEGIN")
    backend.enqueue_in(autocommit, [a_job()])
    assert backend.stats(QUEUE).waiting == 0
    autocommit.execute(end)
    assert backend.stats(QUEUE).waiting == (end == "COMMIT")


def test_without_autocommit_a_transaction_begins_by_itself(harness: Harness, backend: QueueBackend) -> None:
    with closing(harness.own_connection()) as connection:
        backend.enqueue_in(connection, [a_job()])
        assert backend.stats(QUEUE).waiting == 0
        connection.commit()
    assert backend.stats(QUEUE).waiting == 1
