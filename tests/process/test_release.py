"""A release, and what the README and the demo say one can type: typed, also in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.pages import run
from support.tiers import more

from stdlib_reports.survey import subjects

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"jobpool": "pool", "jobpool_torture": "pool", "jobpool_backends": "backends"}
TEXTS = (".md", ".py")
LIMIT_S = 300.0
WORKED = ("--workers", "2", "--queue", "reports", "--app", "reports.py", "--until-empty", "--fail-on-dead")


def write_the_first_program(folder: Path) -> None:
    """Write the one of the README."""
    readme = (ROOT / "README.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(# reports\.py\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (folder / "reports.py").write_text(code)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("release")
    run_clean(ROOT, sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    return folder


def run_clean(folder: Path, *command: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "PYTHONPATH"))}
    own["JOBPOOL_RUNTIME_DIR"] = str(folder / "run")
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed() -> set[str]:
    """All files of the packages, as they are in the tree."""
    return {
        str(path.relative_to(ROOT / top))
        for package, top in PACKAGES.items()
        for path in (ROOT / top / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_both_hold_what_is_installed(release: Path) -> None:
    [wheel] = release.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == installed()
    [source] = release.glob("*.tar.gz")
    with tarfile.open(source) as held:
        inside = {member.partition("/")[2] for member in held.getnames()}
    assert {f"{PACKAGES[name.split('/')[0]]}/{name}" for name in installed()} <= inside
    assert {"README.md", "LICENSE", "pyproject.toml"} <= inside


def test_every_extra_that_a_text_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [path for top in ("pool", "backends", "docs") for path in (ROOT / top).rglob("*") if path.suffix in TEXTS]
    texts.append(ROOT / "README.md")
    named = {extra for path in texts for extra in re.findall(r"(?:jobpool|'\.)\[([a-z]+)\]", path.read_text("utf-8"))}
    assert {"postgres", "redis"} <= named
    assert named <= set(project["optional-dependencies"])


@pytest.mark.more
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_runs_the_readmes_first_job_in_an_empty_environment(kind: str, release: Path, tmp_path: Path) -> None:
    [file] = release.glob(kind)
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run_clean(tmp_path, str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", str(file))
    write_the_first_program(tmp_path)
    run_clean(tmp_path, str(programs / "python"), "reports.py")
    run_clean(tmp_path, str(programs / "jobpool"), *WORKED)
    assert run_clean(tmp_path, str(programs / "jobpool"), "list", "--json").strip() == "[]"


DEMO: dict[str, Any] = {"PYTHONPATH": str(ROOT / "docs" / "demo")}


def test_the_start_in_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    write_the_first_program(tmp_path)
    assert run(tmp_path, "python", "reports.py").stdout == "102 jobs wait\n"
    run(tmp_path, "jobpool", *WORKED)
    assert run(tmp_path, "jobpool", "list", "--json").stdout.strip() == "[]"


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
