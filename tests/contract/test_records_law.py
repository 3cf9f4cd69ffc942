"""Records that end by themselves, and logs that keep their newest lines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from support.harness import Harness
from support.jobs import QUEUE, new_lease
from support.tables import row

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import LONGEST_RECORD, KeyStore
from jobpool.errors import ConfigurationError, InvalidJob
from jobpool.message.guards import LONGEST_RECORD_KEPT, MOST_LINES, Guards, Hold

pytestmark = pytest.mark.needs("key_store")

SPACE = "pools"
ODD = ["a", "a b", "Zürich", "z", "é", "\uff05", "😀", "a%", "a_", "a*b", "a?[x]", "a\\", "A", "a:b:c", "'\"{}"]
"""Whatever a broker might take for something else; among them what sorts differently as UTF-16 or by language."""


ODD_NAMES = ("", "x" * 256, "a\nb")


@pytest.fixture
def keys(backend: QueueBackend) -> KeyStore:
    return backend.keys


def names(keys: KeyStore, **limits: object) -> list[str]:
    return [key for key, _ in keys.list_records(SPACE, **limits)]  # type: ignore[arg-type]


# --- records ----------------------------------------------------------------------------------------------


def test_what_one_client_wrote_another_reads(harness: Harness) -> None:
    harness.open().keys.put_records(SPACE, {"one": b"1", "two": b"2"}, 60.0)
    other = harness.open().keys
    assert (other.get_record(SPACE, "one"), other.get_record(SPACE, "two")) == (b"1", b"2")
    assert other.get_record(SPACE, "three") is None
    assert other.list_records(SPACE) == [("one", b"1"), ("two", b"2")]


def test_any_bytes_come_back_as_they_were(keys: KeyStore) -> None:
    for value in (b"", b"\0\xff\n", b"{}", "Zürich".encode(), b"x" * LONGEST_RECORD):
        keys.put_records(SPACE, {"one": value}, 60.0)
        assert keys.get_record(SPACE, "one") == value
        assert keys.list_records(SPACE) == [("one", value)]


def test_a_later_value_takes_the_place_of_an_earlier_and_of_its_end(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, {"one": b"old", "two": b"old"}, 10.0)
    keys.put_records(SPACE, {"two": b"new"}, 20.0)
    harness.advance(10.0)
    assert keys.list_records(SPACE) == [("two", b"new")]
    keys.put_records(SPACE, {"two": b"short"}, 1.0)
    harness.advance(1.0)
    assert keys.list_records(SPACE) == []


@pytest.mark.spans
def test_many_are_asked_for_by_their_keys_at_once(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, {"ended": b"0"}, 1.0)
    keys.put_records("other", {"elsewhere": b"0"}, 60.0)
    harness.advance(1.0)
    there = {key: key.encode() for key in [*ODD, *(f"{number:05d}" for number in range(1200))]} | {"empty": b""}
    keys.put_records(SPACE, there, 60.0)
    asked = ["ended", "elsewhere", "nowhere", "a\0", "\ud800", "", "a", *there]
    assert keys.get_records(SPACE, asked) == there
    assert keys.get_records(SPACE, asked[:6]) == keys.get_records(SPACE, []) == {}


@pytest.mark.parametrize("ttl", [0.25, 60.0, 86400.0])
def test_a_record_ends_at_its_tick_and_not_before(harness: Harness, keys: KeyStore, ttl: float) -> None:
    keys.put_records(SPACE, {"one": b"1"}, ttl)
    harness.advance(ttl - harness.tick)
    assert keys.get_record(SPACE, "one") == b"1"
    assert names(keys) == ["one"]
    harness.advance(harness.tick)
    assert keys.get_record(SPACE, "one") is None
    assert names(keys) == []


@pytest.mark.spans
def test_spaces_do_not_mix_and_what_is_deleted_is_gone(keys: KeyStore) -> None:
    keys.put_records(SPACE, {"one": b"1"}, 60.0)
    keys.put_records("other", {"one": b"2"}, 60.0)
    keys.delete_records("other", ["one"])
    assert keys.get_record(SPACE, "one") == b"1"
    assert keys.get_record("other", "one") is None
    keys.put_records(SPACE, dict.fromkeys(["a", "b", "c"], b"x"), 60.0)
    keys.delete_records(SPACE, ["a", "c", "nowhere"])
    keys.delete_records(SPACE, ["a"])
    keys.delete_records("nothing", ["a"])
    keys.delete_records(SPACE, [])
    assert names(keys) == ["b", "one"]


def test_records_are_listed_in_the_order_of_their_bytes_by_prefix_and_in_pages(keys: KeyStore) -> None:
    keys.put_records(SPACE, {key: key.encode() for key in ODD}, 60.0)
    assert keys.list_records(SPACE) == [(key, key.encode()) for key in sorted(ODD, key=str.encode)]
    for prefix in ("", "a", "a%", "a_", "a*", "a?", "a\\", "Z", "é", "😀", "b", "a:b:"):
        assert names(keys, prefix=prefix) == sorted((key for key in ODD if key.startswith(prefix)), key=str.encode)
    for prefix in ("", "a"):
        whole = names(keys, prefix=prefix)
        seen: list[str] = []
        while page := names(keys, prefix=prefix, after=seen[-1] if seen else "", limit=3):
            assert len(page) <= 3
            seen += page
        assert seen == whole


def test_after_need_not_be_there(keys: KeyStore) -> None:
    keys.put_records(SPACE, dict.fromkeys(["a", "c", "e"], b"x"), 60.0)
    assert names(keys, after="b") == ["c", "e"]
    assert names(keys, after="c") == ["e"]
    assert names(keys, after="e") == []
    assert names(keys, after="z", prefix="a") == []
    assert names(keys, after="A", prefix="c") == ["c"]


def test_what_has_ended_takes_no_place_in_a_page(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, dict.fromkeys([f"a{number}" for number in range(20)], b"x"), 5.0)
    keys.put_records(SPACE, dict.fromkeys(["b", "c", "d"], b"x"), 60.0)
    harness.advance(5.0)
    assert names(keys, limit=2) == ["b", "c"]


def test_the_longest_time_of_all(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, {"leap-day": b"1"}, LONGEST_RECORD_KEPT)
    harness.advance(4 * 366 * 86400.0)
    assert keys.get_record(SPACE, "leap-day") == b"1"


def test_two_thousand_at_once(keys: KeyStore) -> None:
    keys.put_records(SPACE, {f"{number:05d}": b"x" * 50 for number in range(2000)}, 60.0)
    assert len(names(keys)) == 1000
    assert names(keys, limit=10_000) == [f"{number:05d}" for number in range(2000)]
    keys.delete_records(SPACE, [f"{number:05d}" for number in range(1, 2000)])
    assert names(keys) == ["00000"]


def test_many_are_listed_past_thousands_that_have_ended(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, {f"a-{number:04d}": b"" for number in range(7000)}, 1.0)
    harness.advance(1.0)
    keys.put_records(SPACE, {f"b-{number:04d}": b"" for number in range(1200)}, 100.0)
    assert names(keys) == [f"b-{number:04d}" for number in range(1000)]
    assert len(names(keys, limit=10_000)) == 1200
    assert names(keys, prefix="b-1", after="b-1197") == ["b-1198", "b-1199"]


@pytest.mark.above
def test_what_is_out_of_bounds_is_refused_and_nothing_written(keys: KeyStore) -> None:
    calls: dict[str, list[Callable[[], object]]] = {
        "the key of a record": [partial(keys.put_records, SPACE, {"one": b"1", key: b"2"}, 60.0) for key in ODD_NAMES],
        "the name of a log": [
            partial(keys.append_log, SPACE, [("report", b"1"), (name, b"2")], 5) for name in ODD_NAMES
        ],
        "ttl": [
            partial(keys.put_records, SPACE, {"one": b"1"}, ttl)
            for ttl in (0.0, -1.0, float("nan"), float("inf"), LONGEST_RECORD_KEPT + 1)
        ],
        "1 to 10000": [partial(keys.list_records, SPACE, limit=limit) for limit in (0, -1, 10_001)],
        str(LONGEST_RECORD): [
            lambda: keys.put_records(SPACE, {"one": b"x" * (LONGEST_RECORD + 1)}, 60.0),
            lambda: keys.append_log(SPACE, [("report", b"x" * (LONGEST_RECORD + 1))], 5),
        ],
        str(MOST_LINES): [
            *(partial(keys.append_log, SPACE, [("report", b"1")], most) for most in (0, -1, MOST_LINES + 1)),
            *(partial(keys.read_log, SPACE, "report", limit=most) for most in (0, -1, MOST_LINES + 1)),
        ],
        "queue name": [
            lambda: keys.put_records("no space", {"one": b"1"}, 60.0),
            lambda: keys.get_record("no space", "one"),
            lambda: keys.get_records("no space", ["one"]),
            lambda: keys.list_records("no space"),
            lambda: keys.delete_records("no space", ["one"]),
            lambda: keys.append_log("no space", [("one", b"1")], 5),
            lambda: keys.read_log("no space", "one"),
            lambda: keys.list_logs("no space"),
        ],
    }
    kinds = {"the key of a record": InvalidJob, "the name of a log": InvalidJob, "queue name": InvalidJob}
    for told, refused in calls.items():
        for number, call in enumerate(refused):
            kind = kinds.get(told, ConfigurationError if told == "ttl" else ValueError)
            with row(told, number), pytest.raises(kind, match=told):
                call()
    assert (keys.list_records(SPACE), keys.list_logs(SPACE)) == ([], [])


def test_nothing_to_write_is_no_error(keys: KeyStore) -> None:
    keys.put_records(SPACE, {}, 60.0)
    keys.append_log(SPACE, [], 5)
    assert (keys.list_records(SPACE), keys.list_logs(SPACE)) == ([], [])


# --- logs -------------------------------------------------------------------------------------------------


def lines(keys: KeyStore, name: str = "report", **limits: int) -> list[bytes]:
    return keys.read_log(SPACE, name, **limits)


def test_the_newest_lines_are_read_first_and_only_so_many_stay(harness: Harness, keys: KeyStore) -> None:
    keys.append_log(SPACE, [("report", b"1"), ("report", b"2")], 10)
    harness.open().keys.append_log(SPACE, [("report", b"3")], 10)
    assert lines(keys) == [b"3", b"2", b"1"]
    assert lines(keys, limit=2) == [b"3", b"2"]
    for number in range(30):
        keys.append_log(SPACE, [("report", b"%d" % number)], 4)
    assert lines(keys, limit=100) == [b"29", b"28", b"27", b"26"]
    keys.append_log(SPACE, [("report", b"%d" % number) for number in range(30, 50)], 3)
    assert lines(keys, limit=100) == [b"49", b"48", b"47"]
    keys.append_log(SPACE, [("report", b"50"), ("report", b"51")], 10)
    assert lines(keys) == [b"51", b"50", b"49", b"48", b"47"], "it may grow again"


def test_a_call_of_more_lines_than_a_log_keeps_leaves_the_newest(keys: KeyStore) -> None:
    many = [(f"job-{number % 2}", str(number).encode()) for number in range(20_000)]
    keys.append_log(SPACE, many, 3)
    assert keys.read_log(SPACE, "job-1") == [b"19999", b"19997", b"19995"]
    keys.append_log(SPACE, many, 9000)
    assert keys.read_log(SPACE, "job-0", limit=2) == [b"19998", b"19996"]
    assert len(keys.read_log(SPACE, "job-0", limit=10_000)) == 9000
    assert keys.list_logs(SPACE) == ["job-0", "job-1"]


@pytest.mark.spans
def test_one_call_may_write_to_several_logs_each_of_which_keeps_its_own(keys: KeyStore) -> None:
    keys.append_log(SPACE, [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4"), ("c", b"5")], 2)
    assert [lines(keys, name) for name in ("a", "b", "c", "d")] == [[b"4", b"3"], [b"2"], [b"5"], []]
    assert keys.list_logs(SPACE) == ["a", "b", "c"]


@pytest.mark.spans
def test_logs_are_listed_by_name(keys: KeyStore) -> None:
    assert keys.list_logs(SPACE) == []
    keys.append_log(SPACE, [(name, b"x") for name in ODD], 5)
    keys.append_log("other", [("elsewhere", b"x")], 5)
    assert sorted(keys.list_logs(SPACE)) == sorted(ODD)
    assert keys.list_logs(SPACE) == sorted(ODD, key=str.encode)


@pytest.mark.parametrize("line", [b"", b"\0\xff\n", "Zürich".encode(), b"x" * LONGEST_RECORD])
def test_any_line_comes_back_as_it_was_and_twice_when_it_was_written_twice(keys: KeyStore, line: bytes) -> None:
    keys.append_log(SPACE, [("report", line), ("report", line)], 5)
    assert lines(keys) == [line, line]


@pytest.mark.spans
def test_a_log_outlives_the_records_of_its_space(harness: Harness, keys: KeyStore) -> None:
    keys.put_records(SPACE, {"report": b"record"}, 5.0)
    keys.append_log(SPACE, [("report", b"line")], 5)
    harness.advance(86400.0)
    assert keys.get_record(SPACE, "report") is None
    assert lines(keys) == [b"line"]
    assert names(keys) == []


def test_a_log_is_no_record_and_a_record_no_log(keys: KeyStore) -> None:
    keys.append_log(SPACE, [("line", b"1")], 5)
    keys.put_records(SPACE, {"record": b"2"}, 60.0)
    assert names(keys) == ["record"]
    assert keys.list_logs(SPACE) == ["line"]
    keys.delete_records(SPACE, ["line"])
    assert lines(keys, "line") == [b"1"]


# --- beside everything else -------------------------------------------------------------------------------


@pytest.mark.spans
@pytest.mark.needs("leases")
def test_none_of_it_is_a_message_or_a_queue(backend: QueueBackend) -> None:
    """A space may be called like a queue."""
    keys = backend.keys
    keys.put_records(QUEUE, {"one": b"1"}, 60.0)
    keys.append_log(QUEUE, [("one", b"1")], 5)
    assert (backend.queues(), backend.stats(QUEUE).pending, backend.list_messages()) == ([], 0, [])
    lease = new_lease(backend)
    keys.first_run(QUEUE, "one")
    assert keys.begin_many([(lease, Guards(holds=(Hold("one"),)))])[0]
    assert backend.ack(lease)
    assert keys.get_record(QUEUE, "one") == b"1"
    assert keys.list_records(QUEUE) == [("one", b"1")]
    assert keys.read_log(QUEUE, "one") == [b"1"]
