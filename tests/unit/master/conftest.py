"""Makes `stage` importable by name, whatever the test's import mode is; and what the tests of threads share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpool.master.inbox import Inbox

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    opened = Inbox()
    yield opened
    opened.close()
