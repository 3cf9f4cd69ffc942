"""The settle thread on a broker that answers and refuses: to write what needs room, or to let the pool in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from running import Running, Settling, held
from support.jobs import a_job
from support.waiting import wait_until

from jobpool.broker.parts import Brought, Settlements
from jobpool.errors import AccessRefused, WriteRefused
from jobpool.master import events as ev
from jobpool.master import settle_thread
from jobpool.master.threads import RenewThread
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Ack, Nack, Settled
from jobpool_backends.memory import MemoryBackend


class Full(MemoryBackend):
    """Takes no call that needs room, as a whole: only acks free some. `shut`: it refuses everything."""

    full = True
    shut = False

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        if self.full and any(settlement != Ack() for _, settlement in settlements):
            raise WriteRefused("full")
        return super()._settle(settlements, brought, call_id)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        if self.shut:
            raise AccessRefused("who are you? Mend the password")
        return super()._renew(leases, ttl)


@pytest.fixture
def backend() -> Full:
    return Full()


def test_an_ack_is_settled_by_itself_where_the_whole_call_was_refused(backend: Full) -> None:
    nacked, acked, later = held(backend), held(backend), held(backend)
    with Settling(backend, (nacked, Nack()), (acked, Ack())) as thread:
        thread.until_answered(acked)
        thread.settle((later, Ack()))
        assert nacked not in thread.until_answered(later), "what comes later waits for nothing"
        assert nacked.refused_at
        backend.full = False
        assert thread.until_answered(nacked)[nacked] == (Nack(), Settled.OK)
        thread.until(ev.BrokerAnswered)
    assert [event.kind for event in thread.of(ev.BrokerSilent)] == [WriteRefused], "told once"


def test_what_is_refused_until_its_lease_has_ended_is_given_up(backend: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_thread, "CALM_S", 0.1)
    nacked = held(backend, ttl=0.3)
    with Settling(backend, (nacked, Nack())) as thread:
        [given_up] = thread.until(ev.GivenUp)
        assert given_up.deliveries == [nacked]
        thread.until(ev.BrokerAnswered)  # nothing is refused any more


def test_a_lease_is_not_renewed_for_longer_than_it_lasts_while_its_settlement_is_refused(backend: Full) -> None:
    refused, running = held(backend, ttl=0.5), held(backend, ttl=0.5)
    refused.refused_at = backend.clock.mono()

    def both_go_their_way() -> bool:
        for event in thread.of(ev.Renewed):
            for delivery, lease in event.renewals:
                delivery.lease = lease or delivery.lease
        now = backend.clock.boot()
        return refused.lease.expires_at < now < running.lease.expires_at

    with Running(partial(RenewThread, backend, 0.5, lambda: [refused, running])) as thread:
        wait_until(both_go_their_way)


def test_follow_ups_are_not_blamed_while_the_broker_refuses_everything(backend: Full) -> None:
    """Else a job that succeeded would be a dead letter."""
    backend.full = False
    delivery = held(backend)
    backend.shut = True
    with Settling(backend, (delivery, Ack((a_job(),)))) as thread:
        assert thread.until(ev.BrokerSilent)[0].kind is AccessRefused
        backend.shut = False
        settlement, answer = thread.until_answered(delivery)[delivery]
    assert (type(settlement), answer) == (Ack, Settled.OK)
    assert not thread.of(ev.ThreadDied)
