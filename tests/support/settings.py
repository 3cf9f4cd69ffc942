"""A test's own settings: none of the environment, and no configuration file above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def without_settings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take the variables of jobpool out of the environment, and work in `folder`."""
    for variable in [name for name in os.environ if name.startswith(("JOBPOOL_", "JOBS_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(folder)
