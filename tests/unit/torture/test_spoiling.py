"""Orders to spoil a process are taken once; each way really spoils, and the one that obeys can still end its job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobpool_torture import spoiling

EACH_WAY = """
import importlib.util, json, os, resource, signal, sys, time
from jobpool_torture import spoiling

def deep(calls):
    if calls: deep(calls - 1)

def obey(way):
    spoiling.spoil(way)
    os._exit(0)

def suffer(way):
    spoiling.spoil(way)
    if os.umask(0) == 0o777 or not importlib.util.find_spec("this"): raise OSError
    if signal.pthread_sigmask(signal.SIG_BLOCK, []): raise OSError
    deep(50)
    held = bytearray(16 << 20)
    with open(sys.argv[1], "ab", buffering=0) as file: file.write(b"x")
    until = time.process_time() + 0.1
    while time.process_time() < until: pass

def ends_well(job, way):
    pid = os.fork()
    if pid == 0:
        try:
            job(way)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(json.dumps({way: [ends_well(obey, way), ends_well(suffer, way)] for way in spoiling.ways()}))
"""


def test_each_way_spoils_and_lets_the_one_that_does_it_end(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o600)
    told = json.loads(subprocess.check_output([sys.executable, "-c", EACH_WAY, str(file)], text=True))
    assert told == {way: [True, False] for way in spoiling.ways()}


def test_what_only_root_may_do_is_left_out_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not set(spoiling.ways()) & set(spoiling.OF_ROOT)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert set(spoiling.ways()) == {*spoiling.WAYS, *spoiling.OF_ROOT}


def test_an_order_is_taken_once_by_a_job_of_its_pool(tmp_path: Path) -> None:
    spoiling.order(tmp_path, "pool1", "alarms")
    spoiling.order(tmp_path, "pool1", "no memory")
    assert spoiling.take(tmp_path, "pool2") == ""
    assert spoiling.take(tmp_path, "pool1") == "no memory"
    assert spoiling.take(tmp_path, "pool1") == ""
