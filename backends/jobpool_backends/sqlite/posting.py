"""Posted messages on their way in."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from jobpool.broker.claim_store import POST_PRIORITY, NewPost
from jobpool_backends.shared import delay_micros, micros
from jobpool_backends.sqlite.counts import Counts
from jobpool_backends.sqlite.enqueue import INSERT_BODY, leave_out_known, next_seq
from jobpool_backends.sqlite.schema import POST_DELAYED, POSTED

_INSERT = f"""
INSERT INTO messages (seq, id, given, queue, handler, priority, state, enqueued_at, available_at, ends_at)
VALUES (?, ?, ?, ?, '', {POST_PRIORITY}, ?, ?, ?, ?)
"""


def add(connection: sqlite3.Connection, queue: str, posts: Sequence[NewPost], now: int, counts: Counts) -> None:
    """Insert those that are not known yet, in their order."""
    fresh = list(leave_out_known(connection, posts, now, counts).values())
    rows = [_row(seq, queue, post, now) for seq, post in enumerate(fresh, next_seq(connection))]
    connection.executemany(_INSERT, rows)
    connection.executemany(INSERT_BODY, [(row[0], post.body) for row, post in zip(rows, fresh, strict=True)])
    for row in rows:
        counts.add(queue, row[4])


def _row(seq: int, queue: str, post: NewPost, now: int) -> tuple[int, str, bool, str, int, int, int, int | None]:
    delay = delay_micros(post.delay)
    ends_at = None if post.life is None else now + micros(post.life)
    return seq, post.id, post.given, queue, POST_DELAYED if delay else POSTED, now, now + delay, ends_at
