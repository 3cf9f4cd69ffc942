"""`beanstalk://`: one beanstalkd, shared by any number of machines.

* `backend`: the class that puts the parts together; `address`, `errors`: URLs and errors
* `connection`, `connections`: one connection with its leases, and the set of them; `answers`: answers as values
* `records`: a message as a job; `enqueue`, `fetch`, `settle`, `reap`, `wait`: the life of a message
* `inspect`, `dead_letters`, `bulk`, `checks`: the administrator's side
"""

from __future__ import annotations

from jobpool_backends.beanstalk.backend import BeanstalkBackend

__all__ = ["BeanstalkBackend"]
