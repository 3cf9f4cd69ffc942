"""`beanstalk://`: one beanstalkd; any number of machines share it.

* `address`: what URLs and options mean; `trouble`: what errors mean
* `line`, `burst`: a connection, and many commands in one write; `lines`: the set of them, and which owns what;
  `telling`: commands on the lines that own what they are about
* `records`, `held`, `counters`: a message, a lease, and what the server counts
* `producing`, `fetching`, `settling`: the life of a message; `copying`, `dying`: where it goes on as a copy
* `charging`, `mending`: crashes, and what else a fetch puts right
* `waiting`, `stash`: sleep until something is there, and what was reserved meanwhile
* `asking`, `looking`, `dead`, `tending`, `checks`: the administrator's side
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.beanstalk.backend import BeanstalkBackend

__all__ = ["BeanstalkBackend"]
