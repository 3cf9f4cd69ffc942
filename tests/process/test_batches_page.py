"""docs/batches.md: its programs as the page has them, and a pool that works through them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.pages import blocks, page, run

from jobpool.client.jobs import Jobs
from jobpool.message.results import JobState

PAGE = page("batches")


def test_its_examples_do_what_it_says(tmp_path: Path) -> None:
    chain, send, members, batch, nightly = blocks(PAGE)
    made, _ = batch.split("end = batch.wait(timeout=60)")
    (tmp_path / "app.py").write_text(f"{chain}\n\n{members}\n\n{nightly}")
    (tmp_path / "send.py").write_text(f"from app import *\n\n{send}\n{made}\nprint(batch.id)\n")

    ident = run(tmp_path, "python", "send.py").stdout.split()[-1]
    run(tmp_path, "jobpool", "enqueue", "nightly")
    log = run(tmp_path, "jobpool", "--app", "app.py", "--workers", "2", "--until-empty").stderr

    assert "unpacked 15 files" in log
    assert "June {'id': " in log
    [told] = blocks(PAGE, "json")
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
