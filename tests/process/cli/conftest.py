from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.end_all()
