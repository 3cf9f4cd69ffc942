"""The pages for those who come from another system: their examples run as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pages import blocks, page, run


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
