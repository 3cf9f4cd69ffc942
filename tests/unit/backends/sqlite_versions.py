"""Files as older versions of the schema left them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from support.jobs import QUEUE

from jobpool_backends.sqlite.schema import MIGRATIONS

NOW = 1_800_000_000_000_000


def write_version(path: Path, version: int) -> None:
    """One message in each state; in version 2 also a unique key, an idempotency key, and 17 evicted."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement)
        connection.executemany(
            "INSERT INTO messages (id, given, queue, handler, priority, state, enqueued_at, available_at, holder, boot,"
            " deadline, deadline_wall, ttl, died_at, reason)"
            " VALUES (?, 0, ?, 'report', 5, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                ("waiting", QUEUE, 0, NOW, NOW, None, None, None, None, None, None, None),
                ("delayed", QUEUE, 1, NOW, NOW + 5_000_000, None, None, None, None, None, None, None),
                ("leased", QUEUE, 2, NOW, NOW, "h" * 16, 7, 1_030_000_000, NOW + 30_000_000, 30_000_000, None, None),
                ("dead", QUEUE, 3, NOW, NOW, None, None, None, None, None, NOW, "timeout"),
            ],
        )
        connection.execute("INSERT INTO bodies SELECT seq, x'7b7d' FROM messages")
        connection.execute("INSERT INTO queues (name, waiting, delayed, leased, dead) VALUES (?, 1, 1, 1, 1)", (QUEUE,))
        if version == 2:
            connection.execute("UPDATE messages SET unique_key = 'only' WHERE id = 'waiting'")
            connection.execute("UPDATE queues SET evicted = 17")
            connection.execute("INSERT INTO done VALUES (?, 'order-17', ?)", (QUEUE, NOW + 3_600_000_000))
        connection.execute(f"PRAGMA user_version = {version}")
