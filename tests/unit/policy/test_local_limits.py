"""The limits of limited queues: what cannot start is not leased, and nothing spins."""

from __future__ import annotations

from jobpool.message.guards import Begin, Begun
from jobpool.policy.limits import MAX_SHUT_S, MIN_SHUT_S, Limits, LocalLimits

HELD = Begun(Begin.HELD, "queue")


def limited(after: float) -> Begun:
    return Begun(Begin.LIMITED, "queue", after)


def four_places() -> LocalLimits:
    return LocalLimits(Limits(concurrency={"a": 4}))


def ten_a_minute() -> LocalLimits:
    return LocalLimits(Limits(rates={"a": 10}))


def test_a_queue_without_limits_has_no_gate() -> None:
    limits = four_places()
    limits.begun("b", 0, HELD, now=0.0)
    assert limits.room("b", 64, now=0.0) == 64
    assert limits.wait("b", now=0.0) == 0.0
    assert not LocalLimits(Limits(concurrency_per_key={"a": 4}))


def test_no_more_is_fetched_than_this_pool_may_run() -> None:
    limits = four_places()
    assert limits.room("a", 64, now=0.0) == 4
    limits.hold({"a": 3}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 1
    limits.hold({"a": 4}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 0
    assert limits.wait("a", now=0.0) > 0.0


def test_a_place_that_is_given_back_opens_it() -> None:
    limits = four_places()
    limits.hold({"a": 4}, (), now=0.0)
    assert limits.may_open_early(now=0.0)
    assert limits.hold({"a": 3}, (), now=0.0), "it was shut, and is open"
    assert not limits.hold({"a": 2}, (), now=0.0), "it was open already"


def test_what_other_pools_hold_shuts_it_for_a_while() -> None:
    limits = four_places()
    limits.begun("a", 0, HELD, now=100.0)
    wait = limits.wait("a", now=100.0)
    assert 0.0 < wait <= 1.0
    assert limits.room("a", 4, now=100.0) == 0
    assert not limits.may_open_early(now=100.0), "nothing of this pool's own could open it"
    assert limits.room("a", 4, now=100.0 + wait) == 1, "and then one is tried"


def test_refused_again_and_again_it_stays_shut_for_longer_and_never_too_long() -> None:
    limits, now, waits = four_places(), 0.0, []
    for _ in range(60):
        limits.begun("a", 0, HELD, now)
        waits.append(limits.wait("a", now))
        now += MAX_SHUT_S
    assert 1.0 < max(waits) <= MAX_SHUT_S


def test_a_settlement_of_its_own_opens_what_was_refused() -> None:
    limits = four_places()
    limits.begun("a", 2, HELD, now=0.0)
    assert not limits.hold({"a": 2}, (), now=0.0), "what was granted is now known to the loop"
    assert limits.may_open_early(now=0.0)
    assert limits.hold({"a": 1}, (), now=0.0)
    assert limits.room("a", 64, now=0.0) == 2, "as many as were granted last"


def test_what_is_granted_in_full_is_asked_for_twice_as_much() -> None:
    limits = ten_a_minute()
    limits.begun("a", 1, limited(1.0), now=0.0)
    rooms = []
    for _ in range(4):
        rooms.append(limits.room("a", 64, now=10.0))
        limits.begun("a", rooms[-1], None, now=10.0)
    assert rooms == [1, 2, 4, 8]


def test_a_rate_keeps_it_shut_for_exactly_as_long_as_the_store_says() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(17.5), now=100.0)
    assert limits.wait("a", now=100.0) == 17.5
    assert limits.room("a", 64, now=117.4) == 0
    assert limits.room("a", 64, now=117.5) == 3


def test_a_job_that_ends_does_not_open_what_a_rate_shut() -> None:
    limits = ten_a_minute()
    limits.hold({"a": 3}, (), now=0.0)
    limits.begun("a", 3, limited(17.5), now=0.0)
    assert not limits.may_open_early(now=0.0)
    assert not limits.hold({"a": 2}, (), now=0.0)


def test_a_start_that_was_not_used_does() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(17.5), now=0.0)
    assert limits.hold({}, {"a"}, now=0.0)
    assert limits.room("a", 64, now=0.0) == 3


def test_a_quick_rate_is_asked_for_in_batches() -> None:
    limits = ten_a_minute()
    limits.begun("a", 3, limited(0.000001), now=0.0)
    assert limits.wait("a", now=0.0) == MIN_SHUT_S


def test_one_shut_gate_does_not_shut_another() -> None:
    limits = LocalLimits(Limits(concurrency={"a": 1, "b": 1}))
    limits.begun("a", 0, HELD, now=0.0)
    assert limits.room("b", 1, now=0.0) == 1
