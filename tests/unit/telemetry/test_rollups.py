"""Rows a minute: what they hold, how they add up, and the thread that writes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.broker.opening import open_backend
from jobpool.errors import BackendUnavailable
from jobpool.message.outcome import OUTCOMES
from jobpool.telemetry.metrics.memory import FINE_BUCKETS, Histogram, MemoryMetrics, Series
from jobpool.telemetry.metrics.rollup import (
    HOUR,
    MINUTE,
    RollupThread,
    Row,
    decode,
    key,
    minute_of,
    rollups,
    rows,
    stamp,
    summed,
)

NOON = 1_790_000_040
"""A whole minute."""

Place = tuple[str, str]


def ended(**places: tuple[int, float]) -> Mapping[Place, Series]:
    """By handler: so many successes of so many seconds each."""
    metrics = MemoryMetrics()
    for handler, (count, seconds) in places.items():
        for _ in range(count):
            metrics.ended("q", handler, ("succeeded",), seconds)
    return metrics.snapshot().ended


def a_row(start: int = NOON, queue: str = "q", handler: str = "h", **outcomes: int) -> Row:
    outcomes = outcomes or {"succeeded": 1}
    run = Histogram(FINE_BUCKETS)
    for _ in range(sum(outcomes.values())):
        run.add(0.3)
    return Row(start, queue, handler, outcomes, run)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_is_what_came_between_two_snapshots() -> None:
    found = rows(NOON, ended(a=(2, 0.1), b=(1, 0.1)), ended(a=(5, 0.1), b=(1, 0.1), c=(1, 40.0)))
    assert [(row.handler, row.outcomes, row.run.count) for row in found] == [
        ("a", {"succeeded": 3}, 3),
        ("c", {"succeeded": 1}, 1),
    ]


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    names,
    st.dictionaries(st.sampled_from(OUTCOMES), st.integers(1, 10**9)),
    st.lists(st.integers(0, 10**9), min_size=len(FINE_BUCKETS) + 1, max_size=len(FINE_BUCKETS) + 1),
)
def test_a_row_comes_back_as_it_was_stored(handler: str, outcomes: dict[str, int], counts: list[int]) -> None:
    row = Row(NOON, "q", handler, outcomes, Histogram(FINE_BUCKETS, counts, 12.5))
    back = decode(row.encode())
    assert back is not None
    assert (back.start, back.handler, back.outcomes, back.run.counts, back.run.total) == (
        *(NOON, handler, outcomes, counts, 12.5),
    )


def test_a_row_is_small_however_many_jobs_there_were() -> None:
    outcomes = dict.fromkeys(OUTCOMES, 10**9)
    row = Row(NOON, "q" * 100, "h" * 255, outcomes, Histogram(FINE_BUCKETS, [10**9] * (len(FINE_BUCKETS) + 1), 1e12))
    assert len(row.encode()) < 1200


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"{}", b'{"s":1,"q":"q","h":"h","o":[],"r":[],"t":0}', b"\xff", b"7"]
)
def test_what_is_no_row_is_left_out(value: bytes) -> None:
    assert decode(value) is None


def test_keys_are_in_the_order_of_time_and_differ_by_place_and_pool() -> None:
    moments = [NOON + MINUTE * step for step in range(0, 100_000, 977)]
    assert [stamp(moment) for moment in moments] == sorted(stamp(moment) for moment in moments)
    keys = {key(a_row(queue=q, handler=h), pool) for q, h in (("a", "bc"), ("ab", "c")) for pool in ("x", "y")}
    assert len(keys) == 4
    assert all(stamp(NOON) < each < stamp(NOON + MINUTE) for each in keys)


def test_sums_over_pools_and_hours() -> None:
    hour = NOON // HOUR * HOUR
    every = [a_row(hour, succeeded=1), a_row(hour, succeeded=2, failed=1), a_row(hour + HOUR - MINUTE, succeeded=4)]
    every += [a_row(hour + HOUR, succeeded=8), a_row(hour, handler="other")]
    assert [(row.start, row.handler, row.outcomes, row.run.count) for row in summed(every, HOUR)] == [
        (hour, "h", {"succeeded": 7, "failed": 1}, 8),
        (hour, "other", {"succeeded": 1}, 1),
        (hour + HOUR, "h", {"succeeded": 8}, 8),
    ]
    assert [row.outcomes.get("succeeded") for row in summed(every, MINUTE) if row.handler == "h"] == [3, 4, 8]


# --- the thread -------------------------------------------------------------------------------------------------------


class Turned:
    """A clock that the test turns."""

    def __init__(self, now: float = NOON + 10.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def backend() -> Iterator[QueueBackend]:
    with closing(open_backend("memory://")) as backend:
        yield backend


def a_writer(keys: KeyStore, wall: Callable[[], float], pool: str = "pool") -> RollupThread:
    return RollupThread(keys, pool, 3600.0, lambda: None, wall)


def read(backend: QueueBackend, since: float = NOON - HOUR, until: float = NOON + HOUR) -> list[Row]:
    return list(rollups(backend.keys, since, until))


def test_each_minute_gets_what_came_in_it_and_the_end_the_rest(backend: QueueBackend) -> None:
    wall = Turned()
    writer = a_writer(backend.keys, wall)
    writer.start()
    wall.now = NOON + 61.0
    writer.write(ended(a=(2, 0.1)))
    wall.now = NOON + 70.0
    writer.finish(ended(a=(5, 0.1)), 10.0)
    assert not writer.is_alive()
    assert [(row.start, row.outcomes) for row in read(backend)] == [
        (NOON, {"succeeded": 2}),
        (NOON + MINUTE, {"succeeded": 3}),
    ]


def test_pools_do_not_overwrite_each_other_and_a_clock_set_back_overwrites_nothing(backend: QueueBackend) -> None:
    for pool in ("one", "two"):
        wall = Turned()
        writer = a_writer(backend.keys, wall, pool)
        writer.write(ended(a=(1, 0.1)))
        wall.now = NOON + 5.0
        writer.write(ended(a=(2, 0.1)))
    assert [row.outcomes for row in summed(read(backend), MINUTE)] == [{"succeeded": 4}]


def test_an_idle_minute_writes_nothing(backend: QueueBackend) -> None:
    writer = a_writer(backend.keys, Turned())
    for _ in range(3):
        writer.write(ended(a=(1, 0.1)))
    assert len(read(backend)) == 1


class Away:
    """A key store whose broker is away for a while."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self.is_away = True

    def put_records(self, *args: object) -> None:
        if self.is_away:
            raise BackendUnavailable("no answer")
        self._keys.put_records(*args)  # type: ignore[arg-type]


