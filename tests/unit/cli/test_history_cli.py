"""What became of jobs: `jobpool history`, `jobpool status` and `jobpool result`."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from calling import Jobpool
from support.jobs import a_job

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import NewBatch
from jobpool.message.masking import Masker
from jobpool.message.results import capped, keep
from jobpool.message.settlement import Ack
from jobpool.telemetry.history.places import HistoryFile, HistoryTable
from jobpool.telemetry.history.row import AttemptRow, encode, row_of
from jobpool.telemetry.metrics.memory import FINE_BUCKETS, Histogram
from jobpool.telemetry.metrics.rollup import HOUR, MINUTE, Row, key, minute_of


def a_line(number: int, status: str = "acked", name: str = "monthly", **fields: object) -> tuple[str, bytes]:
    attempt = AttemptRow(name, "report", f"id{number}", 1, "reports", {"n": number}, status, start=1e9, duration=2.0)
    return name, encode({**row_of(attempt, Masker()), **fields})


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Options that name a file with some history."""
    place = HistoryFile(tmp_path / "h.ndjson", 100)
    place.append([a_line(0, "dead-lettered", error="Traceback:\n  deep\nValueError: no paper" + "!" * 500)])
    place.append([a_line(number) for number in range(1, 40)] + [a_line(99, name="other", queue="mail")])
    return f"--history=file:{tmp_path}/h.ndjson"


def test_the_newest_attempts_of_a_name_are_listed(jobpool: Jobpool, recorded: str) -> None:
    lines = jobpool("history", "monthly", recorded).stdout.splitlines()
    assert lines[0].split()[:4] == ["START", "STATUS", "ID", "ATTEMPT"]
    assert [line.split()[2] for line in lines[1:]] == [f"id{number}" for number in range(39, 19, -1)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.split()[0]) for line in lines[1:])
    assert len(jobpool("history", "monthly", recorded, "--limit", "3").stdout.splitlines()) == 4


def test_a_status_is_found_however_long_ago(jobpool: Jobpool, recorded: str) -> None:
    line = jobpool("history", "monthly", recorded, "--status", "dead-lettered", "--limit", "1").stdout.splitlines()[1]
    assert "id0" in line
    assert "ValueError: no paper" in line


