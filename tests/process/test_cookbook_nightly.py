"""The cook-book's program for cron: typed as its page says, and run for the night that it tries out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROGRAM = DOCS / "cookbook" / "nightly.py"
SECTION = (DOCS / "cookbook.md").read_text("utf-8").partition("\n## Run something every night\n")[2]
SECTION = SECTION.partition("\n## ")[0]


def test_what_the_page_says_to_type_sums_up_the_day_before_the_night(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "sales.csv").write_text("day,amount\n2026-05-31,19.99\n2026-06-01,5.00\n2026-05-31,0.01\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBPOOL_")}
    environment = {**kept, "JOBPOOL_RUNTIME_DIR": str(tmp_path / "run")}

    def jobpool(line: str, *more: str) -> str:
        words = [sys.executable, "-m", "jobpool.cli.main", *shlex.split(line)[1:], *more]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60.0, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    coming, trial, pool = re.findall(r"^\$ (.*)$", SECTION, re.MULTILINE)
    assert len(jobpool(coming).splitlines()) == 4
    assert re.search(r"sum-up +2026-06-01T00:30:00Z +fired", jobpool(trial))
    jobpool(pool, "--workers", "1", "--until-empty", "--fail-on-dead")
    assert (tmp_path / "reports" / "2026-05-31.txt").read_text() == "20.00\n"
