"""The settings about crashes, larger machines and copies of what failed: where they arrive, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables import row

from jobpool.broker.values import ReapPolicy
from jobpool.errors import ConfigurationError
from jobpool.settings import load

KEYS = ("on_crash", "on_memory_limit_queue", "dead_letter_queue")


def of_pool(**flags: Any) -> dict[str, Any]:
    pool = load(flags)
    return {key: getattr(pool, key) for key in KEYS}


def test_what_holds_when_nothing_is_said() -> None:
    assert of_pool() == {
        "on_crash": ("forfeit", None),
        "on_memory_limit_queue": None,
        "dead_letter_queue": None,
    }


def test_what_is_said_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_ON_MEMORY_LIMIT_QUEUE", "big")
    assert of_pool(on_crash="EXPIRE queue=careful", dead_letter_queue="failures") == {
        "on_crash": ("expire", "careful"),
        "on_memory_limit_queue": "big",
        "dead_letter_queue": "failures",
    }


def test_what_cannot_be_is_refused_with_its_flag() -> None:
    for key, value, sentence in [
        ("on_crash", "explode", "--on-crash must be 'forfeit' or 'expire', not 'explode'"),
        ("on_crash", "queue=no/queue", "--on-crash: queue=no/queue: queue name 'no/queue' is refused"),
        ("on_memory_limit_queue", "", "--on-memory-limit-queue: queue name '' is refused"),
        ("dead_letter_queue", "x" * 101, "--dead-letter-queue: queue name"),
        ("max_crashes", -1, "--max-crashes: -1 is not a whole number, 0 or more"),
    ]:
        with row(key, value), pytest.raises(ConfigurationError, match=sentence):
            load({key: value})


def test_a_crash_budget_that_cannot_be_is_refused_when_it_is_made() -> None:
    for fields in [
        {"max_crashes": -1},
        {"max_crashes": 1.5},
        {"window": 0.0},
        {"window": -3.0},
        {"back_off": -1.0},
        {"back_off": float("inf")},
        {"back_off_cap": -1.0},
        {"back_off_cap": float("nan")},
    ]:
        with row(fields), pytest.raises(ConfigurationError, match=r"crash|back_off"):
            ReapPolicy(**fields)


@pytest.mark.parametrize(("crashes", "ceiling"), [(1, 0.0), (2, 1.0), (3, 2.0), (7, 32.0), (8, 60.0), (5000, 60.0)])
def test_the_back_off_after_a_crash(crashes: int, ceiling: float) -> None:
    """SEMANTICS §4: at once, then up to 1 s, doubling to 60 s."""
    assert ReapPolicy().ceiling(crashes) == ceiling
