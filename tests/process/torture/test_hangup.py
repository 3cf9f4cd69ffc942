"""The terminal of a torture is closed: it heals, drains, counts and empties its queue, though nobody sees it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import wait_until

from jobpool.broker.opening import open_backend

LIMIT = 120.0
"""Seconds: a run warms up before it strikes, and drains before it counts."""

ON_ITS_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "jobpool", *sys.argv[1:]])
"""
RUN = ["--minutes", "10", "--pools", "1", "-w", "2", "--ttl", "1s", "--faults", "child.kill", "--directory", "run"]


@pytest.fixture
def terminal() -> Iterator[list[int]]:
    """Descriptors of its two sides, ours first."""
    sides = list(pty.openpty())
    os.set_blocking(sides[0], False)
    yield sides
    for side in sides:
        os.close(side)


def shown(terminal: list[int]) -> bytes:
    """What has come since the last look."""
    try:
        return os.read(terminal[0], 1 << 16)
    except BlockingIOError:
        return b""


@pytest.mark.more
def test_a_closed_terminal_interrupts_a_run_and_ends_nothing_else(tmp_path: Path, terminal: list[int]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBPOOL_", "JOBS_"))}
    url = f"sqlite:///{tmp_path}/q.db"
    words = [sys.executable, "-c", ON_ITS_OWN_TERMINAL, "torture", "--json", "-b", url, "-Q", "mine", *RUN]
    with (tmp_path / "answer").open("w") as answer:
        process = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=kept | {"TERM": "xterm"},
            stdin=terminal[1],
            stdout=answer,
            stderr=terminal[1],
            start_new_session=True,
        )
    strikes = tmp_path / "run" / "strikes.jsonl"
    try:
        seen: list[bytes] = []

        def has_struck() -> bool:
            seen.append(shown(terminal))
            return strikes.exists()

        wait_until(has_struck, LIMIT, "a fault has struck")
        assert b"enqueued" in b"".join(seen), "its progress was shown"
        while terminal:
            os.close(terminal.pop())
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
    document = json.loads((tmp_path / "answer").read_text())
    assert document["interrupted"]
    assert document["seconds"]["faults"] < 600
    assert "count" in document["seconds"]
    assert document["violations"] == {}
    backend = open_backend(url)
    assert backend.queues() == []
    backend.close()
