"""The circuit breaker: when it opens, what ends its cooldown, and that one probe is one."""

from __future__ import annotations

from jobpool.policy.breaker import BreakerState, CircuitBreaker

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def an_open_breaker(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(5):
        assert breaker.allow(now)
        breaker.failed(now)
    return breaker


def test_only_failures_in_a_row_count() -> None:
    breaker = CircuitBreaker()
    for _ in range(20):
        for _ in range(4):
            breaker.failed(0.0)
        breaker.succeeded(0.0)
    assert breaker.state(0.0) is CLOSED


def test_after_the_cooldown_exactly_one_probe_goes() -> None:
    breaker = an_open_breaker()
    assert breaker.state(2.0) is HALF_OPEN
    assert [breaker.allow(2.0) for _ in range(5)] == [True, False, False, False, False]
    assert not breaker.allow(30.0)


def test_a_probe_that_succeeds_closes_it_and_all_is_as_at_first() -> None:
    breaker = an_open_breaker()
    assert breaker.allow(2.0)
    breaker.succeeded(2.1)
    assert breaker.state(2.1) is CLOSED
    assert breaker.allow(2.1)
    for _ in range(5):
        breaker.failed(3.0)
    assert breaker.wait(3.0) == 2.0


def test_each_probe_that_fails_doubles_the_cooldown_up_to_the_longest() -> None:
    breaker, now, waits = an_open_breaker(), 0.0, []
    for _ in range(8):
        waits.append(breaker.wait(now))
        now += breaker.wait(now)
        assert breaker.allow(now)
        breaker.failed(now)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_a_good_answer_to_another_call_ends_the_cooldown_and_still_one_probe_goes() -> None:
    breaker = an_open_breaker()
    assert not breaker.allow(0.5)
    breaker.answered(0.5)
    assert breaker.state(0.5) is HALF_OPEN
    assert [breaker.allow(0.5), breaker.allow(0.5)] == [True, False]
    breaker.answered(0.6)
    assert not breaker.allow(0.6), "a probe is on its way already"
    breaker.failed(0.7)
    assert breaker.wait(0.7) == 4.0


def test_good_answers_change_nothing_while_it_is_closed() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed(0.0)
    breaker.answered(0.0)
    breaker.failed(0.0)
    assert breaker.state(0.0) is OPEN


def test_what_began_before_it_opened_is_no_probe() -> None:
    breaker = an_open_breaker()
    breaker.failed(1.0)
    assert breaker.wait(1.0) == 1.0, "a late failure tells nothing new"
    breaker.succeeded(1.5)
    assert breaker.state(1.5) is HALF_OPEN, "a late success shows that it is back, and is not the probe"
    breaker.failed(1.6)
    assert breaker.state(1.6) is HALF_OPEN
    assert breaker.allow(1.6)


def test_a_probe_that_nobody_tells_of_does_not_keep_it_shut_for_ever() -> None:
    breaker = an_open_breaker()
    assert breaker.allow(2.0)
    assert breaker.wait(10.0) == 52.0
    assert not breaker.allow(61.9)
    assert breaker.allow(62.0)


def test_looking_changes_nothing() -> None:
    breaker = an_open_breaker()
    for now in (1.0, 2.0, 3.0):
        breaker.state(now)
        breaker.wait(now)
    assert breaker.allow(3.0)
