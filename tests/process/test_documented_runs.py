"""What the README and the demo say one can type: typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.pages import run
from support.tiers import more

from stdlib_reports.survey import subjects

ROOT = Path(__file__).resolve().parents[2]
DEMO: dict[str, Any] = {"PYTHONPATH": str(ROOT / "docs" / "demo")}


def test_the_start_in_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(# reports\.py\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "reports.py").write_text(code)

    said = run(tmp_path, "python", "reports.py").stdout
    assert said == "102 jobs wait\n"

    worked = ("--workers", "2", "--queue", "reports", "--app", "reports.py", "--until-empty", "--fail-on-dead")
    run(tmp_path, "jobpool", *worked)
    left = run(tmp_path, "jobpool", "list", "--json").stdout
    assert left.strip() == "[]"


@pytest.mark.parametrize(("words", "reports"), [(("--reports", "10"), 10), *more(((), len(subjects())))])
def test_the_demo_sees_what_it_promises(tmp_path: Path, words: tuple[str, ...], reports: int) -> None:
    folder = tmp_path / "out"
    demo = ("-m", "stdlib_reports", "--output", str(folder), *words)
    said = run(tmp_path, "python", *demo, **DEMO).stdout

    assert re.search(r"dead letters +2 ", said), said
    assert re.search(r"lost +0", said), said
    index = (folder / "reports" / "index.html").read_text("utf-8")
    links = re.findall(r"href='([^']+)'", index)
    assert len(links) == reports
    assert len(subjects()) >= 190
    assert all((folder / "reports" / link).is_file() for link in links)


def test_the_demo_can_be_run_again_over_itself(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "reports").mkdir(parents=True)
    (folder / "reports" / "stale.html").touch()
    (folder / "mine.txt").touch()
    code = "import sys; from pathlib import Path; from stdlib_reports.__main__ import clear; "
    code += "from stdlib_reports.shelf import Shelf; clear(Shelf(Path(sys.argv[1])))"
    run(tmp_path, "python", "-c", code, str(folder), **DEMO)

    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "reports"]
    assert not list((folder / "reports").iterdir())
