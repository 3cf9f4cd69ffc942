"""The cook-book's program for cron: typed as its page says, and run for the night that it tries out."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from support.pages import DOCS, page, run, section

PROGRAM = DOCS / "cookbook" / "nightly.py"
SECTION = section(page("cookbook"), "Run something every night")


def test_what_the_page_says_to_type_sums_up_the_day_before_the_night(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "sales.csv").write_text("day,amount\n2026-05-31,19.99\n2026-06-01,5.00\n2026-05-31,0.01\n")
    coming, trial, pool = map(shlex.split, re.findall(r"^\$ (.*)$", SECTION, re.MULTILINE))
    assert len(run(tmp_path, *coming).stdout.splitlines()) == 4
    assert re.search(r"sum-up +2026-06-01T00:30:00Z +fired", run(tmp_path, *trial).stdout)
    told = run(tmp_path, *pool, "--workers", "1", "--until-empty", "--fail-on-dead").stderr
    assert "WARNING" not in told, told
    assert (tmp_path / "reports" / "2026-05-31.txt").read_text() == "20.00\n"