def test_of_a_long_traceback_the_error_is_listed(jobpool: Jobpool, tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\n" + '  File "app.py"\n' * 50 + "ValueError: no paper\nin any tray"
    HistoryFile(tmp_path / "h", 9).append([a_line(1, error=error), a_line(2, output="x" * 500)])
    newest, oldest = jobpool("history", "monthly", f"--history=file:{tmp_path}/h").stdout.splitlines()[1:]
    assert oldest.endswith(" ValueError: no paper")
    assert newest.endswith(f" {'x' * 200}… (300 characters more)")


def test_json_has_the_fields_uncut(jobpool: Jobpool, recorded: str) -> None:
    [row] = json.loads(jobpool("history", "monthly", recorded, "--status", "dead-lettered", "--json").stdout)
    assert row["error"].endswith("!" * 500)
    assert row["payload"] == {"n": 0}


def test_mistyped_words_are_answered_with_the_right_ones(jobpool: Jobpool, recorded: str) -> None:
    refused = jobpool("history", "monthly", recorded, "--status", "dead")
    assert (refused.exit_code, "'dead-lettered'" in refused.stderr) == (2, True)
    assert "'lost'" not in refused.stderr, "a lost lease leaves no row"
    told = "no such attempt of 'montly' is recorded; did you mean 'monthly'?\n"
    assert jobpool("history", "montly", recorded).stderr == told
    told = "no such attempt of 'report' is recorded; pools need the setting `history` too\n"
    assert jobpool("history", "report", recorded).stderr == told


def test_all_of_an_attempt_is_told_and_steers_no_terminal(jobpool: Jobpool, tmp_path: Path) -> None:
    HistoryFile(tmp_path / "h", 9).append([a_line(1, output="red \x1b[31m\nsecond line")])
    told = jobpool("history", "monthly", "--full", f"--history=file:{tmp_path}/h").stdout
    assert "status     acked" in told
    assert "duration   2.000000 s" in told
    assert "           second line" in told
    assert "\x1b" not in told


def test_without_a_name_the_names_are_listed(jobpool: Jobpool, recorded: str) -> None:
    assert jobpool("history", recorded).stdout.splitlines() == ["monthly", "other"]
    assert json.loads(jobpool("history", recorded, "--json").stdout) == ["monthly", "other"]


def test_the_table_is_read_from_the_broker(jobpool: Jobpool, broker: QueueBackend) -> None:
    HistoryTable(broker.keys, 100).append([a_line(1), a_line(2)])
    assert [row["id"] for row in json.loads(jobpool("history", "monthly", "--history", "table", "--json").stdout)] == [
        *("id2", "id1"),
    ]


def test_the_setting_names_the_place_too(jobpool: Jobpool, tmp_path: Path) -> None:
    HistoryFile(tmp_path / "h", 9).append([a_line(1)])
    (tmp_path / "jobpool.toml").write_text('history = "file:h"\n')
    assert "id1" in jobpool("history", "monthly").stdout


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def rolled(broker: QueueBackend) -> int:
    """Rows of two pools in this minute, and of one two hours ago; the beginning of this minute."""
    minute = minute_of(time.time())
    rows = [
        (minute, "report", "one"),
        (minute, "report", "two"),
        (minute, "mail", "one"),
        (minute - 2 * HOUR, "old", "x"),
    ]
    records = {}
    for start, handler, pool in rows:
        run = Histogram(FINE_BUCKETS)
        for seconds in (0.04, 0.04, 8.0):
            run.add(seconds)
        row = Row(start, "reports", handler, {"succeeded": 2, "failed": 1, "requeued": 1, "released": 4}, run)
        records[key(row, pool)] = row.encode()
    broker.keys.put_records("rollups", records, 3600.0)
    return minute


@pytest.mark.usefixtures("rolled")
def test_sums_of_all_pools_by_queue_and_handler(jobpool: Jobpool) -> None:
    lines = [line.split()[1:] for line in jobpool("history", "--rollup").stdout.splitlines()]
    assert lines[1:] == [
        ["reports", "mail", "2", "1", "0", "0", "4", "2.69", "≤0.05", "≤10"],
        ["reports", "report", "4", "2", "0", "0", "8", "2.69", "≤0.05", "≤10"],
    ]


def test_sums_as_json_filtered_and_by_hour(jobpool: Jobpool, rolled: int) -> None:
    words = ("history", "--rollup", "--handler", "report", "--by", "hour", "--json")
    [row] = json.loads(jobpool(*words).stdout)
    assert (row["start"], row["seconds"]) == (rolled // HOUR * HOUR, HOUR)
    assert row["outcomes"] == {"succeeded": 4, "failed": 2, "requeued": 2, "released": 8}
    assert (row["runs"], row["buckets"]) == (6, [{"le": 0.05, "count": 4}, {"le": 10.0, "count": 2}])
    assert json.loads(jobpool(*words, "--queue", "nobody").stdout) == []


def test_how_far_back_is_asked_for(jobpool: Jobpool, rolled: int) -> None:
    found = json.loads(jobpool("history", "--rollup", "--since", "3h", "--json").stdout)
    assert [row["handler"] for row in found] == ["old", "mail", "report"]
    assert rolled - found[0]["start"] == 2 * HOUR
    assert found[0]["seconds"] == MINUTE


def test_sums_are_of_the_brokers_time(jobpool: Jobpool, broker: QueueBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = time.time() + 2 * HOUR
    row = Row(minute_of(ahead), "reports", "report", {"succeeded": 1}, Histogram(FINE_BUCKETS))
    broker.keys.put_records("rollups", {key(row, "one"): row.encode()}, 3600.0)
    monkeypatch.setattr(type(broker), "broker_time", lambda _: ahead)
    assert "report" in jobpool("history", "--rollup").stdout


def test_no_sums_are_said(jobpool: Jobpool, broker: QueueBackend) -> None:
    assert broker.keys is not None
    result = jobpool("history", "--rollup")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no rollups of that time" in result.stderr


def done(broker: QueueBackend, text: str = '{"pages": 7}') -> str:
    """The id of a job whose result is kept."""
    ident = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    assert broker.settle_many([(lease, Ack(result=keep(text, 60.0, lease, broker.clock.wall())))])[0]
    return ident


def test_status_tells_each_job_in_order(jobpool: Jobpool, broker: QueueBackend) -> None:
    ended = done(broker)
    dead = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    broker.abandon(lease, "failed", "Traceback …\nValueError: boom")
    waiting = broker.enqueue(a_job())
    result = jobpool("status", waiting, ended, dead, code=0)
    words = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in words[1:]] == [[waiting, "waiting"], [ended, "done"], [dead, "dead"]]
    assert result.stdout.rstrip().endswith("ValueError: boom")
    told = json.loads(jobpool("status", ended, "--json").stdout)
    assert [(one["id"], one["state"], one["handler"]) for one in told] == [(ended, "done", "report")]


def test_an_unknown_id_is_an_exit_code(jobpool: Jobpool, broker: QueueBackend) -> None:
    result = jobpool("status", done(broker), "never", code=1)
    assert "unknown" in result.stdout
    assert "its result is not kept" in result.stderr


def test_watch_ends_when_all_have(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    ack = Ack(result=keep("1", 60.0, lease, broker.clock.wall()))
    ending = threading.Timer(0.1, lambda: broker.settle_many([(lease, ack)]))
    ending.start()
    result = jobpool("status", ident, "--watch")
    ending.join()
    assert result.exit_code == 0
    assert "done" in result.stdout


def test_result_prints_json(jobpool: Jobpool, broker: QueueBackend) -> None:
    ident = done(broker)
    for written in (ident, f"id:{ident}"):
        result = jobpool("result", written)
        assert (result.exit_code, json.loads(result.stdout)) == (0, {"pages": 7})


def test_each_lack_of_a_result_has_its_exit_code(jobpool: Jobpool, broker: QueueBackend) -> None:
    large = done(broker, capped(b'"123456789"', 8))
    dead = broker.enqueue(a_job())
    [lease] = broker.fetch_many("reports", limit=1)
    broker.abandon(lease, "failed", "boom")
    waiting = broker.enqueue(a_job())
    for words, code, said in (
        ((dead,), 1, "failed for good"),
        (("never",), 3, "no job never is known"),
        (("",), 3, "no job '' is known"),
        ((large,), 3, "has 11 bytes"),
        ((waiting,), 4, "has not ended: it is waiting"),
        ((waiting, "--timeout", "0.1s"), 4, "has not ended"),
    ):
        result = jobpool("result", *words)
        assert (result.exit_code, result.stdout) == (code, ""), words
        assert said in result.stderr, words
    assert "soon" in jobpool("result", waiting, "--timeout", "soon", code=2).stderr


def test_the_id_of_a_batch_is_told_cancelled_and_has_no_result(jobpool: Jobpool, broker: QueueBackend) -> None:
    broker.batches.open(NewBatch("june"))
    broker.enqueue_many([a_job(batch="june"), a_job(batch="june")])
    broker.batches.close("june")
    assert jobpool("status", "june").stdout.splitlines()[1].split(maxsplit=2)[:2] == ["june", "running"]
    assert jobpool("status", "june").stdout.rstrip().endswith("0% 0 of 2 jobs have ended")
    assert jobpool("status", "id:june").stdout.splitlines()[1].split(maxsplit=2)[:2] == ["june", "running"]
    assert [jobpool("result", ident).exit_code for ident in ("june", "id:june")] == [3, 3]
    assert [jobpool("cancel", "id:june").exit_code for _ in range(2)] == [0, 0]
    assert jobpool("status", "june").stdout.rstrip().endswith("100% 2 of 2 jobs have ended, 2 cancelled")
    [told] = json.loads(jobpool("status", "june", "--json").stdout)
    assert [told[name] for name in ("total", "succeeded", "failed", "cancelled")] == [2, 0, 0, 2]
