"""What a pool says whose database lost the files beside it."""

from __future__ import annotations

import pytest
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until


@pytest.mark.parametrize("suffix", ["-wal", pytest.param("-shm", marks=pytest.mark.more)])
def test_a_pool_whose_log_beside_the_database_was_taken_away_says_so_and_is_not_healthy(rig: Rig, suffix: str) -> None:
    """It would hear of no job any more, and settle where nobody sees it."""
    pool = rig.start_pool("--stop-grace", "1").wait_ready(2)
    rig.enqueue("work")
    rig.wait_drained()
    (rig.directory / f"jobpool.db{suffix}").unlink()
    entry = wait_until(lambda: pool.log("the broker does not answer; trying again until it does"))[0]
    assert f"jobpool.db{suffix} was removed or replaced while it was in use" in entry["error"]
    assert "Stop all that use the database, move back what was moved, then start them again" in entry["error"]
    wait_until(lambda: not pool.is_healthy(), LIMIT, "health tells")
    assert pool.stop() == 0
