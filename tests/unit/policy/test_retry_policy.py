"""Delays and budgets of `RetryPolicy`: the published tables, and every edge of the parameters."""

from __future__ import annotations

import math
import os
import pickle
import random
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpool.errors import ConfigurationError
from jobpool.message.definition import LONGEST
from jobpool.policy.retry import RetryPolicy
from jobpool.settings import Settings


def exponential(base: float, **changes: Any) -> RetryPolicy:
    return RetryPolicy("exponential", base=base, **{"jitter": 0.0, **changes})


@pytest.mark.parametrize(
    ("base", "multiplier", "max_delay", "resolution", "delays"),
    [
        pytest.param(5, 2, 300, 1, [0, 5, 10, 20, 40, 80, 160, 300, 300], id="5 x2 to 300"),
        pytest.param(2, 3, 20, 1, [0, 2, 6, 18, 20, 20], id="2 x3 to 20"),
        pytest.param(3, 1.5, 60, 1, [0, 3, 5, 7, 10, 15, 23, 34, 51, 60], id="3 x1.5 to 60, rounded half up"),
        pytest.param(1, 2.5, 100, 1, [0, 1, 3, 6, 16, 39, 98, 100], id="1 x2.5 to 100, rounded half up"),
        pytest.param(0.2, 2, 5, 0.001, [0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5], id="milliseconds"),
    ],
)
def test_the_published_tables(
    base: float, multiplier: float, max_delay: float, resolution: float, delays: list[float]
) -> None:
    policy = exponential(base, multiplier=multiplier, max_delay=max_delay, resolution=resolution)
    assert [policy.compute_delay(attempt) for attempt in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize("attempt", [1, 0, -3])
def test_the_first_attempt_never_waits(attempt: int) -> None:
    assert exponential(5).compute_delay(attempt) == 0
    assert RetryPolicy("fixed", base=5).compute_delay(attempt) == 0


def test_asked_by_retry_and_by_attempt_the_answer_is_the_same() -> None:
    policy = exponential(5, resolution=1)
    assert [policy.delay(retry) for retry in range(1, 6)] == [policy.compute_delay(n) for n in range(2, 7)]


def test_none_never_waits() -> None:
    assert RetryPolicy("none", base=7).delay(3) == 0


@pytest.mark.parametrize("retry", [1, 2, 50])
def test_fixed_is_constant_without_cap_or_jitter(retry: int) -> None:
    assert RetryPolicy("fixed", base=900.25, max_delay=300, jitter=1.0).delay(retry) == 900.25


@pytest.mark.parametrize(
    ("resolution", "base", "rounded"),
    [
        pytest.param(1, 2.5, 3, id="a half goes up, not to the even number"),
        pytest.param(1, 3.5, 4, id="a half goes up"),
        pytest.param(1, 0.49, 0, id="less than a half goes down"),
        pytest.param(0.001, 0.0005, 0.001, id="half a millisecond"),
        pytest.param(0.001, 1.0005, 1.001, id="a half as written, although its binary form is less"),
        pytest.param(0.001, 0.1234, 0.123, id="down to a millisecond"),
        pytest.param(0.25, 1.4, 1.5, id="quarters"),
        pytest.param(10, 14.9, 10, id="tens"),
    ],
)
def test_rounding_half_up_to_the_resolution(resolution: float, base: float, rounded: float) -> None:
    assert exponential(base, resolution=resolution).delay(1) == rounded


@pytest.mark.parametrize(
    ("changes", "retry", "delay"),
    [
        pytest.param({"base": 0}, 3, 0, id="base 0"),
        pytest.param({"base": -4}, 3, 0, id="base below 0 acts as 0"),
        pytest.param({"base": 4, "multiplier": 0.5}, 3, 4, id="multiplier below 1 acts as 1"),
        pytest.param({"base": 40, "max_delay": 10}, 1, 40, id="a cap below base acts as base"),
        pytest.param({"base": 40, "max_delay": 10}, 5, 40, id="a cap below base stays base"),
        pytest.param({"base": 1, "max_delay": 0}, 20, 2**19, id="cap 0: no cap"),
        pytest.param({"base": 1, "max_delay": -1}, 20, 2**19, id="cap below 0: no cap"),
        pytest.param({"base": 5, "max_delay": 300}, 5000, 300, id="retry 5000 gives the cap"),
        pytest.param({"base": 5, "max_delay": 0}, 5000, LONGEST, id="retry 5000 without cap is finite"),
        pytest.param({"base": 0, "max_delay": 0}, 5000, 0, id="retry 5000 of nothing"),
        pytest.param({"base": 5, "max_delay": 300}, 0, 5, id="retry 0 acts as 1"),
    ],
)
def test_edges(changes: dict[str, float], retry: int, delay: float) -> None:
    assert exponential(**changes).delay(retry) == delay


def test_jitter_draws_around_the_delay() -> None:
    policy = exponential(100, max_delay=0, jitter=0.2, seed=1)
    delays = [policy.delay(1) for _ in range(1000)]
    assert 80 <= min(delays) < 82
    assert 118 < max(delays) <= 120


def test_full_jitter_draws_from_nothing_to_the_delay() -> None:
    policy = exponential(100, max_delay=0, jitter="full", seed=1)
    delays = [policy.delay(1) for _ in range(1000)]
    assert 0 <= min(delays) < 2
    assert 98 < max(delays) <= 100


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


def test_the_same_seed_gives_the_same_delays() -> None:
    one, other = (exponential(100, jitter=0.5, seed=7) for _ in range(2))
    assert [one.delay(n) for n in range(1, 9)] == [other.delay(n) for n in range(1, 9)]


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


@pytest.mark.parametrize(
    ("job_attempts", "policy_attempts", "runs"),
    [
        pytest.param(20, 10, 10, id="the policy's is less"),
        pytest.param(5, 0, 5, id="only the job's"),
        pytest.param(None, 3, 3, id="only the policy's"),
        pytest.param(None, 0, 1, id="neither: one attempt"),
        pytest.param(2, 10, 2, id="the job's is less"),
        pytest.param(1, 0, 1, id="a job that wants no retries"),
        pytest.param(0, 0, 1, id="nothing runs less than once"),
        pytest.param(None, -2, 1, id="a policy below 0 sets none"),
    ],
)
def test_budget(job_attempts: int | None, policy_attempts: int, runs: int) -> None:
    max_retries = None if job_attempts is None else job_attempts - 1
    assert RetryPolicy(max_attempts=policy_attempts).budget(max_retries) == runs


def test_retries_come_after_the_first_attempt() -> None:
    assert RetryPolicy().budget(0) == 1
    assert RetryPolicy().budget(3) == 4


def test_the_default_policy_makes_one_attempt_unless_asked() -> None:
    assert RetryPolicy().budget(None) == 1
    assert RetryPolicy().budget(2) == 3
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


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"strategy": "linear"}, id="unknown strategy"),
        pytest.param({"strategy": None}, id="no strategy"),
        pytest.param({"base": math.nan}, id="base is not a number"),
        pytest.param({"base": "5"}, id="base is text"),
        pytest.param({"max_delay": math.inf}, id="cap without end"),
        pytest.param({"multiplier": math.inf}, id="multiplier without end"),
        pytest.param({"jitter": "some"}, id="unknown jitter"),
        pytest.param({"resolution": 0}, id="resolution 0"),
        pytest.param({"resolution": math.inf}, id="resolution without end"),
    ],
)
def test_what_cannot_work_is_a_configuration_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**arguments)


def test_the_error_names_what_would_work() -> None:
    with pytest.raises(ConfigurationError, match=r"'linear' is unknown; choose one of: none, fixed, exponential"):
        RetryPolicy("linear")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"preset 'fast' is unknown; choose one of: none, exponential"):
        RetryPolicy.preset("fast")


def test_a_policy_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().base = 3.0  # type: ignore[misc]
