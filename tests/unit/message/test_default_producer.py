"""The default producer of a process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import cast

import pytest

from jobpool.errors import ConfigurationError
from jobpool.message import producer
from jobpool.message.definition import JobDefinition


class Somewhere:
    def enqueue(self, definition: JobDefinition, /) -> str:
        return definition.handler

    def enqueue_many(self, definitions: Iterable[JobDefinition], /) -> list[str]:
        return [definition.handler for definition in definitions]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "process", producer.Process())


def test_threads_that_need_it_at_once_get_the_same() -> None:
    together = threading.Barrier(8)
    found: list[producer.Producer] = []
    producer.process.factory = Somewhere

    def ask() -> None:
        together.wait(10)
        found.append(producer.default())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_factory_that_fails_is_asked_again() -> None:
    def broken() -> Somewhere:
        raise ConfigurationError("no such backend")

    producer.process.factory = broken
    with pytest.raises(ConfigurationError, match="no such backend"):
        producer.default()

    producer.process.factory = Somewhere
    assert isinstance(producer.default(), Somewhere)


def test_what_was_set_counts_more_than_the_factory() -> None:
    mine = Somewhere()
    producer.process.factory = Somewhere
    producer.set_default(mine)
    assert producer.default() is mine

    producer.set_default(None)
    assert producer.default() is not mine


def test_a_child_of_a_pool_knows_that_it_is_one() -> None:
    channel = Somewhere()
    assert producer.process.of_child is None

    producer.enter_child(cast(producer.Target, channel))

    assert producer.process.of_child is channel
    assert producer.default() is channel


FORK_WHILE_LOCKED = """
import os
from jobpool.message import producer

with producer.process.lock:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if producer.process.lock.acquire(timeout=5) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_lock_held_at_a_fork_does_not_stop_the_child() -> None:
    # In a process of its own: from Python 3.12 on, a fork beside the test runner's threads is a warning.
    assert subprocess.run([sys.executable, "-c", FORK_WHILE_LOCKED], timeout=30, check=False).returncode == 0


def test_a_program_that_never_names_jobs_has_them_as_its_default() -> None:
    program = "from jobpool.message.producer import default; print(type(default()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "<class 'jobpool.client.jobs.Jobs'>"
