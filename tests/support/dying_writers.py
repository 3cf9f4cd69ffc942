"""Processes that enqueue into an SQLite file as fast as they can, each killed with SIGKILL at a moment of its own.

    python dying_writers.py FILE NOTES ROUNDS SEED

Each line that a writer appends to NOTES is one write: `try` and ids before a commit is asked for, `enq` and the same
ids when it was answered. After each kill the file is looked over by SQLite; what it finds is printed.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing

from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend

TOGETHER = 3
"""Jobs a commit."""

LONGEST = 0.04
"""Seconds that a writer lives after its first commit."""


def write(path: str, notes: str, name: str, begun: int) -> None:
    """Enqueue for ever."""
    backend = SqliteBackend(path, timeout=30.0)
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    number = 0
    while True:
        ids = [f"{name}-{number + place}" for place in range(TOGETHER)]
        number += TOGETHER
        os.write(fd, f"try {' '.join(ids)}\n".encode())
        backend.enqueue_many([JobDefinition("work", {}, identifier=ident) for ident in ids])
        os.write(fd, f"enq {' '.join(ids)}\n".encode())
        if number == TOGETHER:
            os.write(begun, b".")


def main(path: str, notes: str, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(rounds):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            write(path, notes, f"w{number}", writing)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        time.sleep(rng.uniform(0, LONGEST))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with closing(sqlite3.connect(path, timeout=30.0)) as connection:
            [(found,)] = connection.execute("PRAGMA integrity_check").fetchall()
        if found != "ok":
            print(f"after {number + 1} kills: {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
