"""A fork server that does not die when it is killed, as in state D, which no test can bring about."""

from __future__ import annotations

import subprocess
from typing import cast

from jobpool.ipc.fork_client import ForkServerClient
from jobpool.master.child_processes import _await_end


class Undead:
    def __init__(self) -> None:
        self.said: list[str] = []

    def wait(self, timeout: float) -> int:
        self.said.append("wait")
        raise subprocess.TimeoutExpired("a fork server", timeout)

    def kill(self) -> None:
        self.said.append("kill")


def test_it_is_killed_and_the_pool_ends_without_it() -> None:
    undead = Undead()
    _await_end(cast(ForkServerClient, undead))
    assert undead.said == ["wait", "kill", "wait"]
