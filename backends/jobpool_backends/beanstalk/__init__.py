"""`beanstalk://`: one beanstalkd, shared by any number of machines.

* `connection`, `connections`: one connection with its leases, and the set of them
* `records`: a message as a job; `enqueue`, `fetch`, `settle`, `wait`: its life
* `inspect`, `bulk`, `checks`: the administrator's side
"""

from jobpool_backends.beanstalk.backend import BeanstalkBackend as BeanstalkBackend
