"""Children of a real fork server: how they are born, how they die, what they leave behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nurse import Child, Nurse, Watch, text_of
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.ipc.board_layout import ChildState
from jobpool.ipc.fork_server import RESWEEP_EVERY_S
from jobpool.ipc.frames import Exited, Loaded, Spawned, SpawnFailed
from jobpool.ipc.linux import TRACKER_S, direct_children, open_fds


def test_a_child_writes_its_page_leads_a_group_and_holds_no_descriptor_but_its_own(nurse: Nurse) -> None:
    """It has one thread, and the fork server as its parent; beside a sibling, whose descriptors it must not have."""
    nurse.bear(0)
    child = nurse.bear(slot=2)
    wait_until(lambda: nurse.board.slot(2).child.read().state is ChildState.IDLE)
    assert nurse.board.slot(2).child.read().pid == child.pid
    assert nurse.board.slot(1).child.read().pid == 0
    report = child.ask("report")
    assert report["pid"] == report["group"] == child.pid
    assert report["parent"] == report["session"] == nurse.server.pid
    assert report["threads"] == 1
    assert report["subreaper"]
    assert report["stdin"] == "/dev/null"
    assert child.ask("descriptors") == {}


def test_what_the_app_opened_is_cut_off_and_what_its_after_fork_hook_opens_is_kept() -> None:
    with Nurse(app="opens_things") as nurse:
        child = nurse.bear()
        assert child.ask("opened") == {"socket": "Bad file descriptor", "file": "worked", "reopened": 3}
        assert set(child.ask("descriptors").values()) == {"/dev/null", "/dev/zero"}


def test_output_of_any_kind_lands_in_the_output_file_and_that_of_the_import_does_not(nurse: Nurse) -> None:
    child = nurse.bear()
    child.ask("shout")
    child.work.shutdown(socket.SHUT_WR)
    assert nurse.hear(Exited, child).code == 0
    assert text_of(child.output) == "to one\nto two\nby print\n"


def test_children_share_no_random_state_and_nothing_that_the_app_did_to_signals() -> None:
    with Nurse(app="meddles") as nurse:
        children = [nurse.bear(slot) for slot in range(4)]
        assert len({child.ask("report")["random"] for child in children}) == 4
        answer = children[0].ask("signals")
        assert set(answer["changed"]) <= {"SIGPIPE", "SIGXFSZ", "SIGKILL", "SIGSTOP"}
        assert answer["blocked"] == []


def test_a_signal_from_a_stranger_ends_a_child_and_is_reported(nurse: Nurse) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGALRM):
        child = nurse.bear()
        os.kill(child.pid, number)
        exited = nurse.hear(Exited, child)
        assert (exited.pid, exited.signal, exited.code) == (child.pid, number, None)


@pytest.mark.parametrize("preload", [True, False])
def test_the_fork_server_ignores_what_is_meant_for_the_master(preload: bool) -> None:
    """At every moment: it changes the treatment of signals, and executes itself anew, after it has said `Loaded`."""
    with Nurse(preload=preload) as nurse:
        loaded = nurse.hear(Loaded)
        assert (loaded.preloaded, [handler.name for handler in loaded.handlers]) == (preload, ["demo"])
        child = nurse.spawn()
        poll = select.poll()
        poll.register(nurse.server, select.POLLIN)
        give_up = time.monotonic() + 20.0
        while not poll.poll(0):
            assert time.monotonic() < give_up, "no child"
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(nurse.server.pid, number)
        nurse.hear(Spawned, child)
        child.wait_ready()


def test_an_exit_status_and_usage_are_reported(nurse: Nurse) -> None:
    for status in (0, 3, 255):
        child = nurse.bear()
        child.tell(f"leave {status}")
        exited = nurse.hear(Exited, child)
        assert (exited.code, exited.signal) == (status, None)
        assert 0 < exited.cpu_seconds < 60
        assert 1 << 20 < exited.peak_rss < 1 << 30


def test_a_crash_in_c_leaves_its_stack_in_the_trace_file(nurse: Nurse, child: Child) -> None:
    child.tell("crash_in_c")
    assert nurse.hear(Exited, child).signal == signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in text_of(child.trace)
    assert "in crash_in_c" in text_of(child.trace)


def test_a_stack_is_dumped_on_demand_from_inside_a_c_loop(nurse: Nurse, child: Child) -> None:
    child.tell("spin")
    wait_until(lambda: nurse.board.slot(0).child.read().state is ChildState.BUSY)

    def dumped() -> bool:  # again and again: the first may come before the loop
        signal.pidfd_send_signal(child.pidfd, signal.SIGUSR1)
        return "in spin" in text_of(child.trace)

    wait_until(dumped)
    assert nurse.end(child).signal == signal.SIGKILL


def test_a_main_function_that_raises_is_an_exit_with_its_traceback_in_the_output() -> None:
    with Nurse(main="raises") as nurse:
        child = nurse.spawn()
        assert nurse.hear(Exited, child).code == 70
        assert "LookupError: a fault of the child's own" in text_of(child.output)


def test_a_child_that_executes_another_program_closes_its_channel_and_is_collected(nurse: Nurse, child: Child) -> None:
    child.tell("become sleep 600")
    assert child.hear() is None
    assert nurse.end(child).signal == signal.SIGKILL


def test_grandchildren_are_dead_within_a_second_of_the_child_whatever_they_did_to_hide(nurse: Nurse) -> None:
    for command in ("leave 0", "leave 1", "kill_myself 11", "kill_myself 9"):
        child = nurse.bear()
        grandchildren = Watch(child.ask("leave_grandchildren"))
        child.tell(command)
        assert grandchildren.wait(1.0) == [], command
        nurse.hear(Exited, child)


def test_a_death_is_reported_after_the_strays_are_gone_and_spares_the_neighbour_and_its_grandchildren() -> None:
    with Nurse() as nurse:
        child, neighbour = nurse.bear(0), nurse.bear(1)
        theirs = neighbour.ask("leave_grandchildren")
        grandchildren = Watch(child.ask("leave_grandchildren"))
        nurse.end(child)
        assert grandchildren.wait(0.001) == []
        assert Watch(theirs).wait(0.05) == theirs
        assert neighbour.ask("report")["pid"] == neighbour.pid


def test_shared_memory_of_the_dead_is_freed_and_who_only_claims_to_do_so_is_dead_soon_and_holds_nobody_up() -> None:
    with Nurse() as nurse:
        child = nurse.bear()
        name, hostile = child.ask("leave_shared_memory")
        memory, watch = Path("/dev/shm") / name, Watch([hostile])
        assert memory.exists()
        begun = Stopwatch()
        nurse.end(child)
        nurse.bear()
        assert begun.seconds() < TRACKER_S
        wait_until(lambda: not memory.exists())
        assert watch.wait(TRACKER_S + RESWEEP_EVERY_S + 0.5) == []


def test_what_calls_itself_a_resource_tracker_gains_nothing_by_forking_itself(nurse: Nurse, child: Child) -> None:
    child.ask("leave_chain_of_trackers")
    nurse.end(child)
    wait_until(lambda: not direct_children(nurse.server.pid), 10.0)


def test_resource_trackers_tidy_up_at_the_end_of_their_fork_server_too() -> None:
    with Nurse() as nurse:
        name, hostile = nurse.bear().ask("leave_shared_memory")
        watch = Watch([hostile])
    assert not (Path("/dev/shm") / name).exists()
    assert watch.wait(0.1) == []


def test_shared_memory_of_the_app_is_there_for_each_child_until_the_fork_server_ends() -> None:
    with Nurse(app="shares_memory") as nurse:
        assert nurse.hear(Loaded).cut == []
        names = set()
        for _ in range(2):
            child = nurse.bear()
            names.add(child.ask("attach_memory"))
            nurse.end(child)
        [memory] = [Path("/dev/shm") / name for name in names]
        # The app's tracker alone is left: one of a child's own would have unlinked it at its end.
        wait_until(lambda: len(direct_children(nurse.server.pid)) == 1)
        assert memory.exists()
    assert not memory.exists()


def test_a_child_starts_a_fork_server_of_multiprocessing_though_the_app_has_one() -> None:
    with Nurse(app="starts_pythons_fork_server") as nurse:
        child = nurse.bear()
        assert child.ask("start_pythons_fork_server") in direct_children(child.pid)


def test_what_the_app_itself_started_at_its_import_lives_until_the_fork_server_ends() -> None:
    with Nurse(app="meddles") as nurse:
        child = nurse.bear()
        helper = child.ask("helper")
        nurse.end(child)
        assert Watch([helper]).wait(0.05) == [helper]
        watch = Watch([helper])
        nurse.server.close()
        assert watch.wait(1.0) == []


DEBUGGER = """
import ctypes, os, sys, time
ptrace, pid = ctypes.CDLL(None).ptrace, int(sys.argv[1])
attached = ptrace(16, pid, None, None)  # PTRACE_ATTACH
if attached == 0 and sys.argv[2] == "goes on":
    os.waitpid(pid, 0)
    ptrace(7, pid, None, None)  # PTRACE_CONT
