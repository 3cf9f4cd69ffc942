from __future__ import annotations

import pytest
from support.cronrig import CronRig


@pytest.fixture
def rig() -> CronRig:
    return CronRig()
