"""`postgresql://`: one database for pools on many machines, reached through psycopg 3.

* `address`, `connection`, `database`, `trouble`: from a URL to connections, and what their errors mean
* `schema`, `migrating`, `literals`: the tables and functions, how older ones become current, and what goes into SQL
* `producing`, `fetching`, `settling`, `reaping`, `calls`: the life of a message
* `keys`: idempotency keys, places, rates; records and logs
* `looking`, `tending`, `capping`: the administrator's side; a bound on dead letters
* `bell`, `waiting`: sleep until something is there
* `checks`: what the server's settings can lose
* `in_transaction`: jobs enqueued, and messages acked, in a transaction of the caller's
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