print(attached, flush=True)
if sys.argv[2] == "goes on":
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    time.sleep(0.02)
    os.waitpid(pid, 0)
sys.stdin.read()
"""


@contextlib.contextmanager
def debugged(child: Child, how: str) -> Iterator[None]:
    words, pipe = [sys.executable, "-c", DEBUGGER, str(child.pid), how], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as debugger:
        if debugger.stdout is None or debugger.stdout.readline() != b"0\n":
            pytest.skip("this user must not trace processes")
        yield


def test_a_dead_child_that_a_debugger_holds_is_reported_and_holds_up_nobody(nurse: Nurse) -> None:
    """As gdb does at its prompt: until it goes on, nobody else can collect the dead process."""
    child = nurse.bear(0)
    with debugged(child, "at its prompt"):
        assert nurse.end(child).signal == signal.SIGKILL
        nurse.end(nurse.bear(1))
        assert child.pid in direct_children(nurse.server.pid)
    nurse.end(nurse.bear(1))
    wait_until(lambda: child.pid not in direct_children(nurse.server.pid))


def test_the_exit_status_of_a_child_whose_debugger_sees_its_end_first_is_reported(nurse: Nurse, child: Child) -> None:
    with debugged(child, "goes on"):
        child.tell("leave 1")
        assert nurse.hear(Exited, child).code == 1


def test_sixty_children_dying_at_once_are_all_reported() -> None:
    with Nurse(slots=60) as nurse:
        children = [nurse.spawn(slot) for slot in range(60)]
        for child in children:
            nurse.hear(Spawned, child)
            child.wait_ready()
        begun = Stopwatch()
        for child in children:
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        assert {nurse.hear(Exited, child).signal for child in children} == {signal.SIGKILL}
        assert begun.seconds() < 10
        nurse.bear()


def test_a_hundred_spawns_leave_no_descriptor_anywhere(nurse: Nurse) -> None:
    nurse.end(nurse.bear())
    own, of_server = open_fds(), _descriptors_of(nurse.server.pid)
    for _ in range(20):
        for child in [nurse.spawn(slot) for slot in range(4)] + [nurse.spawn(0)]:
            nurse.hear(Spawned, child)
            nurse.end(child)
    assert _descriptors_of(nurse.server.pid) == of_server
    assert open_fds() == own


def _descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_fork_that_is_refused_is_reported_and_the_next_succeeds() -> None:
    with Nurse(app="forks_fail_at_first") as nurse:
        child = nurse.spawn()
        assert "Resource temporarily unavailable" in nurse.hear(SpawnFailed, child).error
        nurse.bear()


def test_a_stopped_master_that_reads_nothing_does_not_stop_the_fork_server_from_collecting() -> None:
    """More news than the socket holds are kept, in order."""
    with Nurse(slots=1) as nurse:
        nurse.hear(Loaded)
        children = [nurse.spawn() for _ in range(300)]  # more than one socket buffer of requests and of answers
        for child in children:
            child.work.close()  # read as the end of the stream: the child exits
            child.work_reading.close()
        spawned = [nurse.hear(Spawned, child).child for child in children]
        assert spawned == [child.serial for child in children]
        assert {nurse.hear(Exited, child).code for child in children} == {0}
