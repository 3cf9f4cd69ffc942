"""Time and memory of the SQLite backend: reboots, clocks that are set, what is forgotten, what falls due in masses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlite_explained import rows
from support.claims import claim, ids, nothing_to_claim, post
from support.jobs import QUEUE, a_job, at, numbered
from support.looks import begin

from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import MessageFilter, State
from jobpool.clock import ManualClock
from jobpool.errors import ClaimNotFound
from jobpool.message.guards import Begin, Guards, Hold
from jobpool.message.settlement import Ack, Settled
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.fetch import PROMOTE_LIMIT
from jobpool_backends.sqlite.schema import STATS_CAP
from jobpool_backends.sqlite.step import this_boot

Open = Callable[..., SqliteBackend]


GUARDS = Guards(holds=(Hold("job:nightly"),))


@pytest.fixture
def backend(open_sqlite: Open, clock: ManualClock) -> SqliteBackend:
    return open_sqlite(clock=clock)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_setting_the_clock_neither_ends_nor_prolongs_a_lease_or_its_place(
    backend: SqliteBackend, clock: ManualClock, step: float
) -> None:
    backend.enqueue_many(numbered(3))
    first, second = backend.fetch_many(QUEUE, limit=2, ttl=30.0)
    [other] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    assert begin(backend, second, GUARDS)
    clock.set_wall(step)
    clock.advance(29.999999)
    assert backend.reap(QUEUE) == []
    assert backend.ack(first) is Settled.OK
    assert begin(backend, other, GUARDS).answer is Begin.HELD
    clock.advance(0.000001)
    assert backend.keys.holders(QUEUE, "job:nightly") == []
    assert begin(backend, other, GUARDS)
    assert backend.ack(second) is Settled.EXPIRED
    assert len(backend.reap(QUEUE)) == 1


@pytest.mark.parametrize("boot", [1, 3], ids=["smaller", "larger"])
def test_after_a_reboot_the_wall_clock_decides(open_sqlite: Open, boot: int) -> None:
    before = open_sqlite(clock=ManualClock(boot=90_000.0), boot=2)
    before.enqueue_many(numbered(2))
    held, renewed = before.fetch_many(QUEUE, limit=2, ttl=30.0)
    assert begin(before, held, GUARDS)
    clock = ManualClock(1_800_000_020.0, boot=5.0)
    after = open_sqlite(clock=clock, boot=boot)
    assert after.reap(QUEUE) == []
    assert after.renew(renewed, 30.0).expires_at == 35.0
    assert begin(after, renewed, GUARDS).answer is Begin.HELD
    clock.advance(10.0)
    assert begin(after, renewed, GUARDS)
    assert after.ack(held) is Settled.EXPIRED
    assert [reaped.id for reaped in after.reap(QUEUE)] == [held.id]
    clock.advance(20.0)
    assert [reaped.id for reaped in after.reap(QUEUE)] == [renewed.id]


def test_a_visibility_timeout_reaches_across_a_reboot(open_sqlite: Open) -> None:
    before = open_sqlite(clock=ManualClock(boot=90_000.0), boot=2)
    before.enqueue(a_job())
    before.fetch_many(QUEUE, limit=1, ttl=3600.0)
    after = open_sqlite(clock=ManualClock(1_800_000_009.0, boot=1.0), boot=3)
    assert after.reap_expired(QUEUE, visibility_timeout=9.0) == 0
    assert after.reap_expired(QUEUE, visibility_timeout=8.9) == 1


def test_this_boot_has_one_name() -> None:
    assert this_boot() == this_boot() > 0


def test_a_minute_later_calls_take_no_room(backend: SqliteBackend, clock: ManualClock) -> None:
    backend.enqueue_many(numbered(200))
    for _ in range(100):
        backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=1)])
    clock.advance(61.0)
    backend.settle_many([(lease, Ack()) for lease in backend.fetch_many(QUEUE, limit=1)])
    assert rows(backend, "calls") <= 4


def test_ids_that_a_producer_gave_take_no_room_for_ever(backend: SqliteBackend, clock: ManualClock) -> None:
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


def test_many_that_fall_due_at_once_all_come(backend: SqliteBackend, clock: ManualClock) -> None:
    known = backend.enqueue_many(numbered(STATS_CAP + 10, scheduled_at=at(clock.wall() + 5)))
    clock.advance(5.0)
    stats = backend.stats(QUEUE)
    assert (stats.waiting, stats.cap) == (STATS_CAP, STATS_CAP)
    seen = []
    while leases := backend.fetch_many(QUEUE, limit=PROMOTE_LIMIT):
        seen += [lease.id for lease in leases]
    assert seen == known


WALL = 1_800_000_000.0


@pytest.mark.parametrize("step", [-7200.0, 7200.0], ids=["back", "on"])
def test_setting_the_clock_neither_ends_nor_prolongs_a_claim(
    backend: SqliteBackend, clock: ManualClock, step: float
) -> None:
    known = post(backend, b"0", b"1")
    held = claim(backend, ttl=60.0)
    clock.set_wall(step)
    clock.advance(59.0)
    assert backend.reap(QUEUE) == []
    assert nothing_to_claim(backend)
    assert backend.claims.get(QUEUE, held.id).age == 59
    assert backend.claims.delete_many(QUEUE, known[:1], held.id) == [Deleted.DONE]
    clock.advance(1.0)
    assert backend.claims.list_claims(QUEUE) == []
    with pytest.raises(ClaimNotFound):
        backend.claims.get(QUEUE, held.id)
    with pytest.raises(ClaimNotFound):
        backend.claims.delete_many(QUEUE, known, held.id)
    assert ids(claim(backend).messages) == known[1:]


@pytest.mark.parametrize("boot", [1, 3], ids=["smaller", "larger"])
def test_after_a_reboot_the_wall_clock_decides_over_claims(open_sqlite: Open, boot: int) -> None:
    before = open_sqlite(clock=ManualClock(WALL, boot=90_000.0), boot=2)
    known = post(before, b"0", b"1", b"2")
    lost, renewed = claim(before, 1, ttl=60.0), claim(before, 1, ttl=60.0)
    clock = ManualClock(WALL + 40.0, boot=5.0)
    after = open_sqlite(clock=clock, boot=boot)
    assert after.reap(QUEUE) == []
    assert after.claims.get(QUEUE, lost.id).age == 40
    assert after.claims.renew(QUEUE, renewed.id, ttl=60.0).age == 0
    assert [held.age for held in after.claims.list_claims(QUEUE)] == [
        age for _, age in sorted([(lost.id, 40), (renewed.id, 0)])
    ]
    clock.advance(20.0)
    assert ids(after.claims.list_free(QUEUE)) == [known[0], known[2]]
    assert ids(after.claims.list_claims(QUEUE)) == [renewed.id]
    clock.set_wall(3600.0)  # it counts in this boot now
    assert after.claims.delete_many(QUEUE, [known[1]]) == [Deleted.FORBIDDEN]
    clock.advance(40.0)
    assert after.claims.stats(QUEUE).free == 3


def test_claims_of_several_boots_end_each_by_its_own_clock(open_sqlite: Open) -> None:
    known = []
    for boot in (5, 4, 9):
        backend = open_sqlite(clock=ManualClock(WALL, boot=boot * 1000.0), boot=boot)
        known += post(backend)
        claim(backend, ttl=60.0 + boot)
    clock = ManualClock(WALL + 60.0, boot=0.0)
    now = open_sqlite(clock=clock, boot=7)
    known += post(now)
    claim(now, ttl=60.0)
    free = []
    for _ in range(10):
        free.append(ids(now.claims.list_free(QUEUE)))
        clock.advance(1.0)
    assert [len(page) for page in free] == [0, 0, 0, 0, 1, 2, 2, 2, 2, 3]
    assert free[-1] == known[:3]


def test_a_life_is_on_the_wall_clock_also_for_what_is_claimed(backend: SqliteBackend, clock: ManualClock) -> None:
    """What has ended was never there: a clock that is set on by days ends lives, and the claim goes on without them."""
    ending, lasting = post(backend, b"ending", life=1000.0) + post(backend, b"lasting")
    held = claim(backend, 2)
    clock.set_wall(86_400.0)
    assert backend.inspect(ending) is None
    assert backend.count(MessageFilter(queue=QUEUE, states=(State.LEASED,))) == 1
    assert ids(backend.claims.get(QUEUE, held.id).messages) == [lasting]
    assert [listed.count for listed in backend.claims.list_claims(QUEUE)] == [1]
    assert ids(backend.claims.renew(QUEUE, held.id, ttl=60.0).messages) == [lasting]
    assert backend.claims.release(QUEUE, held.id) == 1
    stats = backend.claims.stats(QUEUE)
    assert (stats.claimed, stats.free, stats.expired, backend.stats(QUEUE).posted) == (0, 1, 1, 1)


def test_a_release_does_not_count_what_has_ended(backend: SqliteBackend, clock: ManualClock) -> None:
    post(backend, b"0", b"1", life=1000.0)
    held = claim(backend, 2)
    clock.set_wall(86_400.0)
    assert backend.claims.release(QUEUE, held.id) == 0
    assert (nothing_to_claim(backend), backend.claims.stats(QUEUE).expired) == (True, 2)
