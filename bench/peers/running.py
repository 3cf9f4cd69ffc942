"""Workers of a peer at work on jobs that were enqueued before: from the opening of the gate to the last one's end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import hanging_jobs, programs
from bench.job_counters import VARIABLE, JobCounters
from bench.note_file import read_notes
from bench.peers import environment
from bench.peers.fleet import Peer
from bench.processes import family, total_cpu, total_share
from bench.servers import Server

LIMIT = 60.0
STOP_LIMIT = 10.0
LOOK_EVERY = 0.005
LOG = "workers.log"

WARM_UP = 100
"""Jobs for each worker before its latency is measured: more than one process of any peer fetches ahead."""


def produce(peer: Peer, url: str, do: str, **options: Any) -> dict[str, Any]:
    """Return the answer of `producer.py`, from the peers' environment."""
    return programs.sample(
        "peers.producer",
        python=environment.program("python"),
        environment={"BENCH_URL": url, **peer.environment},
        app=peer.app,
        do=do,
        **options,
    )


def measure(peer: Peer, server: Server, workers: int, jobs: int, directory: Path) -> dict[str, Any]:
    """Return jobs a second, CPU seconds a thousand jobs of workers and broker, and the memory of the peer, in bytes."""
    with server.fresh() as url, _at_gate(peer, url, workers, jobs, directory) as (pids, found):
        own, broker, begun = total_cpu(pids), server.cpu_seconds(), found.open_gate()
        _wait_for(lambda: found.done()[0] >= jobs, directory, f"{jobs} jobs done")
        own, broker = total_cpu(pids) - own, server.cpu_seconds() - broker
        seconds = found.done()[1] - begun
        share = total_share(pids)
    thousands = jobs / 1000
    return {
        "seconds": seconds,
        "rate": jobs / seconds,
        "workers": own / thousands,
        "server": broker / thousands,
        "share": share,
    }


def deaths(peer: Peer, server: Server, turns: int, limit: float, directory: Path) -> list[float]:
    """Return seconds from the first line of jobs that hang to the ends of their processes: see `hanging_jobs`."""
    with server.fresh() as url, _working(peer, url, hanging_jobs.AT_ONCE, directory, directory / "counters"):
        answer = produce(peer, url, "hang", path=str(directory / "notes"), turns=turns, limit=limit)
    found: list[float] = answer["dead"]
    return found


def latencies(peer: Peer, server: Server, workers: int, samples: int, directory: Path, **gaps: Any) -> list[float]:
    """Return seconds from the call that enqueues to the handler's first line, of idle workers that have worked
    before.
    """
    notes = directory / "notes"
    with server.fresh() as url, _at_gate(peer, url, workers, WARM_UP * workers, directory) as (_, found):
        found.open_gate()
        _wait_for(lambda: found.done()[0] >= WARM_UP * workers, directory, "the warming up")
        called = produce(peer, url, "stamp", path=str(notes), samples=samples, **gaps)["called"]
        _wait_for(lambda: len(read_notes(notes)) > samples, directory, f"{samples} stamps")
    begun = {int(number): float(at) for number, at in read_notes(notes)}
    return [begun[number] - called[number] for number in range(1, samples + 1)]


@contextmanager
def _at_gate(peer: Peer, url: str, workers: int, jobs: int, directory: Path) -> Iterator[tuple[list[int], JobCounters]]:
    """Yield the processes of the peer, all at the gate with `jobs` to do, and the counters."""
    with contextlib.closing(JobCounters(directory / "counters")) as found:
        produce(peer, url, "preload", jobs=jobs)
        with _working(peer, url, workers, directory, found.path) as started:
            _wait_for(lambda: len(found.pids()) == peer.processes(workers), directory, "all workers at the gate")
            yield [pid for process in started for pid in family(process.pid)], found


@contextmanager
def _working(
    peer: Peer, url: str, workers: int, directory: Path, counted: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield its programs, started; stop them afterwards."""
    command = peer.command(workers)
    command[0] = environment.program(command[0])
    variables = programs.clean_environment(
        **{"BENCH_URL": url, "PYTHONPATH": str(programs.ROOT), VARIABLE: str(counted), **peer.environment}
    )
    with (directory / LOG).open("wb") as log, contextlib.ExitStack() as stack:
        started = []
        for _ in range(peer.programs):
            process = subprocess.Popen(command, cwd=directory, env=variables, stdout=log, stderr=log)
            stack.callback(_stop, process)
            started.append(process)
        yield started


def _wait_for(look: Callable[[], bool], directory: Path, what: str) -> None:
    """Return as soon as `look` does so; a SampleFailed with the end of the workers' log when that takes too long."""
    give_up = time.monotonic() + LIMIT
    while not look():
        if time.monotonic() > give_up:
            raise programs.SampleFailed(f"not seen: {what}. {(directory / LOG).read_text(errors='replace')[-3000:]}")
        time.sleep(LOOK_EVERY)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it, and whatever it leaves behind: a job that hangs may outlive it."""
    everyone = []
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            everyone.append(os.pidfd_open(pid))
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    for pidfd in everyone:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    process.wait()
