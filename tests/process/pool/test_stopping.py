"""Stops of pools that are not at work yet, or no more; those under load are in faults/test_stops.py."""

from __future__ import annotations

import signal
import socket
import time

from support.faultmoves import in_time
from support.poolrig import Rig
from support.waiting import wait_until


def test_an_idle_pool_stops_at_once(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    in_time(pool.stop, 1.0)
    assert pool.wait() == 0
    rig.assert_no_processes_left(0.2)
    assert list(rig.runtime.iterdir()) == []


def test_signals_that_come_until_the_very_end_change_no_exit_status(rig: Rig) -> None:
    """The last of them meet a pool that has stopped, and is closing its broker."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        pool = rig.start_pool(workers=1).wait_ready(1)
        pool.send(signal.SIGTERM)
        while pool.process.poll() is None:
            pool.send(number)
            time.sleep(0.001)
        assert pool.wait() == 0, number


def test_a_stop_before_the_app_is_loaded(rig: Rig) -> None:
    app = rig.directory / "slow_app.py"
    app.write_text("import time\nimport jobpool\n\ntime.sleep(30)\n\n@jobpool.handler\ndef noop(ctx): ...\n")
    pool = rig.start_pool(app=app)
    wait_until(lambda: pool.process.poll() is None and pool.fork_servers())
    in_time(pool.stop, 2.0)
    assert pool.wait() == 0
    rig.assert_no_processes_left()


def test_a_stop_right_after_the_start(rig: Rig) -> None:
    for delay in (0.0, 0.1, 0.2, 0.3, 0.4):
        pool = rig.start_pool()
        begun = time.monotonic()
        wait_until(lambda b=begun, d=delay: time.monotonic() - b >= d)  # type: ignore[misc]
        assert pool.stop(limit=20.0) in (0, -signal.SIGTERM), pool.log_path.read_text()
        rig.assert_no_processes_left()
        assert "Traceback" not in pool.log_path.read_text()


def test_a_stop_while_the_pool_waits_for_the_first_answer_of_its_broker(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for number in (signal.SIGTERM, signal.SIGINT):
            pool = rig.start_pool(url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0?timeout=60")
            wait_until(lambda p=pool: p.log("pool starts") and [*rig.runtime.glob("*.json")])  # type: ignore[misc]
            assert pool.stop(number, limit=20.0) == 0, pool.log_path.read_text()
            assert pool.log()[-1]["event"] == "stopped before it began"
            assert "Traceback" not in pool.log_path.read_text()
            rig.assert_no_processes_left()
            assert list(rig.runtime.iterdir()) == [], number
