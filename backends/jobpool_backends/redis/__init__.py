"""`redis://`: one server, its replicas behind sentinels, or a cluster; any number of machines share it.

* `backend`, `cluster`: the classes that put the parts together
* `address`, `opening`: from a URL to an open link
* `connection`, `connections`, `cluster_connections`: one connection, and calls on many; `errors`: errors
* `key_names`, `records`: the names and forms of all that is kept; `scripts`, `lua/`: the verbs, as the server runs them
* `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message; `keys`, `claims`: the stores beside it
* `inspect`, `bulk`, `checks`: the administrator's side
"""

from __future__ import annotations

from jobpool_backends.redis.backend import RedisBackend
from jobpool_backends.redis.cluster import RedisClusterBackend

__all__ = ["RedisBackend", "RedisClusterBackend"]
