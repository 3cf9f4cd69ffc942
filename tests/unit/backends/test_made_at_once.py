"""Processes that are the first to use a store, all at the same moment, make it once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from subprocess import PIPE

import pytest
from postgres_rig import Rig
from support.jobs import QUEUE

from jobpool.broker.opening import open_backend

USE_AT_ONCE = """
import sys
from jobpool.broker.opening import open_backend
from jobpool.message.definition import JobDefinition
print("ready", flush=True)
sys.stdin.readline()
backend = open_backend(sys.argv[1])
backend.enqueue(JobDefinition("report", queue="reports"))
backend.close()
"""


@pytest.mark.parametrize(("broker", "count"), [("sqlite", 8), ("postgres", 4)])
def test_processes_that_begin_at_once_make_one_store(path: Path, broker: str, count: int) -> None:
    with Rig(new=True) if broker == "postgres" else nullcontext() as rig:
        url = rig.url({"timeout": 30, "connect_timeout": 30}) if rig else f"sqlite:///{path}?timeout=30"
        command = [sys.executable, "-c", USE_AT_ONCE, url]
        processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) for _ in range(count)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.communicate(timeout=60)[1] for process in processes] == [""] * count
        with closing(open_backend(url)) as backend:
            assert backend.stats(QUEUE).waiting == count
