"""Parents, orphans and descriptors, each in a process of its own, so that the test runner adopts and closes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from jobpool.errors import ConfigurationError
from jobpool.ipc import linux

HEAD = """
import os, signal, subprocess, sys, time
from jobpool.ipc import linux, packets

def sleeper():
    return subprocess.Popen(["sleep", "600"]).pid

def daemon(times=1):
    "Fork twice; the pid of what is left, which this process has adopted when it is known."
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, b"%d" % os.getpid())
            while True:
                signal.pause()
        os._exit(0)
    os.wait()
    return int(os.read(reading, 20))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=60, check=False
    )


def passes(program: str) -> bool:
    done = run(program)
    return (done.returncode, done.stderr) == (0, "") or pytest.fail(done.stderr)


def test_this_kernel_will_do() -> None:
    linux.check_kernel()


def test_a_kernel_without_pidfds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.pidfd_open")
    with pytest.raises(ConfigurationError, match=r"needs Linux 5\.4 or newer"):
        linux.check_kernel()


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigurationError, match="this is darwin: use a container"):
        linux.check_kernel()


def test_children_are_seen_living_dead_and_adopted() -> None:
    assert passes("""
assert not linux.has_children()
assert linux.direct_children() == set()
linux.become_subreaper()
living, adopted = sleeper(), daemon()
dead = os.fork() or os._exit(0)
os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
assert linux.has_children()
assert linux.direct_children() == {living, adopted, dead}
linux.sweep_strays((), 10.0)
""")


def test_a_pid_is_a_childs_until_it_is_collected_and_no_grandchilds() -> None:
    assert passes("""
child = sleeper()
assert linux.is_child(child)
linux.kill(child)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
assert linux.is_child(child)
os.waitpid(child, 0)
assert not linux.is_child(child)
assert not linux.is_child(os.getppid())
stranger = daemon()
assert not linux.is_child(stranger)
os.kill(stranger, signal.SIGKILL)
""")


def test_children_of_any_thread_are_seen() -> None:
    assert passes("""
import threading
pids = []
thread = threading.Thread(target=lambda: (pids.append(sleeper()), stop.wait()))
stop = threading.Event()
thread.start()
while not pids: time.sleep(0.001)
assert linux.direct_children() == set(pids)
stop.set()
thread.join()
assert linux.sweep_strays((), 10.0) == 1
""")


def test_the_main_thread_which_inherits_the_children_of_others_is_asked_last() -> None:
    assert passes("""
import threading
asked, real = [], linux._children_file
linux._children_file = lambda pid, task: (asked.append(int(task)), real(pid, task))[1]
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(8)]
for thread in threads: thread.start()
linux.direct_children()
stop.set()
assert len(asked) == 9
assert asked[-1] == os.getpid()
""")


def test_a_sweep_ends_strangers_and_spares_those_to_keep() -> None:
    assert passes("""
linux.become_subreaper()
kept = sleeper()
for _ in range(5): daemon()
sleeper()
assert linux.sweep_strays({kept}, 10.0) == 6
assert linux.direct_children() == {kept}
assert linux.sweep_strays({kept}, 10.0) == 0
assert linux.sweep_strays((), 10.0) == 1
assert not linux.has_children()
""")


def test_a_sweep_ends_a_process_that_forks_on_and_on() -> None:
    assert passes("""
linux.become_subreaper()
if os.fork() == 0:
    os.setsid()
    while True:  # each goes on where its parent was
        if os.fork() != 0:
            os._exit(0)
assert linux.sweep_strays((), 30.0) >= 1
assert not linux.has_children()
""")


def test_a_sweep_without_time_looks_once() -> None:
    assert passes("""
sleeper()
assert linux.sweep_strays((), 0.0) <= 1
linux.sweep_strays((), 10.0)
""")


def test_a_process_whose_parent_is_another_by_now_dies_at_once() -> None:
    assert run("linux.die_with_parent(1 if os.getppid() != 1 else 2)").returncode == -signal.SIGKILL


def test_a_process_dies_with_its_parent_unless_that_was_taken_back() -> None:
    assert passes("""
linux.become_subreaper()
reading, writing = os.pipe()
parent = os.fork()
if parent == 0:
    for take_back in (False, True):
        me = os.getpid()
        if os.fork() == 0:
            linux.die_with_parent(me)
            if take_back: linux.signal_at_parents_death(0)
            os.write(writing, b"%d %d\\n" % (take_back, os.getpid()))
            while True: signal.pause()
    while True: signal.pause()
said = b""
while said.count(b"\\n") < 2: said += os.read(reading, 100)
pids = dict(map(int, line.split()) for line in said.splitlines())
os.kill(parent, signal.SIGKILL)
os.waitpid(parent, 0)
assert os.waitpid(pids[0], 0)[1] == signal.SIGKILL
assert os.waitpid(pids[1], os.WNOHANG)[0] == 0
linux.sweep_strays((), 10.0)
""")


def test_descriptors_are_listed_and_closed_but_for_those_to_keep() -> None:
    assert passes("""
reading, writing = os.pipe()
assert linux.open_fds() == {0, 1, 2, reading, writing}
linux.close_all_but({0, 1, 2, writing})
assert linux.open_fds() == {0, 1, 2, writing}
packets.close_all([writing, writing, 999])
""")


def test_a_blinded_descriptor_keeps_its_number_and_reaches_nothing() -> None:
    assert passes("""
reading, writing = os.pipe()
linux.blind([writing])
assert os.read(reading, 1) == b""          # nobody writes any more
assert linux.open_fds() == {0, 1, 2, reading, writing}
try:
    os.write(writing, b"x")
except OSError as error:
    assert error.errno == 9
else:
    raise AssertionError
os.close(writing)
""")


def test_the_out_of_memory_score_is_raised_and_bounded() -> None:
    assert passes("""
def score(): return int(open("/proc/self/oom_score_adj").read())
import warnings; warnings.simplefilter("ignore")
before = score()
linux.prefer_as_victim(100)
assert score() == min(1000, before + 100)
linux.prefer_as_victim(5000)
assert score() == 1000
""")


TERMINAL = """
import fcntl, pty, resource, termios
os.setsid()
signal.signal(signal.SIGHUP, {disposition})
ours, theirs = pty.openpty()
print(linux.ends_with_terminal() if {early} else "-")
{taken}
print(linux.ends_with_terminal(), linux.terminal_is_closed())
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
print(linux.terminal_is_closed())
resource.setrlimit(resource.RLIMIT_NOFILE, before)
os.close(ours)
print(linux.terminal_is_closed())
"""
TAKEN = "fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)"


def test_a_closed_terminal_is_told_from_one_that_never_was_and_from_a_lack_of_descriptors() -> None:
    for disposition, early, taken, told in [
        ("lambda *_: None", False, TAKEN, "- True False False True"),
        ("lambda *_: None", False, "", "- False False False False"),
        ("signal.SIG_IGN", False, TAKEN, "- False False False False"),  # nohup
        ("lambda *_: None", True, TAKEN, "False False False False False"),  # asked when there was none yet
    ]:
        done = run(TERMINAL.format(disposition=disposition, early=early, taken=taken))
        assert done.stdout.split() == told.split(), (disposition, early, taken, done.stderr)