def test_what_an_outage_held_up_is_written_after_it_and_the_outage_is_said_once(
    backend: QueueBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    away, wall = Away(backend.keys), Turned()
    writer = a_writer(away, wall)  # type: ignore[arg-type]
    for minute in range(3):
        wall.now = NOON + MINUTE * (minute + 1)
        writer.write(ended(a=(minute + 1, 0.1)))
    assert len(caplog.records) == 1
    assert "rollups cannot be written" in caplog.text
    away.is_away = False
    writer.write(None)
    assert [row.start for row in read(backend)] == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]


def test_the_reader_goes_through_more_than_one_page(backend: QueueBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpool.telemetry.metrics.rollup.PAGE_ROWS", 7)
    every = [a_row(NOON + MINUTE * minute, handler=handler) for minute in range(10) for handler in "abc"]
    backend.keys.put_records("rollups", {key(row, "x"): row.encode() for row in every}, 60.0)
    assert len(read(backend)) == 30
    some = read(backend, NOON + 3 * MINUTE, NOON + 5 * MINUTE)
    assert {row.start for row in some} == {NOON + 3 * MINUTE, NOON + 4 * MINUTE}
    assert len(some) == 6


@pytest.mark.parametrize("errors", [[], [MemoryError(), OSError(24, "Too many open files")]], ids=["well", "ill"])
def test_the_thread_asks_at_the_end_of_its_minute_and_an_error_does_not_end_it(
    backend: QueueBackend, caplog: pytest.LogCaptureFixture, errors: list[Exception]
) -> None:
    calls, asked = iter(errors), threading.Event()

    def counts() -> Mapping[Place, Series]:
        for error in calls:
            raise error
        asked.set()
        return ended(a=(1, 0.1))

    writer = RollupThread(backend.keys, "p", 60.0, counts, Turned(NOON + 59.9))
    writer.start()
    assert asked.wait(10)
    writer.finish(ended(a=(1, 0.1)), 10.0)
    assert len(read(backend)) == 1
    assert caplog.text.count("rollups cannot be written") == bool(errors)


def test_the_minute_of_a_moment() -> None:
    assert [minute_of(NOON + seconds) - NOON for seconds in (0, 59.99, 60, -0.01)] == [0, 0, 60, -60]
