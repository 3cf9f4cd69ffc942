"""`redis://`: one server, its replicas behind sentinels, or a cluster; any number of machines share it.

* `address`: what URLs and options mean
* `wire`, `link`: connections, and calls on them; `trouble`: what their errors mean
* `sentinel`: which server is the master now
* `checks`: what the server's settings can lose
* `keys`, `records`: what is kept, under which names
* `scripts`, `lua/`: the verbs, as the server runs them
* `producing`, `fetching`, `settling`, `reaping`: the life of a message
* `looking`, `tending`: the administrator's side
* `waiting`: sleep until something is there
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
