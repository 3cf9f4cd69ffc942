"""`beanstalk://`: one beanstalkd, shared by any number of machines.

* `address`: URLs and options; `trouble`: errors
* `connection`, `burst`: a connection, and many commands in one write; `connections`: the set of them, and which owns what
* `telling`: commands on the connections that own their subject
* `records`, `held`, `counters`: a message, a lease, and the server's counts
* `producing`, `fetching`, `settling`: the life of a message; `copying`, `dying`: messages that go on as a copy
* `charging`, `mending`: crashes, and other repairs that a fetch makes
* `waiting`, `prefetched`: sleep until something is there; jobs reserved meanwhile
* `asking`, `looking`, `dead`, `tending`, `checks`: the administrator's side
* `backend`: the class that puts them together
"""

from __future__ import annotations

from jobpool_backends.beanstalk.backend import BeanstalkBackend

__all__ = ["BeanstalkBackend"]
