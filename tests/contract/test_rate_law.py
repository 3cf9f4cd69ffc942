"""Rates: sliding to the tick, counted once a start, given back only by what never began."""

from __future__ import annotations

import pytest
from support.harness import Harness
from support.jobs import QUEUE, numbered
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.errors import InvalidJob
from jobpool.message.guards import Begin, Begun, Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases", "key_store")

THREE = Rate("queue", 3)
COUNTED = Guards(rates=(THREE,))


def leases(backend: QueueBackend, count: int) -> list[JobLease]:
    backend.enqueue_many(numbered(count))
    return backend.fetch_many(QUEUE, limit=count, ttl=100_000.0)


def begin(backend: QueueBackend, lease: JobLease, guards: Guards = COUNTED) -> Begun:
    [answer] = backend.keys.begin_many([(lease, guards)])
    return answer


def limited(after: float, name: str = "queue") -> Begun:
    return Begun(Begin.LIMITED, name, pytest.approx(after, abs=1e-9))  # type: ignore[arg-type]


# --- the window -------------------------------------------------------------------------------------------


def test_there_is_room_when_the_oldest_start_leaves_the_window_and_not_before(
    harness: Harness, backend: QueueBackend
) -> None:
    some = leases(backend, 6)
    for lease in some[:3]:
        assert begin(backend, lease)
        harness.advance(10.0)
    assert begin(backend, some[3]) == limited(30.0)
    harness.advance(30.0 - harness.tick)
    assert begin(backend, some[3]) == limited(harness.tick)
    harness.advance(harness.tick)
    assert begin(backend, some[3])
    assert begin(backend, some[4]) == limited(10.0)
    harness.advance(10.0)
    assert begin(backend, some[4])


def test_no_window_anywhere_holds_twice_the_rate(harness: Harness, backend: QueueBackend) -> None:
    """As a fixed window would at its edge: all at its end, and all again at the start of the next."""
    waiting = leases(backend, 60)
    starts: list[float] = []
    for turn in range(400):
        while waiting and begin(backend, waiting[0]):
            starts.append(harness.now())
            waiting.pop(0)
        harness.advance((1.0, 7.0, 13.0)[turn % 3])
    assert len(starts) == 60
    gaps = [late - early for early, late in zip(starts, starts[THREE.most :], strict=False)]
    assert min(gaps) >= THREE.window - harness.tick


def test_after_is_exact(harness: Harness, backend: QueueBackend) -> None:
    one, two = leases(backend, 2)
    guards = Guards(rates=(Rate("queue", 1, 0.75),))
    assert begin(backend, one, guards)
    harness.advance(0.123456)
    answer = begin(backend, two, guards)
    assert answer == limited(0.75 - 0.123456)
    harness.advance(answer.after)
    assert begin(backend, two, guards)


def test_under_a_lower_rate_there_is_room_when_enough_have_left(harness: Harness, backend: QueueBackend) -> None:
    """Two pools may be told different rates; or one was restarted with another."""
    some = leases(backend, 5)
    for lease in some[:3]:
        assert begin(backend, lease)
        harness.advance(10.0)
    for most, after in ((1, 50.0), (2, 40.0), (3, 30.0)):
        assert begin(backend, some[3], Guards(rates=(Rate("queue", most),))) == limited(after)
    harness.advance(40.0)
    assert begin(backend, some[3], Guards(rates=(Rate("queue", 2),)))
    assert begin(backend, some[4], Guards(rates=(Rate("queue", 4),)))


def sweep(harness: Harness) -> None:
    """What has ended may be swept at any time; by a new client it is, at its first call."""
    harness.open().keys.put_records("pools", {"one": b"x"}, 60.0)


def test_a_repeat_is_known_for_one_when_its_start_has_left_the_window(harness: Harness, backend: QueueBackend) -> None:
    one, two = leases(backend, 2)
    guards = Guards(rates=(Rate("queue", 1, 5.0),))
    assert begin(backend, one, guards)
    harness.advance(60.0)
    sweep(harness)
    assert begin(backend, two, guards)
    assert begin(backend, one, guards)


def test_where_windows_share_a_name_a_start_counts_in_the_longest(harness: Harness, backend: QueueBackend) -> None:
    one, two = leases(backend, 2)
    guards = Guards(rates=(Rate("queue", 9, 5.0), Rate("queue", 1, 600.0)))
    assert begin(backend, one, guards)
    harness.advance(120.0)
    sweep(harness)
    assert begin(backend, two, guards) == limited(480.0)


