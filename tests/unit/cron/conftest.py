from __future__ import annotations

import pytest
from support.cronrig import CronRig


@pytest.fixture
def rig() -> CronRig:
    """Its clock is at 08:00 of a Friday."""
    return CronRig()
