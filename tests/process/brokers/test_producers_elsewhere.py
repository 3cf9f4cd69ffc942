"""Producers work on macOS and Windows too: neither an import nor a call needs what Python has on Linux alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import elsewhere
from support.poolrig_brokers import BROKERS

from jobpool.cli import main

PRODUCING = Path(elsewhere.__file__).with_name("producing.py")  # imported here, its handler would be in all tests
SERVERS = ("redis", "postgres", "beanstalk")


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    brokers = [BROKERS[name].on_shared_server() for name in SERVERS]
    try:
        yield [f"sqlite:///{tmp_path}/jobs.db", *(broker.url for broker in brokers)]
    finally:
        for broker in brokers:
            broker.end()


def elsewhere_run(system: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", elsewhere.__name__, system, *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)


@pytest.mark.parametrize("system", elsewhere.WITHOUT_MODULES)
def test_each_broker_takes_their_jobs(system: str, urls: list[str], tmp_path: Path) -> None:
    done = elsewhere_run(system, tmp_path, str(PRODUCING), *urls)
    assert (done.returncode, done.stdout) == (0, "1 3\n" * len(urls)), done.stderr


@pytest.mark.parametrize("system", elsewhere.WITHOUT_MODULES)
def test_the_command_line_enqueues_and_looks_and_says_what_needs_linux(system: str, tmp_path: Path) -> None:
    def jobpool(*words: str) -> subprocess.CompletedProcess[str]:
        return elsewhere_run(system, tmp_path, main.__file__, *words)

    enqueued = jobpool("enqueue", "report", "--queue", "reports")
    listed = jobpool("list")
    assert (enqueued.returncode, listed.returncode) == (0, 0), enqueued.stderr + listed.stderr
    assert enqueued.stdout.strip() in listed.stdout
    counted = jobpool("stats")
    assert (counted.returncode, counted.stdout.split()[7:9]) == (0, ["reports", "1"]), counted.stderr
    refused = jobpool("--queue", "reports")
    assert (refused.returncode, "`jobpool run` needs Linux" in refused.stderr) == (2, True), refused.stderr
    assert jobpool("--help").returncode == 0
