"""The harnesses by name: adding a backend is a class in `support.harnesses` and a line in `HARNESSES`."""

from __future__ import annotations

import pytest

from support.harnesses.base import Harness as Harness
from support.harnesses.beanstalk import BeanstalkHarness
from support.harnesses.embedded import MemoryHarness, SqliteHarness, SyncHarness
from support.harnesses.postgres import PostgresHarness
from support.harnesses.redis import RedisClusterHarness, RedisHarness
from support.harnesses.servicebus import ServiceBusHarness
from support.promises import PROMISES

HARNESSES: dict[str, type[Harness]] = {
    "beanstalk": BeanstalkHarness,
    "memory": MemoryHarness,
    "postgres": PostgresHarness,
    "redis": RedisHarness,
    "redis-cluster": RedisClusterHarness,
    "servicebus": ServiceBusHarness,
    "sqlite": SqliteHarness,
    "sync": SyncHarness,
}


def misfit(node: pytest.Item | pytest.Function, kind: type[Harness]) -> str:
    """Why a test whose markers are `needs` and `lacks` does not fit this backend; empty when it does."""
    for marker, wanted in (("needs", True), ("lacks", False)):
        for mark in node.iter_markers(marker):
            for field in mark.args:
                if PROMISES[field](kind.capabilities) is not wanted:
                    return f"{field} is {'not ' if wanted else ''}promised"
    return ""
