"""What a child has of its fork server, and the fork server of its child."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from childrig import ChildProcess, Server

from jobpool.message.outcome import ResultKind

Start = Callable[..., ChildProcess]


def test_the_app_is_imported_before_the_fork_and_the_end_of_a_child_is_told(
    server: Server, child: ChildProcess
) -> None:
    assert server.loaded.preloaded
    assert "sum_up" in [info.name for info in server.loaded.handlers]
    for handler in ("print_everywhere", "fail", "leave_ended_process", "fork_and_exit", "steal_streams"):
        assert child.run(handler).leaving == ""
    late = child.run("hang_sleep", timeout=0.2)
    assert (late.kind, late.leaving) == (ResultKind.TIMEOUT, "timeout")
    exited = child.exited()
    assert (exited.code, exited.signal) == (0, None)


def test_a_child_costs_little_memory_of_its_own(child: ChildProcess) -> None:
    for _ in range(200):
        child.succeed("noop")
    rollup = Path(f"/proc/{child.pid}/smaps_rollup").read_text().split("\n")
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024
    print(f"private: {private:.1f} MiB")
    assert private <= 8.0
