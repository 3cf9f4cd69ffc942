"""`redis://`: one server, its replicas behind sentinels, or a cluster; any number of machines share it.

* `backend`: the class that puts the parts together; `cluster`: the same, spread over a cluster
* `address`: URLs and options; `trouble`: errors; `checks`: what the server's settings can lose
* `connection`: one connection; `connections`, `cluster_connections`: calls on them; `opening`: from an address to those
* `key_names`, `records`: what is kept, under which names; `scripts`, `lua/`: the verbs, as the server runs them
* `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message; `keys`, `claims`: the stores beside it
* `inspect`, `bulk`: the administrator's side
"""

from __future__ import annotations

from jobpool_backends.redis.backend import RedisBackend
from jobpool_backends.redis.cluster import RedisClusterBackend

__all__ = ["RedisBackend", "RedisClusterBackend"]
