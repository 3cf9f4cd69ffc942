"""The servers that tests need, started by the tests themselves."""

from __future__ import annotations

from support.servers.beanstalk_server import BeanstalkServer as BeanstalkServer
from support.servers.postgres_server import PostgresServer as PostgresServer
from support.servers.process import Server as Server
from support.servers.process import ServerFailed as ServerFailed
from support.servers.process import find_program as find_program
from support.servers.process import free_port as free_port
from support.servers.redis_cluster import RedisCluster as RedisCluster
from support.servers.redis_server import RedisServer as RedisServer
from support.servers.shared import fresh_name as fresh_name
from support.servers.shared import shared_beanstalk as shared_beanstalk
from support.servers.shared import shared_postgres as shared_postgres
from support.servers.shared import shared_redis as shared_redis
from support.servers.shared import shared_redis_cluster as shared_redis_cluster
