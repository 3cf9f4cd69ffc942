"""Counters in shared memory: every job counted once, none before the gate is open."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from bench import job_counters
from support.waiting import wait_until

JOBS = 500
FORK = multiprocessing.get_context("fork")


def _work(jobs: int) -> None:
    for _ in range(jobs):
        job_counters.count()


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[job_counters.JobCounters]:
    with contextlib.closing(job_counters.JobCounters(tmp_path / "counters")) as made:
        monkeypatch.setenv(job_counters.VARIABLE, str(made.path))
        yield made


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[BaseProcess]]:
    processes: list[BaseProcess] = [FORK.Process(target=_work, args=(JOBS,)) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def test_processes_wait_at_the_gate_and_then_count_every_job(found: job_counters.JobCounters) -> None:
    with workers(4) as processes:
        wait_until(lambda: len(found.pids()) == 4, what="four processes at the gate")
        assert found.done() == (0, 0.0)

        begun = found.open_gate()
        for process in processes:
            process.join(30)

        jobs, ended = found.done()
        assert sorted(found.pids()) == sorted(process.pid for process in processes if process.pid)
        assert found.counts() == {process.pid: JOBS for process in processes}
    assert jobs == 4 * JOBS
    assert begun <= ended <= time.monotonic()


def test_without_a_file_nothing_is_counted_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job_counters.VARIABLE, raising=False)

    with workers(1) as [process]:
        process.join(30)

        assert process.exitcode == 0
