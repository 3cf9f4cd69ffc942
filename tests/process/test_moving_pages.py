"""The pages for those who come from another system: their examples run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.pages import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["from-celery", "from-rq"])
def test_two_jobs_run_and_the_delayed_one_waits(page: str, tmp_path: Path) -> None:
    app, producer = re.findall(r"^```python\n(.*?)^```", (ROOT / f"docs/{page}.md").read_text("utf-8"), re.M | re.S)
    name = re.match(r"# (\w+\.py)\n", app)
    assert name is not None
    (tmp_path / name[1]).write_text(app)
    (tmp_path / "producer.py").write_text(producer)

    run(tmp_path, "python", "producer.py")
    run(tmp_path, "jobpool", "--app", name[1], "--workers", "1", "--max", "2", "--fail-on-dead")
    [left] = json.loads(run(tmp_path, "jobpool", "list", "--json").stdout)
    assert left["state"] == "delayed"
    if "Scheduler(" in app:
        listed = run(tmp_path, "jobpool", "cron", "list", "--app", name[1]).stdout
        assert "inline" not in listed, "a pool's children run it, as workers do"
