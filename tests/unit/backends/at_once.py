"""Processes that begin at the same moment."""

from __future__ import annotations

import subprocess


def at_once(command: list[str], count: int) -> list[str]:
    """Start it so often; each says `ready`, and goes on with a line of its input. What each wrote to stderr."""
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[1] for process in processes]
