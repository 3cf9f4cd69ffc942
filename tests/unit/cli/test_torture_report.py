"""How the end of a torture reads: every count, the first ids of what is wrong, the files and how to see it again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jobpool_torture.options import Options
from jobpool_torture.result import MEANINGS, Result, Tally
from jobpool_torture.run import Phases, Run
from jobpool_torture.schedule import Fault
from jobpool_torture.view import SHOWN_IDS, document, head, line, report

OPTIONS = Options("redis://:secret@host/0", seed=17, queue="torture-1", seconds=60.0)
FAULTS = [Fault(0, 1.5, "child.kill"), Fault(1, 2.0, "master.stop", 1, 0, 3.0)]


def a_run(result: Result) -> Run:
    return cast(Run, SimpleNamespace(options=OPTIONS, faults=FAULTS, broker=[], result=result))


def test_the_head_says_what_is_done_and_what_is_left_out_and_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    head(
        a_run(Result(left_out={"net.cut": "no network", "net.hole": "no network", "clock.jump": "no clock"})),
        with_schedule=True,
    )
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "torture of redis://:***@host/0, queue torture-1, seed 17"
    assert shown[1].startswith("3 pools with 4 workers each, ttl 5 s, 20 jobs/s, 2 faults in 1m00s: child.kill")
    assert shown[2:4] == ["left out: net.cut, net.hole: no network", "left out: clock.jump: no clock"]
    assert [row.split()[2] for row in shown[4:]] == ["child.kill", "master.stop"]


def test_a_moment_is_one_line() -> None:
    result = Result(tally=Tally(enqueued=1200, done=1000, dead=3), struck=Counter(a=1))
    now = SimpleNamespace(phase="drain", left=61.0, pending=197, result=result)
    assert line(cast(Phases, now)) == (
        "drain 1m01s left: 1,200 enqueued, 1,000 done, 3 dead, 197 to do; 0 failures, 0 crashes, 0 refused,"
        " 0 unanswered; 1 fault"
    )


def test_a_clean_report_has_every_count(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(late=[0.5, 1.0], descriptors={"pool1": {"socket": 1}, "pool2": {}})
    report(a_run(result), None, None, "jobpool torture --seed 17")
    shown = capsys.readouterr().out
    for name in MEANINGS:
        assert f"\n{name} " in shown
    assert "\nclean.  jobpool " in shown
    assert "timeouts: 2 in pools that nothing held up, given their verdict 0.50 s (p50), 1.00 s (p99)" in shown
    assert "\ndescriptors: pool1 +1 socket, pool2 as before\n" in shown
    assert shown.endswith("\nagain: jobpool torture --seed 17\n")
    assert "ledger" not in shown


def test_a_run_that_has_shown_nothing_is_not_called_clean(capsys: pytest.CaptureFixture[str]) -> None:
    report(a_run(Result(planned=2, missed=2)), None, None, "again")
    why = "none of the 2 faults of the schedule found anything to strike"
    assert f"\nno violation, and not clean: {why}.  jobpool " in capsys.readouterr().out


def test_a_violation_is_named_with_the_first_ids_and_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result()
    result.add("LOST", [f"job-{number:02d}" for number in range(SHOWN_IDS + 2)])
    result.add("FD", [])
    report(a_run(result), Path("/somewhere"), Path("/somewhere/shortest.json"), "again")
    shown = capsys.readouterr().out
    assert shown.count("\nLOST: job-") == SHOWN_IDS
    assert "\nLOST: … and 2 more\n" in shown
    assert "FD:" not in shown
    assert f"\n{SHOWN_IDS + 2} violations.  jobpool " in shown
    assert "left.jsonl: /somewhere\n" in shown
    assert "/somewhere/shortest.json\n" in shown


def test_the_document_has_all_of_it() -> None:
    result = Result(interrupted=True, left=3)
    result.add("STUCK", ["b", "a"])
    told = document(a_run(result), None, None, "again")
    assert told["backend"] == "redis://:***@host/0"
    assert told["counts"] == dict.fromkeys(MEANINGS, 0) | {"STUCK": 2}
    assert told["violations"] == {"STUCK": ["a", "b"]}
    assert (told["clean"], told["interrupted"], told["left"]) == (False, True, 3)
    assert [fault["kind"] for fault in told["schedule"]] == ["child.kill", "master.stop"]
    assert {"jobpool", "python"} == set(told["versions"])
