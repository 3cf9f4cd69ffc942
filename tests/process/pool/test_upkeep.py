"""What a pool says of its children when it is asked by a signal."""

from __future__ import annotations

import signal

from support.poolrig import Rig
from support.waiting import wait_until


def test_quit_logs_every_childs_stack(rig: Rig) -> None:
    pool = rig.start_pool().wait_ready(2)
    ident = rig.enqueue("hang", {"how": "hang_in_sum"})
    rig.wait_started(ident)
    pool.send(signal.SIGQUIT)
    wait_until(lambda: len(pool.log("stack of a child")) == 2)
    assert any("hang_in_sum" in entry["stack"] for entry in pool.log("stack of a child"))
    assert len(rig.starts(ident)) == 1
    pool.send(signal.SIGTERM)
    wait_until(lambda: pool.header().draining)
    assert pool.stop() == 0
