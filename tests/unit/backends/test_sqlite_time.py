"""Time and memory of the SQLite backend: reboots, clocks that are set, what is forgotten, what falls due in masses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from split_clock import SplitClock
from sqlite_explained import rows
from support.jobs import QUEUE, a_job, at, numbered

from jobpool.clock import ManualClock
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.fetch import PROMOTE_LIMIT
from jobpool_backends.sqlite.inspect import STATS_CAP
from jobpool_backends.sqlite.step import this_boot

Open = Callable[..., SqliteBackend]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_setting_the_clock_neither_ends_nor_prolongs_a_lease(open_sqlite: Open, step: float) -> None:
    clock = SplitClock()
    backend = open_sqlite(clock=clock)
    backend.enqueue_many(numbered(2))
    first, second = backend.fetch_many(QUEUE, limit=2, ttl=30.0)
    clock.wall_time += step
    clock.boot_time += 29.0
    assert backend.reap(QUEUE) == []
    assert backend.ack(first) is Settled.OK
    clock.boot_time += 1.0
    assert backend.ack(second) is Settled.EXPIRED
    assert len(backend.reap(QUEUE)) == 1


@pytest.mark.parametrize("boot", [1, 3], ids=["smaller", "larger"])
def test_after_a_reboot_the_wall_clock_decides(open_sqlite: Open, boot: int) -> None:
    before = open_sqlite(clock=SplitClock(boot_time=90_000.0), boot=2)
    before.enqueue_many(numbered(2))
    held, renewed = before.fetch_many(QUEUE, limit=2, ttl=30.0)
    clock = SplitClock(wall_time=1_800_000_020.0, boot_time=5.0)
    after = open_sqlite(clock=clock, boot=boot)
    assert after.reap(QUEUE) == []
    assert after.renew(renewed, 30.0).expires_at == 35.0
    clock.wall_time += 10.0
    clock.boot_time += 10.0
    assert after.ack(held) is Settled.EXPIRED
    assert [reaped.id for reaped in after.reap(QUEUE)] == [held.id]
    clock.boot_time += 20.0
    assert [reaped.id for reaped in after.reap(QUEUE)] == [renewed.id]


def test_a_visibility_timeout_reaches_across_a_reboot(open_sqlite: Open) -> None:
    before = open_sqlite(clock=SplitClock(boot_time=90_000.0), boot=2)
    before.enqueue(a_job())
    before.fetch_many(QUEUE, limit=1, ttl=3600.0)
    after = open_sqlite(clock=SplitClock(wall_time=1_800_000_009.0, boot_time=1.0), boot=3)
    assert after.reap_expired(QUEUE, visibility_timeout=9.0) == 0
    assert after.reap_expired(QUEUE, visibility_timeout=8.9) == 1


def test_this_boot_has_one_name() -> None:
    assert this_boot() == this_boot() > 0


def test_a_minute_later_calls_take_no_room(open_sqlite: Open) -> None:
    clock = ManualClock()
    backend = open_sqlite(clock=clock)
    backend.enqueue_many(numbered(200))
    for _ in range(100):
        backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=1)])
    clock.advance(61.0)
    backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=1)])
    assert rows(backend, "calls") <= 4


def test_ids_that_a_producer_gave_take_no_room_for_ever(open_sqlite: Open) -> None:
    clock = ManualClock()
    backend = open_sqlite(clock=clock)
    backend.enqueue_many([a_job(identifier=f"order-{number}") for number in range(50)])
    backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=50)])
    assert rows(backend, "ended") == 50
    clock.advance(601.0)
    backend.enqueue(a_job())
    backend.fetch_many(QUEUE, limit=1)
    assert rows(backend, "ended") == 0


def test_the_bodies_go_with_their_messages(open_sqlite: Open) -> None:
    backend = open_sqlite()
    backend.enqueue_many(numbered(20))
    backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=20)])
    assert rows(backend, "bodies") == rows(backend, "messages") == 0


def test_many_that_fall_due_at_once_all_come(open_sqlite: Open) -> None:
    clock = ManualClock()
    backend = open_sqlite(clock=clock)
    known = backend.enqueue_many(numbered(STATS_CAP + 10, scheduled_at=at(clock.wall() + 5)))
    clock.advance(5.0)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.cap) == (STATS_CAP, STATS_CAP)
    seen = []
    while leases := backend.fetch_many(QUEUE, limit=PROMOTE_LIMIT):
        seen += [lease.id for lease in leases]
    assert seen == known
