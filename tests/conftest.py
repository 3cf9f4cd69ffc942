"""Compiles the project once, before the first test.

Tests start hundreds of programs that import it, and each would compile it anew where Python keeps no bytecode
(PYTHONDONTWRITEBYTECODE): half a second of a processor for a pool.
"""

from __future__ import annotations

import compileall
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORTED = ("pool", "backends", "tests/support")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers start after it
        for folder in IMPORTED:
            compileall.compile_dir(ROOT / folder, quiet=2)
