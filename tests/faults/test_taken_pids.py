"""No signal hits a process that has taken over a pid of the pool's (row 24)."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support import taken_pids
from support.faultmoves import Figure, kill_fork_server, start_pools
from support.poolrig import LIMIT, Rig
from support.waiting import wait_until

from jobpool_torture.processes import is_alive

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "pool" / "jobpool", ROOT / "pool" / "jobpool_torture", ROOT / "backends" / "jobpool_backends")

BY_NUMBER = {
    ("jobpool/ipc/linux.py", "die_with_parent"): "itself",
    ("jobpool/ipc/linux.py", "kill"): "a child that nobody else collects: its callers answer for that",
    ("jobpool/ipc/linux.py", "kill_group"): "the group of such a child: its callers answer for that",
    ("jobpool/ipc/fork_client.py", "ForkServerClient.kill"): "the group of its own child, seen alive just before",
    (
        "jobpool/ipc/scheduler_process.py",
        "SchedulerProcess.__init__",
    ): "its own child, by Popen, which has not collected it",
    ("jobpool_torture/handlers.py", "crash"): "itself",
    ("jobpool_torture/network.py", "Proxy.close"): "its own child, by Popen, which has not collected it",
    ("jobpool_torture/broker_faults.py", "BrokerRestart.close"): "the group of its own child, not collected yet",
}
"""Who sends a signal by a number, and why that cannot be another's: file and function → reason."""

OF_CHILDREN = {
    ("jobpool/ipc/linux.py", "sweep_strays"): "what /proc lists as children of this process, collected behind it",
    ("jobpool/ipc/fork_server.py", "ForkServer._fork"): "just born, and collected in the next line",
    ("jobpool/ipc/fork_server.py", "ForkServer._collect"): "dead, says its pidfd, and collected behind it",
    ("jobpool/ipc/fork_server.py", "ForkServer._end"): "of its own children those that it has not collected",
    (
        "jobpool/master/child_processes.py",
        "ChildProcesses._collect_orphan",
    ): "adopted; asked for first whether it is a child still",
    ("jobpool/handlers/builtin/spawning.py", "_end"): "its own child, collected behind it",
}
"""The same of those that call `kill` and `kill_group` of linux.py."""

BY_PIDFD = "signal.pidfd_send_signal"
SENDERS = {"os.kill", "os.killpg", "send_signal", "terminate", "pthread_kill", "tgkill"}


def calls_in(file: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """The function (with its class) around each call of a file, what is called, and the call."""

    def walk(node: ast.AST, where: tuple[str, ...]) -> Iterator[tuple[str, str, ast.Call]]:
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.Call):
                yield ".".join(where), ast.unparse(below.func), below
            named = isinstance(below, ast.ClassDef | ast.FunctionDef)
            yield from walk(below, (*where, below.name) if named else where)  # type: ignore[attr-defined]

    return walk(ast.parse(file.read_text("utf-8")), ())


@cache
def all_calls() -> list[tuple[str, str, str, ast.Call]]:
    """The file too, of all calls in the packages that are installed."""
    files = [(package, file) for package in PACKAGES for file in package.rglob("*.py") if may_send(file)]
    return [(str(file.relative_to(package.parent)), *call) for package, file in files for call in calls_in(file)]


def places(is_meant: Callable[[str, ast.Call], bool]) -> set[tuple[str, str]]:
    """File and function of all such calls."""
    return {(file, function) for file, function, name, call in all_calls() if is_meant(name, call)}


def may_send(file: Path) -> bool:
    """Whether any of the words that are looked for is in it: most files need not be parsed."""
    return bool(re.search("kill|signal|terminate", file.read_text("utf-8")))


def sends_by_number(name: str, call: ast.Call) -> bool:
    """`os.kill`, `os.killpg`, and what `Popen` makes of them: a method `kill` without arguments."""
    method = name.rpartition(".")[2]
    return name in SENDERS or method in SENDERS or (method == "kill" and "process" in name and not call.args)


def asks_linux(name: str, _: ast.Call) -> bool:
    return name in ("kill", "kill_group", "linux.kill", "linux.kill_group")


@pytest.mark.row(24)
def test_signals_go_through_pidfds_but_where_the_number_cannot_be_anothers() -> None:
    """Every call in the source, by file and function: a new one needs its reason here."""
    assert places(sends_by_number) == set(BY_NUMBER)
    assert places(asks_linux) == set(OF_CHILDREN)
    assert ("jobpool/ipc/child_channel.py", "ChildChannel.signal") in places(lambda name, _: name == BY_PIDFD)


@pytest.mark.row(24)
def test_the_source_check_sees_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("class A:\n    def b(self):\n        os.kill(1, 9); self.process.kill(); x.send_signal(9)\n")
    assert [(where, sends_by_number(name, call)) for where, name, call in calls_in(file)] == [("A.b", True)] * 3


# --- pids that come back ----------------------------------------------------------------------------------------------

UNSHARE = (
    ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
    ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"),
)
CHOOSES_PIDS = f"from pathlib import Path; Path({str(taken_pids.NEXT_PID)!r}).write_text('400')"


@pytest.fixture(scope="module")
def unshare() -> tuple[str, ...]:
    """The words that start a program in a pid namespace of its own, where it chooses the next pid."""
    said = ""
    for words in UNSHARE if shutil.which("unshare") else ():
        tried = subprocess.run(
            [*words, sys.executable, "-c", CHOOSES_PIDS], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            return words
        said = tried.stderr.strip()
    pytest.skip(f"no pid namespace of one's own to be had: {said or 'there is no unshare'}")


@pytest.mark.row(24)
def test_who_takes_over_a_pid_is_not_hit_by_what_was_meant_for_its_former_owner(
    unshare: tuple[str, ...], tmp_path: Path, figure: Figure
) -> None:
    """Children under a deadline, a fork server and its orphans, a reload, TTOU, a timeout in C; see the program."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    words = [*unshare, sys.executable, taken_pids.__file__, str(tmp_path)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    strangers = int(ended.stdout)
    figure("pids taken over, strangers hit: 0 of", strangers, "")
    assert strangers >= 10


@pytest.mark.row(24)
def test_children_that_a_master_was_started_with_are_left_alone(rig: Rig) -> None:
    """A process that a shell handed over by exec is not the pool's to kill, though it is a child of the master's."""
    script = rig.directory / "start.sh"
    script.write_text(f'{shutil.which("sleep")} 300 &\nexec "$@"\n')
    [pool] = start_pools(rig, 1, through=("/bin/sh", str(script)))
    [stranger] = [pid for pid, command in rig.processes().items() if command.endswith("sleep 300")]
    server = kill_fork_server(pool)
    wait_until(lambda: pool.fork_servers() not in ([], [server]) and pool.ready() == 2, LIMIT)
    assert is_alive(stranger)
    assert pool.stop() == 0
    assert is_alive(stranger)
    assert list(rig.processes()) == [stranger]
