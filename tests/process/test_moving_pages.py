"""The pages for those who come from another system: their examples run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


@pytest.mark.parametrize("page", ["from-celery", "from-rq"])
def test_two_jobs_run_and_the_delayed_one_waits(page: str, tmp_path: Path) -> None:
    app, producer = re.findall(r"^```python\n(.*?)^```", (ROOT / f"docs/{page}.md").read_text("utf-8"), re.M | re.S)
    name = re.match(r"# (\w+\.py)\n", app)
    assert name is not None
    (tmp_path / name[1]).write_text(app)
    (tmp_path / "producer.py").write_text(producer)

    def run(*command: str) -> str:
        own = {key: value for key, value in os.environ.items() if not key.startswith("JOBPOOL_")}
        own["JOBPOOL_RUNTIME_DIR"] = str(tmp_path / "run")
        done = subprocess.run(
            command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    jobpool = str(Path(sys.executable).with_name("jobpool"))
    run(sys.executable, "producer.py")
    run(jobpool, "--app", name[1], "--workers", "1", "--max", "2", "--fail-on-dead")
    [left] = json.loads(run(jobpool, "list", "--json"))
    assert left["state"] == "delayed"
    if "Scheduler(" in app:
        assert "inline" not in run(jobpool, "cron", "list", "--app", name[1]), "a pool's children run it, as workers do"
