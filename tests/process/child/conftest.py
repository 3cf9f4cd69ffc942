"""Makes `childrig` importable by name, and gives each test a way to start children that are gone when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from childrig import ChildProcess


@pytest.fixture
def start_child() -> Iterator[Callable[..., ChildProcess]]:
    started: list[ChildProcess] = []

    def start(**options: Any) -> ChildProcess:
        child = ChildProcess(**options)
        started.append(child)
        return child.ready()

    yield start
    for child in started:
        child.close()
