"""A program under a clock of its own sees it jump while it runs, and waits and sleeps as ever."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from jobpool_torture import clocks
from jobpool_torture.clocks import PoolClock

PROGRAM = """
import json, os, subprocess, sys, threading, time

def told():
    for name in os.listdir("/"):
        os.lstat("/" + name), os.stat("/" + name)
    os.fstat(0)
    return [time.time() - time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]

def forked():
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, json.dumps(told()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 1000))

def executed():
    code = "import time; print(time.time() - time.monotonic()); time.sleep(0.01)"
    return float(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)

taken = threading.Lock()
taken.acquire()
waits = {"sleep": time.sleep, "event": threading.Event().wait, "lock": lambda s: taken.acquire(timeout=s)}
for line in sys.stdin:
    lasted = {}
    for name, wait in waits.items():
        begun = time.monotonic()
        wait(0.05)
        lasted[name] = time.monotonic() - begun
    answer = {"here": told(), "forked": forked(), "lasted": lasted}
    if "execute" in line:
        answer["executed"] = executed()
    print(json.dumps(answer), flush=True)
"""

HERE = time.time() - time.monotonic()
SKEW = 5.0
"""Seconds by which the machine's own clock may be set while the tests run."""


@pytest.fixture
def clock(tmp_path: Path) -> PoolClock:
    return PoolClock(tmp_path / "clock")


@pytest.fixture
def program(clock: PoolClock) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clock.environment(os.environ)
    )
    with process:
        yield process
        process.kill()
    clocks.clear(process.pid)


def ask(program: subprocess.Popen[str], order: str = "") -> dict[str, Any]:
    assert program.stdin
    assert program.stdout
    program.stdin.write(f"{order}\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())  # type: ignore[no-any-return]


def ask_within(program: subprocess.Popen[str], limit: float) -> dict[str, Any] | None:
    """Its answer; None = it gave none, and was killed."""
    killer = threading.Timer(limit, program.kill)
    killer.start()
    try:
        return ask(program)
    except ValueError:
        return None
    finally:
        killer.cancel()
        killer.join()


def test_all_processes_see_a_jump_at_once_and_sleep_and_wait_as_ever(
    program: subprocess.Popen[str], clock: PoolClock
) -> None:
    for seconds in (0.0, 3600.0, -3600.0, 0.0):
        clock.shift(seconds)
        told = ask(program, "execute")
        for wall in (told["here"][0], told["forked"][0], told["executed"]):
            assert wall - HERE == pytest.approx(seconds, abs=SKEW)
        for name, lasted in told["lasted"].items():
            assert 0.045 < lasted < 3, name


def test_the_clock_that_counts_suspend_stays_right(program: subprocess.Popen[str], clock: PoolClock) -> None:
    clock.shift(3600.0)
    assert ask(program)["here"][1] == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)


def test_a_signal_handler_ends_a_sleep_by_raising(clock: PoolClock) -> None:
    code = (
        "import signal, time\n"
        "def rung(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, rung); signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "try: time.sleep(60)\n"
        "except TimeoutError: print('rung')\n"
    )
    env = clock.environment(os.environ)
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=20).stdout == b"rung\n"


def test_what_a_killed_program_leaves_in_shared_memory_is_cleared(program: subprocess.Popen[str]) -> None:
    ask(program)
    left = [
        clocks.SHARED_MEMORY / f"faketime_shm_{program.pid}",
        clocks.SHARED_MEMORY / f"sem.faketime_sem_{program.pid}",
    ]
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert all(path.exists() for path in left)
    clocks.clear(program.pid)
    clocks.clear(program.pid)
    assert not any(path.exists() for path in left)


def test_a_program_that_was_killed_with_the_shared_lock_held_does_not_stop_the_others(
    program: subprocess.Popen[str], clock: PoolClock
) -> None:
    """libfaketime shares a semaphore among a pool's processes: to read a clock or a file's times must not need it."""
    ask(program)
    library = ctypes.CDLL(None, use_errno=True)
    library.sem_open.restype = ctypes.c_void_p
    semaphore = library.sem_open(f"/faketime_sem_{program.pid}".encode(), 0)
    assert semaphore
    assert library.sem_trywait(ctypes.c_void_p(semaphore)) == 0
    clock.shift(3600.0)
    answer = ask_within(program, 20.0)
    assert answer is not None, "it waits for the lock"
    assert answer["forked"][0] - HERE == pytest.approx(3600, abs=SKEW)


def test_an_environment_keeps_what_it_had(clock: PoolClock) -> None:
    base = {"LD_PRELOAD": "other.so", "PYTHONPATH": "/here", "FAKETIME_SHARED": "/a /b", "FAKETIME": "+1d", "X": "1"}
    made = clock.environment(base)
    assert made["LD_PRELOAD"].split()[1:] == ["other.so"]
    assert made["PYTHONPATH"].endswith(":/here")
    assert made["X"] == "1"
    assert not {"FAKETIME", "FAKETIME_SHARED"} & made.keys()


LOCKED = """
import ctypes, os, subprocess, sys
name = os.environ["FAKETIME_SHARED"].split()[0]
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_wait(ctypes.c_void_p(libc.sem_open(name.encode(), 0)))
print("locked", flush=True)
subprocess.run([sys.executable, "-c", "print('started', flush=True)"], stdin=subprocess.DEVNULL)
"""


def test_a_program_that_died_while_it_started_holds_up_no_other_for_long(clock: PoolClock) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED], stdout=subprocess.PIPE, env=clock.environment(os.environ), process_group=0
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == b"locked\n"
            os.set_blocking(program.stdout.fileno(), False)

            def started() -> bytes | None:
                clock.mend(program.pid)
                return program.stdout.readline() if program.stdout else None

            assert wait_until(started) == b"started\n"
        finally:
            os.killpg(program.pid, signal.SIGKILL)
    clocks.clear(program.pid)
