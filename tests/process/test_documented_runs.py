"""What the README and the demo say one can type: typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.tiers import more

from stdlib_reports.survey import subjects

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0
"""Seconds for one command; on a busy machine they take a tenth of it."""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """No settings of the machine, and a runtime directory of the test's own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JOBPOOL_")}
    return {**own, "JOBPOOL_RUNTIME_DIR": str(tmp_path / "run"), "PYTHONPATH": str(ROOT / "docs" / "demo")}


def run(*command: str, environment: Mapping[str, str], folder: Path) -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobpool(*words: str, environment: Mapping[str, str], folder: Path) -> str:
    return run(str(Path(sys.executable).with_name("jobpool")), *words, environment=environment, folder=folder)


def test_the_start_in_the_readme_runs_as_it_stands(tmp_path: Path, environment: Mapping[str, str]) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(# reports\.py\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "reports.py").write_text(code)

    said = run(sys.executable, "reports.py", environment=environment, folder=tmp_path)
    assert "waiting=102" in said

    worked = ("--workers", "2", "--queue", "reports", "--app", "reports.py", "--until-empty", "--fail-on-dead")
    jobpool(*worked, environment=environment, folder=tmp_path)
    left = jobpool("list", "--json", environment=environment, folder=tmp_path)
    assert left.strip() == "[]"


@pytest.mark.parametrize(("words", "reports"), [(("--reports", "10"), 10), *more(((), len(subjects())))])
def test_the_demo_sees_what_it_promises(
    tmp_path: Path, environment: Mapping[str, str], words: tuple[str, ...], reports: int
) -> None:
    folder = tmp_path / "out"
    demo = (sys.executable, "-m", "stdlib_reports", "--output", str(folder), *words)
    said = run(*demo, environment=environment, folder=tmp_path)

    assert re.search(r"dead letters +2 ", said), said
    assert re.search(r"lost +0", said), said
    index = (folder / "reports" / "index.html").read_text("utf-8")
    links = re.findall(r"href='([^']+)'", index)
    assert len(links) == reports
    assert len(subjects()) >= 190
    assert all((folder / "reports" / link).is_file() for link in links)


def test_the_demo_can_be_run_again_over_itself(tmp_path: Path, environment: Mapping[str, str]) -> None:
    folder = tmp_path / "out"
    (folder / "reports").mkdir(parents=True)
    (folder / "reports" / "stale.html").touch()
    (folder / "mine.txt").touch()
    code = "import sys; from pathlib import Path; from stdlib_reports.__main__ import clear; "
    code += "from stdlib_reports.shelf import Shelf; clear(Shelf(Path(sys.argv[1])))"
    run(sys.executable, "-c", code, str(folder), environment=environment, folder=tmp_path)

    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "reports"]
    assert not list((folder / "reports").iterdir())
