"""What people ask of all pools at once: pauses of queues, told by one client and read by another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.harness import Harness

from jobpool.broker import control
from jobpool.broker.backend import QueueBackend
from jobpool.errors import InvalidJob

pytestmark = pytest.mark.needs("key_store")

QUEUE = "reports"


def paused(backend: QueueBackend) -> dict[str, control.Pause]:
    return control.read(backend).paused


def test_a_pause_by_one_client_is_read_by_another_until_it_is_resumed(harness: Harness) -> None:
    backend, other = harness.open(), harness.open()
    assert paused(other) == {}
    made = control.pause(backend, QUEUE, "the printer burns")
    assert (made.queue, made.reason, made.until) == (QUEUE, "the printer burns", None)
    control.pause(backend, "mails")
    assert paused(other).keys() == {QUEUE, "mails"}
    assert paused(other)[QUEUE] == made
    assert control.resume(other, QUEUE) is True
    assert control.resume(backend, QUEUE) is False
    assert paused(backend).keys() == {"mails"}


def test_a_second_pause_takes_the_place_of_the_first(backend: QueueBackend) -> None:
    control.pause(backend, QUEUE, "one", until=60.0)
    control.pause(backend, QUEUE, "two")
    assert (paused(backend)[QUEUE].reason, paused(backend)[QUEUE].until) == ("two", None)


def test_a_pause_with_an_end_ends_by_itself(harness: Harness) -> None:
    backend = harness.open()
    control.pause(backend, QUEUE, until=30.0)
    control.pause(backend, "mails", until=datetime.fromtimestamp(backend.control_time() + 90.0, UTC))
    harness.advance(29.0)
    assert paused(backend).keys() == {QUEUE, "mails"}
    harness.advance(2.0)
    assert paused(backend).keys() == {"mails"}
    harness.advance(60.0)
    assert paused(backend) == {}


@pytest.mark.above
def test_an_end_that_is_past_or_says_no_zone_is_refused(backend: QueueBackend) -> None:
    for until in (0.0, -1.0, 367 * 86400.0, datetime.now(UTC) - timedelta(days=1), datetime(2126, 1, 1)):
        with pytest.raises(InvalidJob):
            control.pause(backend, QUEUE, until=until)
    with pytest.raises(InvalidJob):
        control.pause(backend, "no such name!")
    assert paused(backend) == {}


@pytest.mark.above
def test_more_pauses_than_a_page_are_all_read(backend: QueueBackend) -> None:
    backend.keys.put_records(
        control.ASKED, {f"{control.PAUSE}q{number}": b'{"queue":"q"}' for number in range(2 * control.PAGE_RECORDS)}, 60
    )
    assert len(paused(backend)) == 2 * control.PAGE_RECORDS


def a_pool(ident: str, started: float = 1.0) -> control.PoolRecord:
    facts = {"name": "pool", "host": "here", "pid": 7, "version": "1", "state": "running", "queues": [QUEUE, "mails"]}
    return control.PoolRecord(id=ident, children=2, busy=1, lease_margin=3.5, started=started, **facts)  # type: ignore[arg-type]


def test_a_pool_that_tells_of_itself_is_listed_until_it_forgets_itself(harness: Harness) -> None:
    backend, other = harness.open(), harness.open()
    control.tell(backend, a_pool("late", 2.0))
    control.tell(backend, a_pool("early", 1.0))
    [early, late] = control.pools(other)
    assert (early.id, late.id, late.queues, late.lease_margin) == ("early", "late", [QUEUE, "mails"], 3.5)
    assert control.drain(other, "late")
    control.forget(backend, "late")
    assert [pool.id for pool in control.pools(other)] == ["early"]
    assert control.read(backend).drained == set()


def test_a_pool_is_silent_after_three_periods_and_its_record_ends(harness: Harness) -> None:
    backend = harness.open()
    control.tell(backend, a_pool("one"))
    harness.advance(control.SILENT_AFTER_S - 2.0)
    assert [pool.silent for pool in control.pools(backend)] == [False]
    harness.advance(4.0)
    assert [pool.silent for pool in control.pools(backend)] == [True]
    control.tell(backend, a_pool("one"))
    assert [pool.silent for pool in control.pools(backend)] == [False]
    harness.advance(control.KEPT_S)
    assert control.pools(backend) == []


def test_a_pool_is_drained_until_it_is_resumed(backend: QueueBackend) -> None:
    assert control.drain(backend, "nobody") is False
    control.tell(backend, a_pool("one"))
    assert control.drain(backend, "one")
    assert control.read(backend).drained == {"one"}
    assert [control.undrain(backend, "one"), control.undrain(backend, "one")] == [True, False]
    assert control.read(backend).drained == set()
