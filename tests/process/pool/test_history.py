"""History as running pools write it: to a file that they share, and to the broker."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.telemetry.history.places import HistoryFile, HistoryTable, Place


def statuses(place: Place, name: str) -> list[str]:
    return [row["status"] for row in place.read(name, 1000)]


def test_every_attempt_is_in_the_file_with_how_it_ended(rig: Rig) -> None:
    place = HistoryFile(rig.directory / "h.ndjson", 100)
    rig.enqueue("fail", {"times": 2}, name="twice", max_retries=3)
    rig.enqueue("die", {"how": "SIGSEGV"}, name="crasher")
    rig.enqueue("hang", {"how": "hang_in_sum"}, name="hanger", timeout=0.3)
    rig.enqueue("ask_for", {"what": "snooze"})
    rig.enqueue("return_much", {"mebibytes": 1})
    rig.enqueue("typed", "no object at all")
    flags = (
        "--until-empty",
        "--history",
        "file:h.ndjson",
        "--kill-grace",
        "0.2",
        "--retry",
        "fixed base=0",
    )
    assert rig.run_pool(*flags).wait() == 0
    assert statuses(place, "twice") == ["acked", "requeued", "requeued"]
    assert [row["attempt"] for row in place.read("twice", 9)] == [3, 2, 1]
    assert statuses(place, "crasher") == ["acked", "crashed"]
    assert statuses(place, "ask_for") == ["acked", "released"]
    [hanger] = place.read("hanger", 9)
    assert hanger["status"] == "dead-lettered"
    assert "exceeded maximum execution time" in hanger["error"]
    assert "hang_in_sum" in json.dumps(hanger["cause"])
    assert 0.3 <= hanger["duration"] < 20
    assert hanger["end"] == pytest.approx(hanger["start"] + hanger["duration"])
    crashed = place.read("crasher", 9)[1]
    assert "SIGSEGV" in json.dumps(crashed["cause"])
    [large] = place.read("return_much", 9)
    assert len(large["output"]) < 100_000
    [typed] = place.read("typed", 9)
    assert typed["payload"] == "no object at all"


def test_secrets_are_masked_in_the_file(rig: Rig) -> None:
    payload = {"tag": "Bearer hunter2-token", "seconds": 0.0}
    rig.enqueue("work", payload)
    rig.enqueue("typed", {"customer": 7, "api_key": "hunter2", "site": "hunter2"})
    flags = ("--until-empty", "--history", "file:h.ndjson mask=site,customer")
    assert rig.run_pool(*flags).wait() == 0
    assert "hunter2" not in (rig.directory / "h.ndjson").read_text()
    [row] = HistoryFile(rig.directory / "h.ndjson", 100).read("typed", 9)
    assert row["payload"] == {"customer": "***", "api_key": "***", "site": "***"}


def test_pools_share_a_file_and_the_newest_of_each_name_stay_in_it(rig: Rig) -> None:
    rig.enqueue_many("work", [{"tag": "x" * 2000}] * 1500)
    rig.enqueue("work", {}, name="rare")
    pools = [rig.start_pool("--until-empty", "--history", "file:h.ndjson keep=20") for _ in range(3)]
    for pool in pools:
        assert pool.wait() == 0
    place = HistoryFile(rig.directory / "h.ndjson", 20)
    assert statuses(place, "rare") == ["acked"]
    assert len(statuses(place, "work")) >= 20
    lines = (rig.directory / "h.ndjson").read_text().splitlines()
    assert all(json.loads(line)["id"] for line in lines)
    assert (rig.directory / "h.ndjson").stat().st_size < 4 << 20


@pytest.mark.brokers
def test_the_table_keeps_the_newest_of_each_name_in_the_broker(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 50)
    rig.enqueue("fail", {"times": 9}, name="nightly")
    pools = [rig.start_pool("--until-empty", "--history", "table keep=7") for _ in range(2)]
    for pool in pools:
        assert pool.wait() == 0
    place = HistoryTable(rig.backend.keys, 7)
    assert statuses(place, "work") == ["acked"] * 7
    assert statuses(place, "nightly") == ["dead-lettered"]
    assert place.names() == ["nightly", "work"]


def test_rows_come_while_the_pool_runs_and_what_is_left_at_its_stop(rig: Rig) -> None:
    place = HistoryFile(rig.directory / "h.ndjson", 100)
    pool = rig.start_pool("--history", "file:h.ndjson").wait_ready(2)
    rig.enqueue("work")
    wait_until(lambda: statuses(place, "work"), 30)
    rig.enqueue_many("work", [{}] * 9)
    rig.wait_drained()
    assert pool.stop() == 0
    assert len(statuses(place, "work")) == 10


def test_a_history_that_cannot_be_written_never_holds_up_a_job(rig: Rig) -> None:
    rig.enqueue_many("work", [{}] * 50)
    pool = rig.start_pool("--until-empty", "--history", "file:/dev/full")
    assert pool.wait() == 0
    rig.account().assert_once_each()
    events = Counter(entry["event"] for entry in pool.log())
    assert events["history is cut short: its place cannot be written"] == 1


@pytest.mark.parametrize(
    ("where", "word"), [("file:missing/h", "there is no directory"), ("elsewhere", "'off', 'table' or 'file:PATH'")]
)
def test_a_place_that_cannot_be_stops_the_start_with_one_sentence(rig: Rig, where: str, word: str) -> None:
    pool = rig.run_pool("--history", where)
    assert pool.wait() == 2
    [sentence] = [line for line in pool.log_lines() if not line.startswith("{")]
    assert word in sentence
