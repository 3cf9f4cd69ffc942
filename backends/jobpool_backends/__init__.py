"""The backends that come with jobpool, a folder each."""

PLACES = {
    "memory": "jobpool_backends.memory:MemoryBackend",
    "beanstalk": "jobpool_backends.beanstalk:BeanstalkBackend",
    "postgres": "jobpool_backends.postgres:PostgresBackend",
    "postgresql": "jobpool_backends.postgres:PostgresBackend",
    "redis": "jobpool_backends.redis:RedisBackend",
    "redis+cluster": "jobpool_backends.redis:RedisClusterBackend",
    "redis+sentinel": "jobpool_backends.redis:RedisBackend",
    "redis+unix": "jobpool_backends.redis:RedisBackend",
    "rediss": "jobpool_backends.redis:RedisBackend",
    "rediss+cluster": "jobpool_backends.redis:RedisClusterBackend",
    "rediss+sentinel": "jobpool_backends.redis:RedisBackend",
    "servicebus": "jobpool_backends.servicebus:ServiceBusBackend",
    "sqlite": "jobpool_backends.sqlite:SqliteBackend",
    "sync": "jobpool_backends.sync:SyncBackend",
}
"""Scheme → module and class, as in the entry points of the distribution, which take tens of milliseconds to read."""
