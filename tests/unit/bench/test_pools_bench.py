"""The arithmetic of many pools on one broker. No test looks at a time."""

from __future__ import annotations

import pytest
from bench import pools
from bench.figures import Figure


def test_a_line_through_points() -> None:
    for case, points, line in [
        ("two points are the line", [(0.0, 10.0), (2.0, 40.0)], (10.0, 15.0)),
        ("so are more on one", [(0.1, 20.0), (0.5, 60.0), (0.9, 100.0)], (10.0, 100.0)),
    ]:
        assert pools.fitted(points) == pytest.approx(line), case


def test_a_line_errs_by_shares_and_not_by_amounts() -> None:
    job, request = pools.fitted([(0.0, 10.0), (0.0, 10.0), (1.0, 1000.0), (1.0, 1100.0)])

    assert job == pytest.approx(10.0)
    assert 1000.0 < job + request < 1050.0  # nearer to the smaller, of which the same amount is more


def test_the_model_says_how_far_it_is_off() -> None:
    samples = {
        "Redis, no-op, 1 pool": [{"requests": 0.1, "server": 20.0}],
        "Redis, 5 ms, 1 pool": [{"requests": 0.5, "server": 60.0}, {"requests": 0.7, "server": 80.0}],
    }

    found = {figure.name: figure.value for figure in pools._model("Redis", samples)}

    assert found["Redis, model: a job"] == pytest.approx(10.0)
    assert found["Redis, model: a request"] == pytest.approx(100.0)
    assert found["Redis, 5 ms, 1 pool: model / measured"] == pytest.approx(1.0)


def test_one_pool_has_no_share_of_others() -> None:
    sample = dict.fromkeys(pools.BUSY, 1.0)

    def of(count: int) -> list[Figure]:
        return pools._columns("x", [sample], pools._shown(count))

    assert {figure.name for figure in of(2)} - {figure.name for figure in of(1)} == {"x: fewest", "x: most"}
