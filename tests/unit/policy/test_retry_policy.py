"""Delays and budgets of `RetryPolicy`: the published tables, and every edge of the parameters; a pool's back-off."""

from __future__ import annotations

import math
import os
import pickle
import random
from dataclasses import FrozenInstanceError
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import row

from jobpool.errors import LONGEST_WAIT_S, ConfigurationError
from jobpool.master.state import FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S
from jobpool.policy.retry import BackOff, RetryPolicy
from jobpool.settings import Settings


def exponential(base: float, **changes: Any) -> RetryPolicy:
    return RetryPolicy("exponential", base=base, **{"jitter": 0.0, **changes})


def test_the_published_tables() -> None:
    for case, base, multiplier, max_delay, resolution, delays in [
        ("5 x2 to 300", 5, 2, 300, 1, [0.0, 5, 10, 20, 40, 80, 160, 300, 300]),
        ("2 x3 to 20", 2, 3, 20, 1, [0.0, 2, 6, 18, 20, 20]),
        ("3 x1.5 to 60, rounded half up", 3, 1.5, 60, 1, [0.0, 3, 5, 7, 10, 15, 23, 34, 51, 60]),
        ("1 x2.5 to 100, rounded half up", 1, 2.5, 100, 1, [0.0, 1, 3, 6, 16, 39, 98, 100]),
        ("milliseconds", 0.2, 2, 5, 0.001, [0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
    ]:
        policy = exponential(base, multiplier=multiplier, max_delay=max_delay, resolution=resolution)
        assert [policy.compute_delay(attempt) for attempt in range(1, len(delays) + 1)] == delays, case


def test_the_first_attempt_never_waits_and_fixed_is_constant_without_cap_or_jitter() -> None:
    for attempt in (1, 0, -3):
        assert exponential(5).compute_delay(attempt) == RetryPolicy("fixed", base=5).compute_delay(attempt) == 0
        assert RetryPolicy("none", base=7).delay(attempt + 3) == 0
    for retry in (1, 2, 50):
        assert RetryPolicy("fixed", base=900.25, max_delay=300, jitter=1.0).delay(retry) == 900.25


def test_rounding_half_up_to_the_resolution() -> None:
    for case, resolution, base, rounded in [
        ("a half goes up, not to the even number", 1, 2.5, 3),
        ("a half goes up", 1, 3.5, 4),
        ("less than a half goes down", 1, 0.49, 0),
        ("half a millisecond", 0.001, 0.0005, 0.001),
        ("a half as written, although its binary form is less", 0.001, 1.0005, 1.001),
        ("down to a millisecond", 0.001, 0.1234, 0.123),
        ("quarters", 0.25, 1.4, 1.5),
        ("tens", 10, 14.9, 10),
    ]:
        assert exponential(base, resolution=resolution).delay(1) == rounded, case


def test_edges() -> None:
    for case, changes, retry, delay in [
        ("base 0", {"base": 0}, 3, 0),
        ("base below 0 acts as 0", {"base": -4}, 3, 0),
        ("multiplier below 1 acts as 1", {"base": 4, "multiplier": 0.5}, 3, 4),
        ("a cap below base acts as base", {"base": 40, "max_delay": 10}, 1, 40),
        ("a cap below base stays base", {"base": 40, "max_delay": 10}, 5, 40),
        ("cap 0: no cap", {"base": 1, "max_delay": 0}, 20, 2**19),
        ("cap below 0: no cap", {"base": 1, "max_delay": -1}, 20, 2**19),
        ("retry 5000 gives the cap", {"base": 5, "max_delay": 300}, 5000, 300),
        ("retry 5000 without cap is finite", {"base": 5, "max_delay": 0}, 5000, LONGEST_WAIT_S),
        ("retry 5000 of nothing", {"base": 0, "max_delay": 0}, 5000, 0),
        ("retry 0 acts as 1", {"base": 5, "max_delay": 300}, 0, 5),
    ]:
        assert exponential(**cast(dict[str, Any], changes)).delay(retry) == delay, case


def test_jitter_draws_around_the_delay_and_full_jitter_from_nothing_to_it() -> None:
    for jitter, least, most in ((0.2, 80, 120), ("full", 0, 100)):
        policy = exponential(100, max_delay=0, jitter=jitter, seed=1)
        delays = [policy.delay(1) for _ in range(1000)]
        assert least <= min(delays) < least + 2, jitter
        assert most - 2 < max(delays) <= most, jitter


def test_jitter_never_lifts_a_delay_above_the_maximum() -> None:
    policy = exponential(100, max_delay=100, jitter=0.5, seed=1)
    delays = [policy.delay(9) for _ in range(200)]
    assert max(delays) == 100
    assert min(delays) < 60


@pytest.mark.parametrize(("given_jitter", "kept"), [(-1, 0.0), (3, 1.0), (0.3, 0.3), ("full", "full")])
def test_jitter_is_clamped(given_jitter: Any, kept: Any) -> None:
    assert exponential(1, jitter=given_jitter).jitter == kept


@given(
    base=st.floats(-10, 1e6),
    multiplier=st.floats(0, 50),
    max_delay=st.floats(0.001, 1e6),
    jitter=st.one_of(st.floats(-1, 2), st.just("full")),
    retry=st.integers(-5, 10_000),
)
def test_any_delay_is_between_nothing_and_the_maximum(
    base: float, multiplier: float, max_delay: float, jitter: Any, retry: int
) -> None:
    policy = exponential(base, multiplier=multiplier, max_delay=max_delay, jitter=jitter)
    assert 0 <= policy.delay(retry) <= policy.max_delay


def test_a_random_source_can_be_given() -> None:
    policy = exponential(100, max_delay=0, jitter=0.5, source=random.Random(3))
    assert policy.delay(1) == 100 * random.Random(3).uniform(0.5, 1.5)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # the test runner may have threads
@pytest.mark.parametrize("seed", [None, 7], ids=["unseeded", "seeded"])
def test_a_forked_process_does_not_share_the_random_state(seed: int | None) -> None:
    policy = exponential(100, max_delay=0, jitter=0.5, seed=seed)
    policy.delay(1)
    assert _delays_in_a_fork(policy) != [policy.delay(1) for _ in range(4)]


def _delays_in_a_fork(policy: RetryPolicy) -> list[float]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, pickle.dumps([policy.delay(1) for _ in range(4)]))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        delays: list[float] = pickle.loads(pipe.read())
    assert os.waitpid(pid, 0)[1] == 0
    return delays


def test_the_default_policy_makes_one_attempt_unless_asked() -> None:
    assert RetryPolicy().budget(None) == 1
    assert [RetryPolicy().budget(retries) for retries in (-1, 0, 2, 3)] == [1, 1, 3, 4]
    assert RetryPolicy(max_attempts=-2).budget(None) == 1
    assert RetryPolicy() == RetryPolicy("exponential", 1.0, 2.0, 300.0, 0.15) == Settings().retry


def test_the_default_policy_spaces_the_retries_that_are_asked_for() -> None:
    delays = [RetryPolicy(seed=7).delay(retry) for retry in range(1, 12)]
    plain = [min(300.0, 2.0**retry) for retry in range(11)]
    assert all(0.85 * wait <= delay <= 1.15 * wait for delay, wait in zip(delays, plain, strict=True)), delays
    assert max(delays) <= 300


def test_the_exponential_preset() -> None:
    policy = RetryPolicy.preset("exponential", seed=4)
    assert (policy.base, policy.multiplier, policy.max_delay, policy.jitter) == (0.2, 2.0, 5.0, 0.2)
    assert policy.budget(None) == 25
    assert policy.seed == 4
    assert 0.16 <= policy.delay(1) <= 0.24


def test_presets_of_one_seed_do_not_share_a_state() -> None:
    one, other = RetryPolicy.preset("exponential", seed=4), RetryPolicy.preset("exponential", seed=4)
    one.delay(1)
    assert other.delay(1) == RetryPolicy.preset("exponential", seed=4).delay(1)


def test_what_cannot_work_is_a_configuration_error() -> None:
    for case, arguments, told in [
        ("unknown strategy", {"strategy": "linear"}, "'linear' is unknown; choose one of: none, fixed, exponential"),
        ("no strategy", {"strategy": None}, "strategy None is unknown"),
        ("base is not a number", {"base": math.nan}, "base of a retry policy must be a finite number, not nan"),
        ("base is text", {"base": "5"}, "must be a finite number, not '5'"),
        ("cap without end", {"max_delay": math.inf}, "max_delay of a retry policy must be a finite number"),
        ("multiplier without end", {"multiplier": math.inf}, "multiplier of a retry policy must be a finite number"),
        ("unknown jitter", {"jitter": "some"}, "jitter of a retry policy must be a finite number, not 'some'"),
        ("resolution 0", {"resolution": 0}, "resolution of a retry policy must be above 0 seconds, not 0"),
        ("resolution without end", {"resolution": math.inf}, "resolution .* must be above 0 seconds, not inf"),
    ]:
        with row(case), pytest.raises(ConfigurationError, match=told):
            RetryPolicy(**cast(dict[str, Any], arguments))
    with pytest.raises(ConfigurationError, match="preset 'fast' is unknown; choose one of: none, exponential"):
        RetryPolicy.preset("fast")


def test_a_policy_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().base = 3.0  # type: ignore[misc]


# --- what does not come up -----------------------------------------------------------------------------------------


NOW = 100.0


def waits(count: int) -> list[float]:
    """Seconds from each of so many failures in a row to the next try."""
    boot = BackOff(FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S)
    found = []
    for _ in range(count):
        boot.failed("no such module", NOW)
        found.append(boot.next_at - NOW)
    return found


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    assert [round(wait, 6) for wait in waits(10)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert waits(5000)[-1] == MAX_BOOT_PAUSE_S


def test_a_success_lets_the_next_try_begin_at_once_and_the_wait_anew() -> None:
    boot = BackOff(FIRST_BOOT_PAUSE_S, MAX_BOOT_PAUSE_S)
    for _ in range(7):
        boot.failed("no such module", NOW)

    boot.succeeded()

    assert (boot.failures, boot.next_at, boot.last_error) == (0, 0.0, "")
    boot.failed("no such module", NOW)
    assert boot.next_at == NOW + FIRST_BOOT_PAUSE_S
