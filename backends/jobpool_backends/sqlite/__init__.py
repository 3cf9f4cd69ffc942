"""`sqlite:///file`: the embedded default. One file, no server; any number of processes of one machine share it.

* `schema`, `database`, `turns`: tables and their versions, transactions, one commit for the steps of several threads
* `connections`: none of them is open while the process forks
* `step`: the work of one call in a write transaction, with its counts
* `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message
* `keys`, `claims`: the key store and the claim store; `claim_rows` reads claims, and clears those that have ended
* `in_transaction`: enqueue and ack within a transaction of the caller's own
* `inspect`, `checks`: the administrator's side
"""

from __future__ import annotations

from jobpool_backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
