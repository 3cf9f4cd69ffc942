"""Makes `stage` importable by name, whatever the test's import mode is; and gives each test what many need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpool.master.inbox import Inbox

sys.path.insert(0, str(Path(__file__).parent))

from stage import Stage


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = Inbox()
    yield opened
    opened.close()


@pytest.fixture
def stage() -> Stage:
    """A pool with one child, which is ready."""
    return Stage(workers=1).boot()
