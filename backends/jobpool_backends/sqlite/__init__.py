"""`sqlite:///file`: the embedded default. One file, no server; any number of processes of one machine share it.

* `schema`: the tables, their versions and their indexes
* `database`: connections, transactions, and the meaning of SQLite's errors
* `moment`: the time, for leases that outlive a reboot
* `counts`, `calls`: counts a queue, and the memory of calls
* `producing`, `fetching`, `settling`, `reaping`, `removing`: the life of a message
* `facts`, `changes`: what a call of settlements reads, and what it writes
* `claims`: the claim store, made of `posting`, `claiming`, `deleting`, `ending` and `claimed`, each of which does its
  part of a `step`
* `keys`: the key store, made of `guarding` (grants to leases), `places`, `rates` and `notes`
* `in_transaction`: enqueue and ack within a transaction of the caller's own
* `looking`, `tending`, `filters`: the administrator's side
* `waiting`: sleep until something is there
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
