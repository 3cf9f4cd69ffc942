"""`import jobpool`: what it offers, and what it does not drag in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import jobpool

HEAVY = ("click", "rich", "pydantic", "psutil", "sqlite3", "asyncio", "importlib.metadata", "tomllib")


def test_importing_jobpool_is_light() -> None:
    program = f"import sys, jobpool; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == []


@pytest.mark.parametrize("name", jobpool.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(jobpool, name) is not None
    assert name in dir(jobpool)


def test_the_list_is_sorted_and_complete() -> None:
    assert sorted(jobpool._HOME) == jobpool.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jobpool' has no attribute 'nonsense'"):
        _ = jobpool.nonsense


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert jobpool.__version__ == project["project"]["version"]


@pytest.mark.parametrize("name", sorted(jobpool._MOVED))
def test_a_module_is_found_under_its_former_name_too(name: str) -> None:
    former, home = import_module(f"jobpool.{name}"), import_module(f"jobpool.{jobpool._MOVED[name]}")
    public = [word for word, value in vars(home).items() if getattr(value, "__module__", "") == home.__name__]

    assert public
    assert all(getattr(former, word) is getattr(home, word) for word in public)
