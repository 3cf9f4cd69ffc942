"""When a lease ends, and who holds what: without a broker."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from jobpool.clock import ManualClock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.leases import EXPIRED_KEPT_S, Held, HeldLeases, Locks, RequestTime
from jobpool_backends.servicebus.queue_client import Delivery
from jobpool_backends.servicebus.records import Record

ASKED = RequestTime(boot=1000.0, wall=1_800_000_000.0, mono=50.0)


class Forgetful:
    """Counts what a receiver is told to forget."""

    def __init__(self) -> None:
        self.forgotten = 0

    def forget(self, deliveries: int) -> None:
        self.forgotten += deliveries


def locks(lock: float = 60.0) -> Locks:
    return Locks(Address("host", lock=lock), ManualClock())


def test_a_lease_ends_by_our_clock_and_never_after_the_lock() -> None:
    for case, told, length in [
        ("not told", None, 60.0),
        ("as declared", 60.0, 60.0),
        ("as far as clocks are alike", 59.5, 60.0),
        ("shorter locks, or our clock is ahead", 30.0, 30.0),
        ("longer locks, or our clock is behind", 300.0, 60.0),
        ("our clock is ahead by more than a lock", -5.0, 60.0),
    ]:
        until = None if told is None else ASKED.wall + told
        assert locks().end("q", ASKED, until) == ASKED.boot + length, case


def test_a_short_lock_is_told_once_and_kept_for_the_doctor(caplog: pytest.LogCaptureFixture) -> None:
    found = locks()
    with caplog.at_level(logging.WARNING):
        for left in (30.0, 20.0, 25.0):
            found.end("mails", ASKED, ASKED.wall + left)
    [told] = caplog.records
    assert "queue mails locked a message for 30.0 s instead of 60 s" in told.getMessage()
    assert found.noticed["mails"] == 20.0


def test_what_was_received_earlier_was_asked_for_earlier() -> None:
    assert ASKED.earlier(48.0) == RequestTime(998.0, ASKED.wall - 2.0, 48.0)
    assert ASKED.earlier(51.0) is ASKED


# --- leases ----------------------------------------------------------------------------------------


def held(clock: ManualClock, receiver: Forgetful | None = None, sequence: int = 5) -> Held:
    delivery = cast("Delivery", type("Received", (), {"receiver": receiver})())
    return Held(delivery, Record("i", 1, "", 5), "q", sequence, "a" * 32, clock.boot() + 60.0, 1)


def lease(**changes: object) -> JobLease:
    fields = {"id": "i", "queue": "q", "body": b"", "token": 5, "owner_token": "a" * 32, "expires_at": 0.0}
    return JobLease(**{**fields, "backend": "servicebus", **changes})  # type: ignore[arg-type]


def test_only_the_holder_of_a_lease_that_runs_may_settle_it_once() -> None:
    clock = ManualClock()
    leases = HeldLeases(clock)
    leases.add(mine := held(clock))
    assert leases.take(lease(owner_token="b" * 32)) is Settled.NOT_OWNER
    assert leases.take(lease(queue="other")) is Settled.NOT_IN_FLIGHT
    assert leases.take(lease(token="5")) is Settled.NOT_IN_FLIGHT
    assert leases.find(lease()) is mine
    assert leases.take(lease()) is mine
    assert leases.take(lease()) is Settled.NOT_IN_FLIGHT


def test_a_lease_ends_at_its_deadline_and_is_forgotten_later() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(held(clock, receiver))
    assert list(leases.of("q")) == [5]
    clock.advance(60.0)
    assert leases.take(lease()) is Settled.EXPIRED
    assert list(leases.of("q")) == []
    leases.prune("q")
    assert (leases.take(lease()), receiver.forgotten) == (Settled.EXPIRED, 0)
    clock.advance(EXPIRED_KEPT_S + 1)
    leases.prune("q")
    assert (leases.take(lease()), receiver.forgotten) == (Settled.NOT_IN_FLIGHT, 1)


def test_what_came_again_meanwhile_is_not_replaced_by_the_lease_before_it() -> None:
    """A settlement that was not answered is put back; if it took too long, the message may have come again."""
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    old, new = held(clock, receiver), held(clock, receiver)
    leases.add(old)
    assert leases.take(lease()) is old
    leases.put_back(old)
    assert (leases.take(lease()), receiver.forgotten) == (old, 0)
    leases.add(new)
    leases.put_back(old)
    assert (leases.find(lease()), receiver.forgotten) == (new, 1)


def test_a_lease_that_ran_out_and_came_again_is_forgotten_once() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(held(clock, receiver))
    leases.add(new := held(clock, receiver))
    assert (leases.find(lease()), receiver.forgotten) == (new, 1)


def test_what_is_lost_is_held_no_more() -> None:
    clock, receiver = ManualClock(), Forgetful()
    leases = HeldLeases(clock)
    leases.add(mine := held(clock, receiver))
    leases.drop(mine)
    leases.drop(mine)
    assert (leases.find(lease()), receiver.forgotten) == (Settled.NOT_IN_FLIGHT, 1)
    leases.add(held(clock, receiver, 6))
    assert len(leases.of("q")) == 1
    leases.clear()
    assert list(leases.of("q")) == []
