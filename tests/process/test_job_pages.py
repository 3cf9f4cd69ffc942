"""docs/jobs.md, docs/batches.md and the pages for those who come from another system: typed and run as they stand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support.pages import blocks, page, run, section

from jobpool.client.jobs import Jobs
from jobpool.message.builder import JobBuilder
from jobpool.message.context import JobContext
from jobpool.message.results import JobState

JOBS = page("jobs")
ENDS = """
if __name__ == "__main__":
    for url in ("ftp://x", "https://busy", "https://closed", "https://open"):
        fetch.define(url).identifier(url.rpartition("/")[2]).dispatch()
"""


def test_what_the_page_says_to_type_does_what_it_says(tmp_path: Path) -> None:
    shop, *calls, ends, kept, asked = blocks(JOBS)
    compile(kept + asked, "the last blocks", "exec")  # test_kept_results.py runs their like
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "calls.py").write_text("".join(calls))
    (tmp_path / "ends.py").write_text(f"import jobpool\n\n{ends}{ENDS}")
    (tmp_path / "numbers.jsonl").write_text('{"a": 1, "b": 2}\n{"a": 2, "b": 2}\n')
    enqueue_one, enqueue_file, pool, history = [
        line[2:] for block in blocks(JOBS, "console") for line in block.splitlines()
    ]

    for program in ("calls.py", "ends.py"):
        run(tmp_path, "python", program)
    for command in (enqueue_one, enqueue_file):
        run(tmp_path, *shlex.split(command))
    burst = ("--app", "ends.py", "--workers", "2", "--until-empty", "--history", "table keep=5000")
    run(tmp_path, *shlex.split(pool), *burst)

    with Jobs(f"sqlite:///{tmp_path}/jobpool.db") as jobs:
        for queue in ("reports", "default"):
            stats = jobs.stats(queue)
            assert (stats.waiting, stats.delayed, stats.dead) == (0, 0, int(queue == "default")), queue
    said = run(tmp_path, *shlex.split(history), "--limit", "5000").stdout
    assert said.count("report of customer") == 2500 + 6
    assert said.count("report of customer 7 since 2026-06-01") == 5
    ended = json.loads(run(tmp_path, "jobpool", "history", "fetch", "--history", "table", "--json").stdout)
    rows = {(row["id"], row["attempt"], row["status"]) for row in ended}
    busy, closed = {("busy", 1, "requeued"), ("busy", 2, "acked")}, {("closed", 1, "released"), ("closed", 1, "acked")}
    assert rows == {("x", 1, "dead-lettered"), ("open", 1, "acked"), *busy, *closed}
    sums = json.loads(run(tmp_path, "jobpool", "history", "add", "--history", "table", "--json").stdout)
    assert sorted(row["output"] for row in sums) == ["3", "3", "4"]


def test_the_page_names_each_step_and_each_part_of_the_context() -> None:
    steps, parts = section(JOBS, "The steps of a job"), section(JOBS, "In the handler")
    own = {name for name, value in vars(JobBuilder).items() if not name.startswith("_") and callable(value)}
    on_schedules = own - {step for step in own if f"`{step}(" in steps or f" `{step}(" in steps}
    cron = page("cron")
    assert [step for step in on_schedules if f"{step}(" not in cron and step != "dispatch"] == []
    for name in (name for name in vars(JobContext) if not name.startswith("_")):
        assert re.search(rf"`{name}[`(]", parts), name


BATCHES = page("batches")


def test_its_examples_do_what_it_says(tmp_path: Path) -> None:
    chain, send, members, batch, nightly = blocks(BATCHES)
    made, _ = batch.split("end = batch.wait(timeout=60)")
    (tmp_path / "app.py").write_text(f"{chain}\n\n{members}\n\n{nightly}")
    (tmp_path / "send.py").write_text(f"from app import *\n\n{send}\n{made}\nprint(batch.id)\n")

    ident = run(tmp_path, "python", "send.py").stdout.split()[-1]
    run(tmp_path, "jobpool", "enqueue", "nightly")
    log = run(tmp_path, "jobpool", "--app", "app.py", "--workers", "2", "--until-empty").stderr

    assert "unpacked 15 files" in log
    assert "June {'id': " in log
    [told] = blocks(BATCHES, "json")
    [found] = [json.loads(line.replace("'", '"')) for line in re.findall(r" June ({.*?})$", log, re.MULTILINE)]
    assert re.search(r"all {'id': '\w+:batch', 'total': 5, 'succeeded': 5, 'failed': 0,", log)
    of_a_run = ("id", "failed_ids")
    assert found.keys() == json.loads(told).keys()
    assert {k: v for k, v in found.items() if k not in of_a_run} == {
        k: v for k, v in json.loads(told).items() if k not in of_a_run
    }
    with Jobs(f"sqlite:///{tmp_path}/jobpool.db") as jobs:
        assert jobs.status(ident).state is JobState.DONE
    status = run(tmp_path, "jobpool", "status", ident).stdout
    assert re.search(rf"^{ident} +done .*100% 5 of 5 jobs have ended, 1 failed", status, re.M)


@pytest.mark.parametrize("name", ["from-celery", "from-rq"])
def test_two_jobs_run_and_the_delayed_one_waits(name: str, tmp_path: Path) -> None:
    app, producer = blocks(page(name))
    file = app.split()[1]
    assert file.endswith(".py")
    (tmp_path / file).write_text(app)
    (tmp_path / "producer.py").write_text(producer)

    run(tmp_path, "python", "producer.py")
    run(tmp_path, "jobpool", "--app", file, "--workers", "1", "--max", "2", "--fail-on-dead")
    [left] = json.loads(run(tmp_path, "jobpool", "list", "--json").stdout)
    assert left["state"] == "delayed"
    if "Scheduler(" in app:
        listed = run(tmp_path, "jobpool", "cron", "list", "--app", file).stdout
        assert "inline" not in listed, "a pool's children run it, as workers do"
