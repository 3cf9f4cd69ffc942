from __future__ import annotations

import pytest

from jobpool.master.run import fork_server_config
from jobpool.message.setting_types import Recycle
from jobpool.settings import Settings


@pytest.mark.parametrize(
    ("limit", "recycle", "mark"),
    [(0, 0, 0), (0, 70, 70), (100, 0, 100), (100, 70, 70), (100, 300, 100)],
)
def test_a_child_above_either_memory_setting_is_replaced_after_its_attempt(limit: int, recycle: int, mark: int) -> None:
    settings = Settings(memory_limit=limit, recycle=Recycle(memory=recycle))
    assert fork_server_config(settings).options.max_rss == mark
