"""The section of tests/faults/rows.md that runs of scripts/soak fill: it is found, and made anew of their documents."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

from scripts import soaked

from jobpool_torture.result import MEANINGS, Result
from jobpool_torture.schedule import KINDS


def a_run(backend: str, **more: Any) -> dict[str, Any]:
    result = Result(struck=Counter({"child.kill": 30, "broker.restart": 7}), late=[1.5], **more)
    told = {"backend": backend, "minutes": 20.0, "seed": 9, "versions": {"jobpool": "0.1.0", "python": "3.11.7"}}
    return told | result.to_dict() | {"jobs": asdict(result.tally)}


def test_the_page_has_its_place_and_only_that_changes() -> None:
    page = soaked.PAGE.read_text("utf-8")
    made = soaked.rewritten(page, f"{soaked.BEGIN}new\n{soaked.END}")
    before, _, rest = page.partition(soaked.BEGIN)
    assert made == f"{before}{soaked.BEGIN}new\n{soaked.END}{rest.partition(soaked.END)[2]}"


def test_each_run_is_a_column_and_every_count_is_in_a_row() -> None:
    left_out = {"net.cut": "sqlite:// has no network"}
    made = soaked.section([a_run("sqlite:////q.db", left_out=left_out), a_run("postgresql://a@b/c", duplicates=1234)])
    lines = made.splitlines()
    assert "$ scripts/soak postgres --minutes 20 --seed 9" in lines
    assert "| | SQLite | Postgres |" in lines
    assert f"| kinds of fault | 2 of {len(KINDS)}; left out: sqlite:// has no network | 2 of {len(KINDS)} |" in lines
    assert "| run more than once to the end | 0 | 1,234 |" in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {4}
    assert set(MEANINGS) <= set(re.findall(r"[A-Z-]+", made))
