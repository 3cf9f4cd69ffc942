"""`postgresql://`: one database for pools on many machines, reached through psycopg 3.

* `connection`, `database`, `errors`: from a URL to calls, and what their errors mean
* `schema`, `sql/`: the tables and functions, and how older ones become current
* `enqueue`, `leases`, `wait`: the life of a message; `keys`, `claims`: the stores beside it
* `in_transaction`: jobs enqueued, and messages acked, in a transaction of the caller's
* `inspect`, `checks`: the administrator's side; `backend`: the class that puts the parts together
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
