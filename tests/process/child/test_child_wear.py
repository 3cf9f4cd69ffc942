"""What a handler does to its process: what is put back, when the child leaves, and what is never a success."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from childrig import ChildProcess
from support.waiting import wait_until

from jobpool.child.recycle import DAEMONS_LOOK_EVERY_S
from jobpool.ipc.packets import INLINE_BYTES
from jobpool.message.outcome import ResultKind
from jobpool_torture.processes import is_alive

Start = Callable[..., ChildProcess]


# --- no verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["close_everything", "swap_sockets"])
def test_a_handler_that_takes_the_sockets_away_ends_the_child_without_a_verdict(
    child: ChildProcess, handler: str
) -> None:
    nonce = child.send(handler)
    assert child.hear() is None
    assert child.exit_status() == 70
    assert "jobpool: this child cannot go on: " in child.slot.printed.read(nonce)


def test_sys_exit_in_a_fork_ends_it_with_its_status(start_child: Start) -> None:
    assert start_child().succeed("fork_and_exit").output == "[0,0,3,255,1]\nno such customer\n"


# --- left behind -------------------------------------------------------------------------------------


def test_shared_memory_left_behind_is_freed_when_the_child_has_left(child: ChildProcess) -> None:
    result = child.succeed("leave_shared_memory")
    assert result.leaving == "processes: Python's resource tracker"
    assert child.exit_status() == 0
    memory = Path("/dev/shm") / result.output
    wait_until(lambda: not memory.exists())


def test_a_process_that_ended_by_itself_is_collected_and_the_child_stays(child: ChildProcess) -> None:
    assert child.succeed("leave_ended_process").leaving == ""
    assert child.succeed("noop").leaving == ""


def test_an_intended_daemon_lives_as_long_as_its_child(child: ChildProcess) -> None:
    result = child.succeed("leave_daemon")
    assert result.leaving == ""
    assert child.succeed("noop").leaving == ""
    assert is_alive(int(result.output))
    stranger = child.succeed("leave_process")
    assert stranger.leaving == "processes"
    assert not is_alive(int(stranger.output))
    assert child.exit_status() == 0
    assert not is_alive(int(result.output))


def test_a_thread_that_has_not_ended_its_work_ends_the_child(child: ChildProcess) -> None:
    result = child.succeed("leak_threads", {"daemon": False})
    assert result.leaving == "threads: Thread-1 (sleep)"
    assert child.exit_status() == 0


def test_a_thread_that_is_about_to_end_does_not(child: ChildProcess) -> None:
    assert child.succeed("leak_threads", {"seconds": 0.005, "daemon": False}).leaving == ""


def test_daemon_threads_that_wait_stay_with_their_child_up_to_a_threshold(child: ChildProcess) -> None:
    assert [child.succeed("leak_threads", {"count": 32}).leaving for _ in range(2)] == ["", ""]
    assert child.succeed("noop").leaving == ""
    assert child.succeed("leak_threads").leaving == "threads: Thread-65 (sleep)"
    assert child.exit_status() == 0


def test_beside_one_that_may_stay_another_thread_is_found(child: ChildProcess) -> None:
    assert child.succeed("leak_threads").leaving == ""
    assert child.succeed("leak_threads", {"daemon": False}).leaving == "threads: Thread-2 (sleep)"


def test_a_daemon_thread_that_computes_on_ends_the_child(child: ChildProcess) -> None:
    assert child.succeed("leak_busy_thread").leaving == "", "it may only be on its way to its first wait"
    wait_until(lambda: child.succeed("noop").leaving == "threads: busy", DAEMONS_LOOK_EVERY_S + 5.0)
    assert child.exit_status() == 0


def test_a_daemon_thread_that_has_ended_hides_no_other(child: ChildProcess) -> None:
    assert child.succeed("leak_threads", {"seconds": 0.01}).leaving == ""
    wait_until(lambda: len(os.listdir(f"/proc/{child.pid}/task")) == 1, what="its end")
    child.succeed("noop")
    assert child.succeed("leak_threads", {"daemon": False}).leaving == "threads: Thread-2 (sleep)"


def test_any_thread_stays_where_the_handler_allows_it(child: ChildProcess) -> None:
    for _ in range(3):
        assert child.succeed("leak_allowed_threads", {"daemon": False, "count": 50}).leaving == ""
    assert child.succeed("noop").leaving == ""


def test_leaked_descriptors_end_the_child_above_the_threshold(child: ChildProcess) -> None:
    assert child.succeed("leak_descriptors", {"count": 50}).leaving == ""
    assert child.succeed("leak_descriptors", {"count": 20}).leaving == "descriptors"


def test_a_child_above_its_memory_mark_leaves(start_child: Start) -> None:
    child = start_child(max_rss=200 << 20)
    assert child.succeed("noop").leaving == ""
    assert child.succeed("grow", {"megabytes": 250}).leaving == "memory"
    assert child.exit_status() == 0


def test_work_that_waits_for_a_leaving_child_stays_unread(start_child: Start) -> None:
    child = start_child(max_jobs=1)
    child.send("noop")
    child.send("noop")
    assert child.result().leaving == "jobs"
    assert child.exit_status() == 0
    assert child.work_reading.recv(1000)[0] == 1
    assert child.page.nonce == 1


@pytest.mark.parametrize("name", ["memory", "recursion", "descriptors", "rights", "import"])
def test_a_suspect_failure_ends_the_child_and_a_plain_one_does_not(child: ChildProcess, name: str) -> None:
    for plain in ("value", "file", "access", "connection", "module"):
        assert child.run("fail_by", {"name": plain}).leaving == ""
    result = child.run("fail_by", {"name": name})
    assert (result.kind, result.leaving) == (ResultKind.FAILED, "a failure that may have spoilt it")
    assert child.exit_status() == 0


@pytest.mark.parametrize(("when", "handler"), [("always", "fail"), ("never", "fail_by")])
def test_after_which_failures_a_child_leaves_can_be_chosen(start_child: Start, when: str, handler: str) -> None:
    child = start_child(recycle_on_failure=when)
    payload = {"name": "memory"} if handler == "fail_by" else {}
    assert child.succeed("noop").leaving == ""
    assert bool(child.run(handler, payload).leaving) is (when == "always")


# --- put back ----------------------------------------------------------------------------------------


def test_folder_umask_signals_and_mask_are_put_back(child: ChildProcess) -> None:
    child.succeed("disturb")
    around = json.loads(child.succeed("look_around").output)
    assert around == {"home": True, "umask": True, "sigterm": True, "mask": []}


def test_streams_are_put_back(child: ChildProcess) -> None:
    child.succeed("steal_streams")
    assert "to stdout\nto stderr\nbytes\n" in child.succeed("print_everywhere").output


def test_a_job_whose_child_cannot_be_put_back_has_ended_as_it_did(child: ChildProcess) -> None:
    result = child.succeed("lose_environment")
    assert (result.output, result.leaving) == ("done", "its state cannot be put back")
    assert child.exit_status() == 0


def test_a_large_answer_is_heard_though_the_handler_has_left_no_descriptor(child: ChildProcess) -> None:
    result = child.succeed("hoard_descriptors")
    assert (len(result.output), result.leaving) == (2 * INLINE_BYTES, "descriptors")
    assert child.exit_status() == 0


# --- output ------------------------------------------------------------------------------------------


def test_what_is_printed_past_python_is_in_the_output_too(start_child: Start) -> None:
    output = start_child().succeed("print_everywhere").output
    assert output == ("returned\nto stdout\nto stderr\nbytes\n\nto descriptor 1\nto descriptor 2\nfrom a subprocess\n")


def test_c_code_prints_into_its_own_attempt(child: ChildProcess) -> None:
    assert child.succeed("print_through_c").output == "from C\n"
    assert child.succeed("noop").output == ""


def test_a_flood_is_cut_and_counted(start_child: Start) -> None:
    child = start_child(max_rss=150 << 20)
    child.succeed("noop")
    output = child.succeed("flood", {"megabytes": 64}, timeout=60.0).output

    assert len(output) < 66_000
    assert "bytes dropped" in output
    assert "the end" in output
    assert all(child.succeed("noop").leaving == "" for _ in range(65))
