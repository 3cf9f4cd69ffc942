"""Lets tests of what watches the pool use the stage of the pool's own tests, and go without prometheus-client."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "master"))


@pytest.fixture
def no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """prometheus-client is not installed."""
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