@pytest.mark.parametrize("order", [1, -1], ids=["shorter first", "longer first"])
def test_a_start_counts_in_all_windows_for_as_long_as_the_longest(
    harness: Harness, backend: QueueBackend, order: int
) -> None:
    guards = Guards(rates=(Rate("api", 2, 1.0), Rate("api", 4, 3600.0))[::order])
    asked = [(lease, guards) for lease in leases(backend, 6)]
    granted, refused = Begun(Begin.GRANTED), limited(1.0, "api")
    assert backend.keys.begin_many(asked[:4]) == [granted, granted, refused, refused]
    harness.advance(1800.0)
    assert backend.keys.begin_many(asked[2:4]) == [granted, granted]
    harness.advance(1799.0)
    assert backend.keys.begin_many(asked[4:]) == [refused, refused]
    harness.advance(1.0)
    assert backend.keys.begin_many(asked[4:]) == [granted, granted]


def test_a_start_outlives_its_lease(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(4))
    short = backend.fetch_many(QUEUE, limit=3, ttl=1.0)
    [waiter] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    assert all(backend.keys.begin_many([(lease, COUNTED) for lease in short]))
    harness.expire_leases(1.0)
    backend.reap(QUEUE)
    assert begin(backend, waiter) == limited(59.0)


# --- given back -------------------------------------------------------------------------------------------

KEEPS = [
    pytest.param(Ack(), id="ack"),
    pytest.param(Nack(), id="nack"),
    pytest.param(Abandon("hopeless"), id="abandon"),
    pytest.param(Release(), id="release"),
    pytest.param(Release(30.0), id="release with a delay"),
    pytest.param(Move("mails"), id="move"),
    pytest.param(Forfeit("SIGSEGV"), id="forfeit"),
]

ONE = Guards(key="order-17", holds=(Hold("job:nightly"),), rates=(Rate("a", 1), Rate("b", 1)))


@pytest.mark.parametrize("settlement", KEEPS)
def test_a_start_stays_counted(backend: QueueBackend, settlement: Settlement) -> None:
    one, two = leases(backend, 2)
    assert begin(backend, one, ONE)
    assert backend.settle_many([(one.guarded(ONE), settlement)]) == [Settled.OK]
    assert begin(backend, two, Guards(rates=ONE.rates)) == limited(60.0, "a")


