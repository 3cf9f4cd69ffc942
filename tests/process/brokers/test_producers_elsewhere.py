"""Producers work on macOS and Windows too: neither an import nor a call needs what Python has on Linux alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import elsewhere
from support.poolrig_brokers import BROKERS

PRODUCING = Path(elsewhere.__file__).with_name("producing.py")  # imported here, its handler would be in all tests
SERVERS = ("redis", "postgres", "beanstalk")


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    with ExitStack() as stack:
        brokers = [stack.enter_context(BROKERS[name].on_shared_server()) for name in SERVERS]
        yield [f"sqlite:///{tmp_path}/jobs.db", *(broker.url for broker in brokers)]


def elsewhere_run(system: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", elsewhere.__name__, system, *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)


@pytest.mark.parametrize("system", elsewhere.WITHOUT_MODULES)
def test_each_broker_takes_their_jobs(system: str, urls: list[str], tmp_path: Path) -> None:
    done = elsewhere_run(system, tmp_path, str(PRODUCING), *urls)
    assert (done.returncode, done.stdout) == (0, "1 3\n" * len(urls)), done.stderr


COMMANDS = """
import json, sys
from click.testing import CliRunner
from jobpool.cli.main import cli

called = [CliRunner().invoke(cli, words.split()) for words in sys.argv[1:]]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in called]))
"""


@pytest.mark.parametrize("system", elsewhere.WITHOUT_MODULES)
def test_the_command_line_enqueues_and_looks_and_says_what_needs_linux(system: str, tmp_path: Path) -> None:
    """All by one program: to import what other systems have takes half a second of a processor."""
    program = tmp_path / "commands.py"
    program.write_text(COMMANDS)
    words = ("enqueue report --queue reports", "list", "stats", "--queue reports", "--help")
    done = elsewhere_run(system, tmp_path, str(program), *words)
    assert done.returncode == 0, done.stderr
    enqueued, listed, counted, refused, helped = json.loads(done.stdout)
    assert [code for code, *_ in (enqueued, listed, counted, refused, helped)] == [0, 0, 0, 2, 0], done.stdout
    assert enqueued[1].strip() in listed[1]
    assert counted[1].split()[7:9] == ["reports", "1"]
    assert "`jobpool run` needs Linux" in refused[2]
