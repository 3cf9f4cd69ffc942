"""`redis://`: one server, its replicas behind sentinels, or a cluster; any number of machines share it.

* `address`: what URLs and options mean; `opening`: from there to a link
* `connection`, `link`: connections, and calls on them; `trouble`: what their errors mean
* `asking`, `sentinel`: which server is the master now
* `slots`, `masters`, `nodelink`, `clusterlink`: the nodes of a cluster
* `checks`: what the server's settings can lose
* `keys`, `records`: what is kept, under which names
* `scripts`, `lua/`: the verbs, as the server runs them
* `producing`, `fetching`, `batch`, `settling`, `reaping`: the life of a message
* `guarding`, `spaces`: what messages hold while they run, records and logs; `keystore`: both as one
* `claiming`: claims and posted messages
* `looking`, `tending`: the administrator's side
* `waiting`: sleep until something is there
* `backend`: the class that puts them together; `cluster`, `outbox`: the same, spread over a cluster
"""

from __future__ import annotations

from jobpool_backends.redis.backend import RedisBackend
from jobpool_backends.redis.cluster import RedisClusterBackend

__all__ = ["RedisBackend", "RedisClusterBackend"]
