"""What each broker lacks, written down: a capability is gained or given up on purpose, and never by the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from support.harness import HARNESSES

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import _check_parts
from jobpool.broker.values import Capabilities, Leases
from jobpool_backends.beanstalk import BeanstalkBackend
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.redis import RedisBackend, RedisClusterBackend
from jobpool_backends.servicebus import ServiceBusBackend
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sync import SyncBackend

LACKS: dict[type[QueueBackend], set[str]] = {
    MemoryBackend: {"transactions"},
    SqliteBackend: set(),
    PostgresBackend: set(),
    RedisBackend: {"transactions"},
    RedisClusterBackend: {"transactions", "atomic_across_queues"},
    SyncBackend: {"transactions", "key_store", "priorities"},
    BeanstalkBackend: {"transactions", "key_store", "keeps_records", "atomic_across_queues", "lists_live"},
    ServiceBusBackend: {"transactions", "key_store", "keeps_records", "atomic_across_queues"}
    | {"exact_counts", "priorities", "makes_queues"},
}
LEASES = {
    SyncBackend: Leases.NONE,
    BeanstalkBackend: Leases.CONNECTION,
    ServiceBusBackend: Leases.BROKER,
}
"""The others lease for as long as they are asked."""
DELAYS = {BeanstalkBackend: 1.0, ServiceBusBackend: 0.001}
"""Seconds to which delays are rounded up; a microsecond elsewhere."""

each_broker = pytest.mark.parametrize("broker", LACKS, ids=lambda broker: broker.scheme)


@each_broker
def test_a_broker_lacks_what_is_written_down(broker: type[QueueBackend]) -> None:
    can = broker.capabilities
    assert {name for name in Capabilities.__struct_fields__ if getattr(can, name) is False} == LACKS[broker]
    assert can.leases is LEASES.get(broker, Leases.OURS)
    assert can.delay_resolution == DELAYS.get(broker, 1e-6)


def test_capabilities_are_few_and_none_is_the_same_on_all_brokers() -> None:
    names = Capabilities.__struct_fields__
    assert len(names) <= 10
    real = [broker.capabilities for broker in LACKS if broker not in (MemoryBackend, SyncBackend)]
    assert [name for name in names if len({getattr(can, name) for can in real}) == 1] == []


@each_broker
def test_what_is_lacking_goes_together(broker: type[QueueBackend]) -> None:
    can = broker.capabilities
    assert can.keeps_records or not can.atomic_across_queues, "an id that is not known is not known in all queues"
    assert can.keeps_records or not can.key_store, "keys are records, beside those of the messages"
    assert can.lists_live or not can.keeps_records, "what is not found is not deleted by a filter"
    assert can.leases in (Leases.OURS, Leases.NONE) or not can.keeps_records, "a repeat may come from another client"


def test_every_broker_is_in_the_contract_suite_with_its_own_capabilities() -> None:
    tested = [kind.capabilities for kind in HARNESSES.values()]
    assert sorted(map(repr, tested)) == sorted(repr(broker.capabilities) for broker in LACKS)


AFFECTED = ("admin", "dead_caps", "edit", "lacking", "results")


def test_a_backend_with_the_parts_without_defaults_alone_passes_the_suite() -> None:
    """As an author runs it, on a harness of its own; by the laws that ask for parts with a default."""
    tests = Path(__file__).parents[2]
    laws = [str(tests / "contract" / f"test_{name}_law.py") for name in AFFECTED]
    environ = {**os.environ, "JOBPOOL_TEST_HARNESS": "support.modest:PlainHarness"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *laws]
    run = subprocess.run(command, env=environ, cwd=tests.parent, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


def test_the_example_of_the_page_has_all_parts_that_have_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "backends.md").read_text("utf-8")
    code, harness = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"FolderInspector": Mock()}
    exec(code, names)
    _check_parts("folder://here", names["FolderBackend"].from_url("folder://here"))
    monkeypatch.setitem(sys.modules, "folderq", SimpleNamespace(FolderBackend=names["FolderBackend"]))
    exec(harness, names)
    assert not names["FolderHarness"].__abstractmethods__
