"""`sqlite:///file`: the embedded default. One file, no server; any number of processes of one machine share it.

* `schema`, `database`, `errors`: the tables and their versions, connections, the meaning of SQLite's errors
* `step`, `retention`: a write transaction with its time and counts; what is remembered, swept and deleted
* `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message
* `keys`, `claims`: the key store and the claim store; `claim_rows` reads claims, and clears those that have ended
* `in_transaction`: enqueue and ack within a transaction of the caller's own
* `inspect`, `bulk`, `checks`: the administrator's side
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
