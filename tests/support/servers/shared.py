"""One server of each kind for all tests of a process, started when the first one asks, ended with the process.

A test keeps to itself by a name of its own: a prefix, a schema. A test that stops, kills or freezes a server starts
one for itself.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from support.servers.beanstalk_server import BeanstalkServer
from support.servers.postgres_server import PostgresServer
from support.servers.process import close_all
from support.servers.redis_cluster import RedisCluster
from support.servers.redis_server import RedisServer

_numbers = itertools.count(1)


def shared_redis(turned: bool = False) -> RedisServer:
    """The Redis of this process; `turned`, its Redis with a clock that stands still."""
    return _redis(turned)


@cache
def _redis(turned: bool) -> RedisServer:
    # Not cached above: to a cache, a default and the same value given are two calls, and they would start two servers.
    return RedisServer(_folder("turned" if turned else "redis"), turned=turned)


def shared_redis_cluster(turned: bool = False) -> RedisCluster:
    """The Redis Cluster of this process; `turned`, its one with clocks that stand still."""
    return _redis_cluster(turned)


@cache
def _redis_cluster(turned: bool) -> RedisCluster:
    return RedisCluster(_folder("turned-cluster" if turned else "cluster"), turned=turned)


def shared_beanstalk(turned: bool = False) -> BeanstalkServer:
    """The beanstalkd of this process, whose restart loses no job; `turned`, its one with a clock that stands still."""
    return _beanstalk(turned)


@cache
def _beanstalk(turned: bool) -> BeanstalkServer:
    return BeanstalkServer(_folder("turned-beanstalk" if turned else "beanstalk"), turned=turned, binlog=not turned)


@cache
def shared_postgres() -> PostgresServer:
    """The Postgres of this process."""
    return PostgresServer(_folder("postgres"))


def fresh_name(word: str = "t") -> str:
    """A prefix or a schema that no other test of this run has: lower-case letters, digits and underscores."""
    return f"{word}_{os.getpid()}_{next(_numbers)}"


def _folder(name: str) -> Path:
    return _scratch() / name


@cache
def _scratch() -> Path:
    """A short path, for sockets, that any user may pass, for Postgres."""
    folder = Path(tempfile.mkdtemp(prefix="jobpool-tests-"))
    folder.chmod(0o755)
    atexit.register(_clear, folder, os.getpid())
    return folder


def _clear(folder: Path, owner: int) -> None:
    """In a fork of the process that made them nothing is taken away."""
    if os.getpid() == owner:
        close_all()
        shutil.rmtree(folder, ignore_errors=True)
