"""The harnesses by name: adding a backend is a class in `support.harnesses` and a line in `_ours`.

Where JOBPOOL_TEST_HARNESS names a class (`module:Class`), that is the only one: docs/backends.md.
"""

from __future__ import annotations

import os
from pkgutil import resolve_name

import pytest

from support.harnesses.base import Harness as Harness
from support.promises import PROMISES


def _ours() -> dict[str, type[Harness]]:
    from support.harnesses.beanstalk import BeanstalkHarness
    from support.harnesses.embedded import MemoryHarness, SqliteHarness, SyncHarness
    from support.harnesses.postgres import PostgresHarness
    from support.harnesses.redis import RedisClusterHarness, RedisHarness
    from support.harnesses.servicebus import ServiceBusHarness

    return {
        "beanstalk": BeanstalkHarness,
        "memory": MemoryHarness,
        "postgres": PostgresHarness,
        "redis": RedisHarness,
        "redis-cluster": RedisClusterHarness,
        "servicebus": ServiceBusHarness,
        "sqlite": SqliteHarness,
        "sync": SyncHarness,
    }


_yours = os.environ.get("JOBPOOL_TEST_HARNESS")
HARNESSES: dict[str, type[Harness]] = {"yours": resolve_name(_yours)} if _yours else _ours()


def misfit(node: pytest.Item | pytest.Function, kind: type[Harness]) -> str:
    """Why a test whose markers are `needs` and `lacks` does not fit this backend; empty when it does."""
    for marker, wanted in (("needs", True), ("lacks", False)):
        for mark in node.iter_markers(marker):
            for field in mark.args:
                if (PROMISES[field](kind.capabilities) and field not in kind.without) is not wanted:
                    return f"{field} is {'not ' if wanted else ''}promised"
    return ""