def test_what_never_began_gives_its_starts_back(harness: Harness, backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    assert begin(backend, one, ONE)
    harness.advance(10.0)
    assert backend.settle_many([(one.guarded(ONE), Release(5.0, begun=False))]) == [Settled.OK]
    assert begin(backend, two, ONE)
    assert begin(backend, three, Guards(rates=ONE.rates)) == limited(60.0, "a")


def test_it_gives_back_its_own_start_and_no_other(harness: Harness, backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    guards = Guards(rates=(Rate("queue", 2),))
    assert begin(backend, one, guards)
    harness.advance(10.0)
    assert begin(backend, two, guards)
    harness.advance(10.0)
    assert backend.settle_many([(two.guarded(guards), Release(60.0, begun=False))]) == [Settled.OK]
    assert begin(backend, three, guards)
    [four] = leases(backend, 1)
    assert begin(backend, four, guards) == limited(40.0)


@pytest.mark.needs("idempotent_settle")
def test_a_repeated_release_gives_back_once(backend: QueueBackend) -> None:
    one, two, three = leases(backend, 3)
    guards = Guards(rates=(Rate("queue", 1),))
    assert begin(backend, one, guards)
    batch: list[tuple[JobLease, Settlement]] = [(one.guarded(guards), Release(60.0, begun=False))]
    assert backend.settle_many(batch, "the-call") == [Settled.OK]
    assert begin(backend, two, guards)
    assert backend.settle_many(batch, "the-call") == [Settled.ALREADY]
    assert begin(backend, three, guards).answer is Begin.LIMITED


@pytest.mark.lacks("native_reap")
def test_a_refused_release_gives_nothing_back(harness: Harness, backend: QueueBackend) -> None:
    backend.enqueue_many(numbered(2))
    [late] = backend.fetch_many(QUEUE, limit=1, ttl=1.0)
    [waiter] = backend.fetch_many(QUEUE, limit=1, ttl=1000.0)
    guards = Guards(rates=(Rate("queue", 1),))
    assert begin(backend, late, guards)
    harness.expire_leases(1.0)
    assert backend.settle_many([(late.guarded(guards), Release(begun=False))]) == [Settled.EXPIRED]
    assert begin(backend, waiter, guards) == limited(59.0)


# --- starts of a caller's own -----------------------------------------------------------------------------


def test_take_counts_with_the_starts_of_leases(harness: Harness, backend: QueueBackend) -> None:
    one, two = leases(backend, 2)
    assert begin(backend, one)
    harness.advance(20.0)
    assert backend.keys.take(QUEUE, THREE, "token-1") == 0.0
    assert backend.keys.take(QUEUE, THREE, "token-2") == 0.0
    assert backend.keys.take(QUEUE, THREE, "token-3") == pytest.approx(40.0, abs=1e-9)
    assert begin(backend, two) == limited(40.0)


def test_take_waits_to_the_tick(harness: Harness, backend: QueueBackend) -> None:
    rate = Rate("mine", 1, 5.0)
    assert backend.keys.take(QUEUE, rate, "a") == 0.0
    harness.advance(5.0 - harness.tick)
    assert backend.keys.take(QUEUE, rate, "b") == pytest.approx(harness.tick, abs=1e-9)
    harness.advance(harness.tick)
    assert backend.keys.take(QUEUE, rate, "b") == 0.0


@pytest.mark.spans
def test_a_token_counts_once(harness: Harness, backend: QueueBackend) -> None:
    rate = Rate("mine", 2)
    for _ in range(5):
        assert harness.open().keys.take(QUEUE, rate, "same") == 0.0
        harness.advance(1.0)
    assert backend.keys.take(QUEUE, rate, "other") == 0.0
    assert backend.keys.take(QUEUE, rate, "third") == pytest.approx(55.0, abs=1e-9)
    assert backend.keys.take(QUEUE, rate, "same") == 0.0


def test_a_clock_that_was_set_back_holds_nobody_up(harness: Harness, backend: QueueBackend) -> None:
    rate = Rate("api", 2)
    assert [backend.keys.take(QUEUE, rate, token) for token in ("a", "b")] == [0.0, 0.0]
    harness.set_clock(-3600.0)
    assert [backend.keys.take(QUEUE, rate, token) for token in ("c", "d")] == [0.0, 0.0]
    assert backend.keys.take(QUEUE, rate, "e") == 60.0


@pytest.mark.spans
def test_take_is_scoped_by_queue_and_name(backend: QueueBackend) -> None:
    assert backend.keys.take(QUEUE, Rate("mine", 1), "a") == 0.0
    assert backend.keys.take("mails", Rate("mine", 1), "b") == 0.0
    assert backend.keys.take(QUEUE, Rate("yours", 1), "c") == 0.0
    assert backend.keys.take(QUEUE, Rate("mine", 1), "d") > 0.0


@pytest.mark.above
def test_a_token_or_a_queue_that_cannot_be_is_refused(backend: QueueBackend) -> None:
    for queue, token, told in ((QUEUE, "", "1 to 64"), (QUEUE, "x" * 65, "1 to 64"), ("no queue", "a", "queue name")):
        with row(queue, token), pytest.raises(InvalidJob, match=told):
            backend.keys.take(queue, THREE, token)


def test_a_longest_token_will_do(backend: QueueBackend) -> None:
    assert backend.keys.take(QUEUE, Rate("mine", 1), "x" * 64) == 0.0
    assert backend.keys.take(QUEUE, Rate("mine", 1), "y" * 64) > 0.0


def test_a_start_is_taken_under_many_rates_each_by_itself(backend: QueueBackend) -> None:
    rates = [Rate(f"rate-{number}", 1 + number % 2, 60.0) for number in range(700)]
    backend.keys.take(QUEUE, rates[0], "first")
    backend.keys.take(QUEUE, rates[1], "first")
    for _ in range(2):  # a repeat counts nothing
        answers = backend.keys.take_many(QUEUE, rates, "second")
        assert answers[0] > 0.0
        assert set(answers[1:]) == {0.0}
    third = backend.keys.take_many(QUEUE, rates[:4], "third")
    assert [after > 0.0 for after in third] == [True, True, True, False]
    assert backend.keys.take_many(QUEUE, [], "fourth") == []
