"""What /proc says of real processes, and that no signal reaches one that was not meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import wait_until

from jobpool_torture import processes

SLEEPER = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a folder of its own, with a mark in its environment."""
    env = os.environ | {"SLEEPERS_MARK": tmp_path.name}  # another test may have a sleeper meanwhile
    with subprocess.Popen(SLEEPER, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_lives_stops_and_ends(sleeper: subprocess.Popen[bytes]) -> None:
    pid = sleeper.pid
    assert processes.is_alive(pid)
    assert processes.state(pid) in "SRD"
    assert processes.parent_of(pid) == os.getpid()
    assert pid in processes.children_of(os.getpid())
    assert "time.sleep(600)" in processes.command(pid)
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: processes.state(pid) == "T", what="it is stopped")
    assert processes.is_alive(pid)
    sleeper.kill()
    wait_until(lambda: processes.state(pid) == "Z", what="it is dead")
    assert not processes.is_alive(pid)
    assert pid not in processes.children_of(os.getpid())
    sleeper.wait()
    assert (processes.state(pid), processes.parent_of(pid), processes.started_at(pid)) == ("", 0, 0)
    assert processes.command(pid) == ""


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert processes.parent_of(process.pid) == os.getpid()
        process.kill()


def test_a_later_process_began_later(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE) as later:
        assert 0 < processes.started_at(sleeper.pid) <= processes.started_at(later.pid)
        later.kill()


def test_processes_are_found_by_their_mark_or_folder(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert list(processes.marked(f"SLEEPERS_MARK={tmp_path.name}")) == [sleeper.pid]
    assert list(processes.marked("SLEEPERS_MARK=nobody's", tmp_path)) == [sleeper.pid]
    assert processes.marked("SLEEPERS_MARK=nobody's", tmp_path / "elsewhere") == {}


def test_who_was_there_before_works_for_nobody(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert processes.works_for_us(sleeper.pid, tmp_path)
    code = f"print(processes.marked('NOBODYS_MARK=1', Path({str(tmp_path)!r})))"
    words = [sys.executable, "-c", f"from pathlib import Path; from jobpool_torture import processes; {code}"]
    begun = processes.started_at(sleeper.pid)
    wait_until(lambda: clock_ticks() > begun, what="a later process is younger")
    assert subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout == b"{}\n"


ON_ITS_OWN_TERMINAL = """
import fcntl, os, pty, termios, time
ours, theirs = pty.openpty()
os.setsid()
fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
print(flush=True)
time.sleep(600)
"""


def test_who_looks_round_there_from_a_terminal_works_for_nobody(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ON_ITS_OWN_TERMINAL]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            assert os.readlink(f"/proc/{process.pid}/cwd") == str(tmp_path)
            assert not processes.works_for_us(process.pid, tmp_path)
            assert processes.marked("NOBODYS_MARK=1", tmp_path) == {}
        finally:
            process.kill()


def clock_ticks() -> int:
    """Since boot, as `started_at` counts."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


OWNER = """
import sys, time
from pathlib import Path
from jobpool_torture.fleet import Fleet
from jobpool_torture.ledger import LEDGER
from jobpool_torture.nemesis import Nemesis
from jobpool_torture.schedule import Fault

folder = Path(sys.argv[1])
words = ["-A", "jobpool_torture.handlers", "-w", "1"]
fleet = Fleet(folder, [f"sqlite:///{folder}/q.db"], words, environment={LEDGER: f"{folder}/ledger"})
nemesis = Nemesis(fleet, "none", "none", "none", "", orders=folder, record=folder / "record")
fleet.start()
assert sys.argv[3] == "starting" or not fleet.wait_ready(60.0)
while nemesis.strike(Fault(0, 0.0, sys.argv[2], 0, 0, 600.0)).missed:
    assert fleet.pools[0].pid and not fleet.pools[0].is_ready(), "a pool that is ready can be stopped"
print(fleet.pools[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["master.stop", "forkserver.stop", "group.stop"])
def test_tortured_pools_do_not_outlive_who_runs_them_whatever_of_them_is_stopped(tmp_path: Path, kind: str) -> None:
    words = [sys.executable, "-c", OWNER, str(tmp_path), kind, "ready"]
    pids: list[int] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout
            master = int(owner.stdout.readline())
            pids = processes.tree_of(owner.pid)[1:]
            tree = processes.tree_of(master)
            assert pids == tree, "nothing outlives the owner to see to its end"
            assert len(tree) == 3
            held = tree if kind == "group.stop" else [master if kind == "master.stop" else tree[1]]
            wait_until(lambda: [pid for pid in tree if processes.state(pid) == "T"] == held, what="stopped")
        finally:
            owner.kill()
    try:
        wait_until(lambda: not any(map(processes.is_alive, pids)), what="all are gone")
    finally:
        for pid in pids:
            processes.send(pid, signal.SIGKILL, lambda pid: processes.works_for_us(pid, tmp_path))


@pytest.mark.parametrize("kind", ["master.stop", "group.stop"])
def test_a_pool_that_is_stopped_while_it_starts_does_not_outlive_who_tortures_it(tmp_path: Path, kind: str) -> None:
    """It is stopped as soon as it can be ended with its parent, and not before."""
    words = [sys.executable, "-c", OWNER, str(tmp_path), kind, "starting"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        master = int(owner.stdout.readline())
        owner.kill()
    try:
        wait_until(lambda: not processes.is_alive(master), 10.0, "it is gone")
    finally:
        processes.send(master, signal.SIGKILL, lambda pid: processes.works_for_us(pid, tmp_path))


def test_its_tree_holds_all_below_it() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        below = int(process.stdout.readline())
        assert processes.tree_of(process.pid) == [process.pid, below]
        assert processes.send(below, signal.SIGKILL, lambda pid: processes.parent_of(pid) == process.pid)
        process.kill()


def test_descriptors_are_counted_by_kind(sleeper: subprocess.Popen[bytes]) -> None:
    counted = processes.descriptors(sleeper.pid)
    assert counted["pipe"] == 1
    with pytest.raises(OSError, match=r"No such file"):
        processes.descriptors(2**30)


def test_a_signal_reaches_only_what_was_meant(sleeper: subprocess.Popen[bytes]) -> None:
    assert not processes.send(sleeper.pid, signal.SIGKILL, lambda _: False)
    assert sleeper.poll() is None
    assert processes.send(sleeper.pid, signal.SIGKILL, lambda pid: pid == sleeper.pid)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not processes.send(sleeper.pid, signal.SIGKILL, lambda _: True)
    assert not processes.send(0, signal.SIGKILL, lambda _: True)


def test_no_signal_goes_to_a_dead_one_that_was_not_collected(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    wait_until(lambda: processes.state(sleeper.pid) == "Z", what="it is dead")
    assert not processes.send(sleeper.pid, signal.SIGTERM, lambda _: True)


def test_what_takes_over_the_pid_between_the_look_and_the_signal_is_not_hit(sleeper: subprocess.Popen[bytes]) -> None:
    """The process ends while it is being looked at: the look is right, and the signal reaches nobody."""

    def ends_meanwhile(pid: int) -> bool:
        sleeper.kill()
        sleeper.wait()  # from here on its pid is free
        return pid == sleeper.pid

    assert not processes.send(sleeper.pid, signal.SIGKILL, ends_meanwhile)
