"""The loop's hold on its children: a wait that is interrupted, a spawn that fails, a fork server that does not die."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpool.ipc.fork_client import ForkServerClient
from jobpool.ipc.linux import open_fds
from jobpool.master import events as ev
from jobpool.master.child_processes import ChildProcesses
from jobpool.master.slots import Slot

WAIT = 0.2
"""Seconds."""


def test_what_came_while_the_process_was_stopped_is_seen_when_it_goes_on() -> None:
    """As after SIGSTOP and SIGCONT: the system call is interrupted, and its time is over before it could go on."""
    children = ChildProcesses(None, None, {})  # type: ignore[arg-type]  # it starts nothing here
    reading, writing = os.pipe()
    seen: list[ev.Event] = [ev.ReapDone([])]
    children.watch(reading, lambda: seen)

    def sleep_past_the_wait(*_: Any) -> None:
        time.sleep(2 * WAIT)
        os.write(writing, b"x")

    previous = signal.signal(signal.SIGALRM, sleep_past_the_wait)
    try:
        signal.setitimer(signal.ITIMER_REAL, WAIT / 4)
        assert children.poll(WAIT) == seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        os.close(reading)
        os.close(writing)
        children.close()


class FullForkServer:
    """Its requests have to wait, and no descriptor is to be had for that."""

    def spawn(self, child: int, slot: int, fds: tuple[int, ...]) -> None:  # noqa: ARG002
        raise OSError(errno.EMFILE, "too many open files")


def test_a_spawn_that_fails_leaves_no_descriptor_open() -> None:
    config = SimpleNamespace(options=SimpleNamespace(output_cap=65536))
    children = ChildProcesses(config, None, {})  # type: ignore[arg-type]
    children._servers[1] = FullForkServer()  # type: ignore[assignment]
    before = open_fds()
    with pytest.raises(OSError, match="too many open files"):
        children.spawn(Slot(0, child=1, generation=1))
    assert open_fds() == before
    children._servers.clear()
    children.close()


class Undead:
    discard = ForkServerClient.discard

    def __init__(self) -> None:
        self.said: list[str] = []
        self.output = self

    def wait(self, timeout: float) -> int:
        self.said.append("wait")
        raise subprocess.TimeoutExpired("a fork server", timeout)

    def kill(self) -> None:
        self.said.append("kill")

    def close(self) -> None:
        self.said.append("close")


def test_it_is_killed_and_the_pool_ends_without_it() -> None:
    undead = Undead()
    children = ChildProcesses(None, None, {})  # type: ignore[arg-type]  # it starts nothing here
    children._ended[1] = cast(ForkServerClient, undead)
    children.close()
    assert undead.said == ["wait", "close", "kill", "wait", "close"]
