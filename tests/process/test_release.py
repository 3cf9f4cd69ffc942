"""A release: its two files hold all that is installed, and each starts in an empty environment as the README says."""

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

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"jobpool": "pool", "jobpool_torture": "pool", "jobpool_backends": "backends"}
TEXTS = (".md", ".py")
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("release")
    run(ROOT, sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    return folder


def run(folder: Path, *command: str) -> str:
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
    run(tmp_path, str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", str(file))
    readme = (ROOT / "README.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(# reports\.py\n.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "reports.py").write_text(code)

    run(tmp_path, str(programs / "python"), "reports.py")
    worked = ("--workers", "2", "--queue", "reports", "--app", "reports.py", "--until-empty", "--fail-on-dead")
    run(tmp_path, str(programs / "jobpool"), *worked)
    assert run(tmp_path, str(programs / "jobpool"), "list", "--json").strip() == "[]"
