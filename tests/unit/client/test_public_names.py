"""`import jobpool`: what it offers, and what it does not drag in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import jobpool

HEAVY = ("click", "rich", "pydantic", "psutil", "asyncio", "importlib.metadata", "tomllib", "croniter", "zoneinfo")
FOR_PRODUCERS = ("dataclasses", "datetime", "logging", "orjson", "threading", "sqlite3", "jobpool.message")
FOR_POOLS = ("jobpool.cli", "jobpool.handlers", "jobpool.master", "jobpool.ipc", "jobpool.settings", "multiprocessing")


def test_importing_jobpool_is_light(tmp_path: Path) -> None:
    assert _imported_by("import jobpool", tmp_path, (*HEAVY, *FOR_PRODUCERS, *FOR_POOLS)) == []


def test_a_producer_imports_nothing_of_a_pool_and_reads_no_table_of_what_is_installed(tmp_path: Path) -> None:
    program = "import jobpool; jobpool.Jobs('sqlite:///jobs.db').define('mail').dispatch()"
    assert _imported_by(program, tmp_path, (*HEAVY, *FOR_POOLS)) == []


def _imported_by(program: str, directory: Path, names: tuple[str, ...]) -> list[str]:
    """Return those of `names` that a program imports, run in a directory without a configuration file."""
    words = [sys.executable, "-c", f"{program}; import sys; print(*{{*{names!r}}} & {{*sys.modules}})"]
    ran = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60, check=True)
    return sorted(ran.stdout.split())


def test_every_public_name_is_there() -> None:
    for name in jobpool.__all__:
        assert getattr(jobpool, name) is not None, name
        assert name in dir(jobpool)
    assert sorted(jobpool._HOME) == jobpool.__all__


def test_a_producer_catches_the_errors_of_its_calls_by_their_public_names() -> None:
    with pytest.raises(jobpool.InvalidJob) as refused:
        jobpool.JobDefinition("")
    assert isinstance(refused.value, jobpool.JobpoolError)
    for known in (jobpool.ConfigurationError, jobpool.Unsupported, jobpool.WriteRefused):
        assert issubclass(known, jobpool.JobpoolError)


@pytest.mark.parametrize(("name", "module"), sorted(jobpool._MODULES.items()))
def test_a_module_is_there_without_an_import_of_its_own(name: str, module: str, tmp_path: Path) -> None:
    assert _imported_by(f"import jobpool; jobpool.{name}", tmp_path, (f"jobpool.{module}",)) == [f"jobpool.{module}"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jobpool' has no attribute 'nonsense'"):
        _ = jobpool.nonsense


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert jobpool.__version__ == project["project"]["version"]


def test_a_module_is_found_under_its_former_name_too() -> None:
    for name in sorted(jobpool._MOVED):
        former, home = import_module(f"jobpool.{name}"), import_module(f"jobpool.{jobpool._MOVED[name]}")
        public = [word for word, value in vars(home).items() if getattr(value, "__module__", "") == home.__name__]
        assert public, name
        assert all(getattr(former, word) is getattr(home, word) for word in public), name
