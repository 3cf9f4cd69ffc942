"""What is collected, and where it runs: only what can run, by default one of a kind, and groups on one worker."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAWS = "tests/contract/test_arguments_law.py"
RANGES = f"{LAWS}::test_a_number_out_of_its_range_is_refused_with_a_sentence"
DELAYS = f"{LAWS}::test_a_delay_that_is_not_a_number_is_refused_before_anything_is_done"


def collected(*words: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_laws_are_collected_on_the_backends_that_can_keep_them() -> None:
    some, every = collected(LAWS), collected(LAWS, "--all")

    assert some < every
    assert not any("[sync" in name for name in every), "it keeps no leases"
    assert {name for name in some if DELAYS in name and "-True" in name} == {f"{DELAYS}[memory-True]"}
    assert f"{DELAYS}[redis-cluster-True]" in every
    assert f"{RANGES}[servicebus]" in some
    assert f"{RANGES}[redis-cluster]" in every - some
    assert {name for name in every if DELAYS in name} == collected(DELAYS), "what is named runs on every backend"


def test_every_row_of_faults_has_a_test_that_runs_by_default() -> None:
    default, every = set(), set()
    for file in (ROOT / "tests" / "faults").glob("test_*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                rows = {mark for mark in marks if mark.startswith("pytest.mark.row(")}
                every |= rows
                default |= rows if "pytest.mark.more" not in marks else set()

    assert default == every


@pytest.mark.xdist_group("one-worker")
def test_the_plugin_knows_the_groups(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells its master by the end of the name; where pytest drops that, all run anywhere."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@one-worker")
