"""History and sums as running pools write them: to a file, and to the broker."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from support.poolrig import Rig
from support.waiting import wait_until

from jobpool.telemetry.history.places import HistoryFile, HistoryTable, Place
from jobpool.telemetry.metrics.rollup import HOUR, rollups, summed


def statuses(place: Place, name: str) -> list[str]:
    return [row["status"] for row in place.read(name, 1000)]


def test_every_attempt_is_in_the_file_with_how_it_ended_and_without_secrets(rig: Rig) -> None:
    place = HistoryFile(rig.directory / "h.ndjson", 100)
    rig.enqueue("fail", {"times": 2}, name="twice", max_retries=3)
    rig.enqueue("die", {"how": "SIGSEGV"}, name="crasher")
    rig.enqueue("hang", {"how": "hang_in_sum"}, name="hanger", timeout=0.3)
    rig.enqueue("ask_for", {"what": "snooze"})
    rig.enqueue("return_much", {"mebibytes": 1})
    rig.enqueue("typed", "no object at all")
    rig.enqueue("work", {"tag": "Bearer hunter2-token", "seconds": 0.0})
    rig.enqueue("typed", {"customer": 7, "api_key": "hunter2", "site": "hunter2"}, name="masked")
    history = ("--history", "file:h.ndjson mask=site,customer")
    assert rig.run_pool("--until-empty", *history, "--kill-grace", "0.2", "--retry", "fixed base=0").wait() == 0
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
    assert "hunter2" not in (rig.directory / "h.ndjson").read_text()
    [masked] = place.read("masked", 9)
    assert masked["payload"] == {"customer": "***", "api_key": "***", "site": "***"}


@pytest.mark.brokers
def test_the_newest_of_each_name_and_the_sums_of_all_pools_are_in_the_broker_when_they_have_stopped(rig: Rig) -> None:
    pools = [rig.start_pool("--history", "table keep=7", workers=1).wait_ready(1) for _ in range(2)]
    place = HistoryTable(rig.backend.keys, 7)
    rig.enqueue("work")
    wait_until(lambda: statuses(place, "work") == ["acked"], 30, "rows come while a pool runs")
    rig.enqueue_many("work", [{"seconds": 0.01}] * 60)
    rig.enqueue("fail", {"times": 9}, name="nightly")
    rig.wait_drained()
    for pool in pools:
        assert pool.stop() == 0
        assert not pool.log("metrics are served"), "nobody has asked for a port"
    assert statuses(place, "work") == ["acked"] * 7
    assert statuses(place, "nightly") == ["dead-lettered"]
    assert place.names() == ["nightly", "work"]

    now = time.time()
    found = summed(rollups(rig.backend.keys, now - HOUR, now + HOUR), 24 * HOUR)
    outcomes: dict[str, Counter[str]] = {}
    for row in found:
        outcomes.setdefault(row.handler, Counter()).update(row.outcomes)
    assert outcomes["work"]["succeeded"] == 61
    assert outcomes["fail"] == {"failed": 1, "failed_permanently": 1}
    assert sum(row.run.count for row in found if row.handler == "work") == 61


def test_a_history_that_cannot_be_written_never_holds_up_a_job_and_sums_can_be_off(rig: Rig) -> None:
    rig.witness = True
    rig.enqueue_many("work", [{}] * 50)
    pool = rig.run_pool("--until-empty", "--history", "file:/dev/full", "--rollups", "0")
    assert pool.wait() == 0
    rig.account().assert_once_each()
    events = Counter(entry["event"] for entry in pool.log())
    assert events["history is cut short: its place cannot be written"] == 1
    assert rig.backend.keys.list_records("rollups") == []


def test_a_place_that_cannot_be_stops_the_start_with_one_sentence(rig: Rig) -> None:
    pool = rig.run_pool("--history", "file:missing/h")
    assert pool.wait() == 2
    assert "there is no directory" in pool.log("the pool ends")[0]["error"]
