"""The renew thread: each lease is renewed by its own length, and what one part of the broker does not answer ends no
lease of another part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import pytest
from running import Running, held
from support.jobs import QUEUE
from support.modest import OwnLeases
from support.waiting import wait_until

from jobpool.clock import ManualClock
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.slots import Delivery
from jobpool.master.threads import ROUNDS_A_LEASE, RenewThread
from jobpool.message.lease import JobLease
from jobpool_backends.memory import MemoryBackend

OTHER = "mails"
TTL = 30.0


def renewals(events: Sequence[ev.Event]) -> list[tuple[Delivery, JobLease | None]]:
    return [renewal for event in events if isinstance(event, ev.Renewed) for renewal in event.renewals]


# --- parts of a broker ------------------------------------------------------------------------------


class HalfSilent(MemoryBackend):
    """As a cluster without one of its masters: no call that touches `QUEUE` is answered."""

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if any(lease.queue == QUEUE for lease in leases):
            raise BackendUnavailable("silent")
        return super()._renew(leases, ttl)


def test_the_leases_of_other_queues_are_renewed_while_one_queue_is_silent() -> None:
    backend = HalfSilent()
    deliveries = [held(backend, queue, ttl=1.0) for queue in (QUEUE, OTHER)]
    with Running(partial(RenewThread, backend, 1.0, lambda: deliveries)) as thread:
        wait_until(lambda: renewals(thread.told()))
    assert renewals(thread.told())[0][0] is deliveries[1]
    assert thread.outages() == [ev.BrokerSilent]


def test_an_outage_is_over_when_what_was_not_renewed_has_been_settled() -> None:
    """And not when the next of what is held is due, which may take minutes."""
    backend = HalfSilent()
    fresh = held(backend, OTHER, ttl=3600.0)
    deliveries = [held(backend, ttl=1.0), fresh]
    with Running(partial(RenewThread, backend, 1.0, lambda: deliveries)) as thread:
        thread.until(ev.BrokerSilent)
        deliveries = [fresh]
        thread.until(ev.BrokerAnswered)
    assert [type(event) for event in thread.told()] == [ev.BrokerSilent, ev.BrokerAnswered]


# --- lengths ----------------------------------------------------------------------------------------


class Watch:
    """A renew thread's rounds on a clock that the test turns, and the loop that takes in what it tells."""

    def __init__(self, lasts: float, inbox: Inbox) -> None:
        self.clock = ManualClock()
        self.backend = OwnLeases(lasts, self.clock)
        self.delivery = held(self.backend)
        self._inbox = inbox
        self._renew_thread = RenewThread(self.backend, TTL, lambda: [self.delivery], inbox)
        self._renew_thread._broker_retry._stop.set()  # a pause of the outage is not waited for in full

    def turn(self, seconds: float) -> None:
        """Let a part of the lease pass, as long as a round is, and have one."""
        self.clock.advance(seconds)
        self._renew_thread._renew_what_is_due()
        for _, lease in renewals(self._inbox.take()):
            assert lease is not None
            self.delivery.lease = lease

    @property
    def left(self) -> float:
        return self.delivery.lease.expires_at - self.clock.boot()

    @property
    def pace(self) -> float:
        return self._renew_thread._shortest


@pytest.mark.parametrize("lasts", [TTL / 10, TTL, TTL * 10], ids=["a tenth", "as asked", "ten times"])
def test_a_lease_is_renewed_each_third_of_its_own_length(inbox: Inbox, lasts: float) -> None:
    watch = Watch(lasts, inbox)
    for _ in range(3 * ROUNDS_A_LEASE):
        watch.turn(lasts / ROUNDS_A_LEASE)
        assert watch.left > lasts / 2
    apart = [
        after - before for before, after in zip(watch.backend.renewed_at, watch.backend.renewed_at[1:], strict=False)
    ]
    assert len(apart) >= 5
    assert all(lasts / 3 <= gap <= lasts / 2 for gap in apart), apart


@pytest.mark.parametrize("lasts", [TTL / 10, TTL * 10], ids=["a tenth", "ten times"])
def test_it_is_tried_several_times_before_its_end(inbox: Inbox, lasts: float) -> None:
    watch = Watch(lasts, inbox)
    watch.backend.silent = 5
    for _ in range(ROUNDS_A_LEASE - 1):
        watch.turn(lasts / ROUNDS_A_LEASE)
    assert watch.backend.silent == 0
    assert watch.backend.renewed_at, "the sixth try is answered, and in time"


def test_the_thread_looks_round_as_often_as_the_shortest_lease_needs_and_no_oftener(inbox: Inbox) -> None:
    watch = Watch(TTL / 10, inbox)
    watch.turn(0.0)
    assert watch.pace == pytest.approx(TTL / 10)
    watch.delivery = held(OwnLeases(TTL * 10, watch.clock))
    watch.turn(0.0)
    assert watch.pace == TTL


def test_a_short_lease_that_comes_while_the_thread_sleeps_is_renewed_in_time() -> None:
    backend, deliveries = OwnLeases(0.5), list[Delivery]()
    with Running(partial(RenewThread, backend, 3600.0, lambda: list(deliveries))) as thread:
        deliveries.append(held(backend))
        thread.thread.expect(0.5)
        wait_until(lambda: renewals(thread.told()), 0.5, "renewed before its end")
        begun = time.monotonic()
    assert time.monotonic() - begun < 5.0, "a stop wakes it, too"
