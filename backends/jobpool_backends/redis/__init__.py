"""`redis://`: one server, its replicas behind sentinels, or a cluster; any number of machines share it.

* `address`, `connection`, `connections`, `cluster_connections`: from a URL to calls, and what their errors mean
* `keyspace`, `records`: the names and forms of all that is kept; `lua/`: the verbs, as the server runs them
* `enqueue`, `leases`, `wait`: the life of a message; `keys`, `claims`: the stores beside it
* `inspect`, `checks`: the administrator's side; `backend`: the classes that put the parts together
"""

from __future__ import annotations

from jobpool_backends.redis.backend import RedisBackend, RedisClusterBackend

__all__ = ["RedisBackend", "RedisClusterBackend"]
