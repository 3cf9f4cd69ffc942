"""`postgresql://`: one database for pools on many machines, reached through psycopg 3.

* `address`, `connection`, `database`, `errors`: from a URL to connections, and what their errors mean
* `schema`, `migrate`: the tables and functions, and how older ones become current
* `retention`: outdated rows are swept, dead letters capped
* `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message
* `keys`, `claims`: the key store and the claim store
* `in_transaction`: jobs enqueued, and messages acked, in a transaction of the caller's
* `inspect`, `bulk`, `checks`: the administrator's side, and what the server's settings can lose
* `backend`: the class that puts them together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobpool_backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]


def __getattr__(name: str) -> object:
    """Import the backend when somebody asks for it: a child that acks in its own transaction needs one module only."""
    if name != "PostgresBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jobpool_backends.postgres.backend import PostgresBackend

    return PostgresBackend
