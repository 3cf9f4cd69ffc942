"""When a pool is live, and when it is ready."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.telemetry.metrics.pages import live, ready

NOW = 1000.0


@pytest.fixture
def well() -> HeaderView:
    """What the header of a healthy pool says."""
    with Scoreboard.create(None, 2) as board:
        board.header.write(
            workers=4, ready=4, started=900.0, loop_at=999.5, broker_ok_at=998.0, broker_interval=3.0, backend="x://"
        )
        return board.header.read()


@pytest.mark.parametrize(
    ("change", "is_live", "is_ready", "words"),
    [
        pytest.param({}, True, True, "ready: 4 of 4", id="well"),
        pytest.param({"ready": 1}, True, True, "ready: 1 of 4", id="one child is enough"),
        pytest.param({"ready": 5}, True, True, "4 of 4 children ready, and 1 that will leave", id="a reload"),
        pytest.param({"draining": 1}, True, True, "draining", id="draining"),
        pytest.param({"ready": 0, "problem": "no module"}, True, False, "0 of 4 children ready; no module", id="none"),
        pytest.param({"boot_failures": 5}, True, False, "not ready", id="boot loop"),
        pytest.param({"boot_failures": 4}, True, True, "ready", id="some failures"),
        pytest.param({"broker_ok_at": 990.0}, True, False, "degraded: the broker last answered", id="broker away"),
        pytest.param({"broker_ok_at": 991.0}, True, True, "ready", id="broker slow"),
        pytest.param({"loop_at": 994.9}, False, False, "has not turned its loop", id="hangs"),
        pytest.param({"loop_at": 995.0}, True, True, "ready", id="just not"),
        pytest.param({"loop_at": 0.0, "started": 999.0}, True, True, "ready", id="young"),
    ],
)
def test_probes(well: HeaderView, change: dict[str, object], is_live: bool, is_ready: bool, words: str) -> None:
    header = replace(well, **change)  # type: ignore[arg-type]
    assert live(header, NOW).ok is is_live
    assert ready(header, NOW).ok is is_ready
    assert words in ready(header, NOW).text
