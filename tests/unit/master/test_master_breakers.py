"""A breaker for each queue, and what the loop is told of them."""

from __future__ import annotations

from stage import Stage

from jobpool.master import events as ev
from jobpool.policy.breaker import Breakers


def fail(breakers: Breakers, queue: str, times: int, now: float) -> list[bool]:
    return [breakers.failed(queue, now) for _ in range(times)]


def test_a_queue_that_fails_is_left_alone_and_the_others_are_not() -> None:
    breakers = Breakers()
    fail(breakers, "a", 5, now=0.0)
    assert not breakers.allow("a", 0.0)
    assert breakers.wait("a", 0.0) == 2.0
    assert breakers.allow("b", 0.0)
    assert breakers.wait("b", 0.0) == 0.0


def test_it_is_told_once_when_one_opens_and_once_when_it_closes() -> None:
    breakers = Breakers()
    assert fail(breakers, "a", 5, now=0.0) == [False, False, False, False, True]
    assert breakers.allow("a", 2.0)
    assert fail(breakers, "a", 1, now=2.0) == [False]
    assert breakers.allow("a", 6.0)
    assert [breakers.succeeded("a", 6.0), breakers.succeeded("a", 7.0)] == [True, False]


def test_a_good_answer_about_the_queue_lets_the_probe_through() -> None:
    breakers = Breakers()
    fail(breakers, "a", 5, now=0.0)
    breakers.answered(["b"], 0.1)
    assert not breakers.allow("a", 0.1)
    breakers.answered(["a", "b"], 0.2)
    assert [breakers.allow("a", 0.2), breakers.allow("a", 0.2)] == [True, False]


def test_what_is_open_can_be_read() -> None:
    stage = Stage().boot()
    stage.tell(ev.BreakerTurned("reports", True))
    assert stage.pool.open_breakers == {"reports"}
    stage.tell(ev.BreakerTurned("reports", False))
    assert stage.pool.open_breakers == set()
