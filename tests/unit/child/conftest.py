from __future__ import annotations

import pytest

from jobpool.handlers.registry import HandlerRegistry


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()
