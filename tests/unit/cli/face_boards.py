"""Pools on paper: a scoreboard file, written as a master and its children would."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jobpool.ipc.board_layout import HeaderView
from jobpool.ipc.scoreboard import Scoreboard
from jobpool.ops.runtime_dir import PoolFile, register, this_pool

NOW = 1000.0
WELL: dict[str, Any] = {
    "pid": 42,
    "workers": 2,
    "ready": 2,
    "started": NOW - 600,
    "loop_at": NOW - 0.5,
    "broker_ok_at": NOW - 1,
    "broker_interval": 2.0,
    "reaped_at": NOW - 4,
    "reap_interval": 10.0,
    "name": "main",
    "backend": "sqlite:///x.db",
    "queues": "reports",
}


def header(**changes: Any) -> HeaderView:
    """The header of a pool that is well, but for these changes."""
    with Scoreboard.create(None, 1) as board:
        board.header.write(**(WELL | changes))
        return board.header.read()


def a_pool(directory: Path, name: str = "main", since: float = 1.0, backend: str = "sqlite:///x.db") -> PoolFile:
    """The note of a pool that this very process plays."""
    about = {"version": "0.1.0", "queues": ("reports",), "workers": 2, "since": since}
    return this_pool(name=name, backend=backend, directory=directory, **about)


def publish(directory: Path, name: str = "main", slots: int = 3, **header: Any) -> tuple[PoolFile, Scoreboard]:
    """A pool's note and its board with one busy and one idle slot; close the board."""
    pool = a_pool(directory, name)
    register(directory, pool)
    board = Scoreboard.create(pool.board, slots)
    board.header.write(**(WELL | header))
    pid = os.getpid()
    busy, idle = board.slot(0), board.slot(1)
    busy.child.booting(pid, NOW - 500)
    busy.child.took(7, NOW - 3)
    busy.child.started(NOW + 57, "0123456789abcdef", "reports", "render", 2, "nightly")
    busy.child.progress(0.4, "rendering")
    busy.master.write(state="busy", pid=pid, rss=50 << 20, cpu=0.98, since=NOW - 3, restarts=1)
    idle.child.booting(pid + 1, NOW - 500)
    idle.child.idle(NOW - 490)
    idle.child.finished(True, NOW - 8)
    idle.child.finished(False, NOW - 7)
    idle.master.write(state="idle", pid=pid + 1, rss=40 << 20, since=NOW - 7)
    return pool, board
