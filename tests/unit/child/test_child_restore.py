"""The state of a process that a child puts back, and when it looks thoroughly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def ended(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which is spoilt by it."""
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, **options)


LOOKS = """
import os
from jobpool.child.restore import ProcessState

tidy = ProcessState(2)
tidy.restore(10.0, False)
os.nice(1)
for now, failed in ((10.05, False), (10.06, True), (10.07, False), (10.17, False)):
    print(tidy.restore(now, failed) or "fine")
"""


def test_a_costly_look_comes_after_a_failure_and_else_ten_times_a_second() -> None:
    told = ended(LOOKS)
    assert told.stdout.splitlines() == ["fine", "user or rights", "fine", "user or rights"]


PUTS_BACK = """
import cProfile, decimal, faulthandler, gc, logging, os, signal, sys, threading
from jobpool.child.restore import ProcessState
from jobpool.ipc.process_options import ASKS_STACK


def state():
    return [
        os.sched_getaffinity(0), os.sched_getscheduler(0), faulthandler.is_enabled(), logging.root.manager.disable,
        sys.getswitchinterval(), sys.get_int_max_str_digits(), gc.get_threshold(), threading.stack_size(),
        getattr(sys, "tracebacklimit", None), list(sys.argv), sys.stdin, list(sys.meta_path), list(sys.path_hooks),
        gc.get_debug(), threading.gettrace(), threading.getprofile(),
        sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) if sys.version_info >= (3, 12) else sys.getprofile(),
        *map(signal.getsignal, (signal.SIGSEGV, signal.SIGABRT, signal.SIGWINCH, ASKS_STACK)),
        *(decimal.getcontext().traps.copy(), decimal.getcontext().Emax, decimal.getcontext().clamp),
    ]


faulthandler.enable(file=1)
faulthandler.register(ASKS_STACK, file=1, chain=False)
tidy = ProcessState(1)
before = state()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
faulthandler.disable()
logging.disable(logging.CRITICAL)
sys.setswitchinterval(0.5)
sys.set_int_max_str_digits(0)
gc.set_threshold(1, 1, 1)
threading.stack_size(1 << 20)
sys.tracebacklimit, sys.argv, sys.stdin = 0, ["report"], None
sys.meta_path.pop(0)
sys.path_hooks.clear()
gc.set_debug(gc.DEBUG_SAVEALL)
threading.settrace(print)
threading.setprofile(print)
profile = cProfile.Profile()
profile.enable()
for number in signal.SIGSEGV, signal.SIGABRT, signal.SIGWINCH, ASKS_STACK:
    signal.signal(number, print)
signal.set_wakeup_fd(os.open("/dev/ptmx", os.O_RDWR | os.O_NONBLOCK))
decimal.getcontext().traps[decimal.Inexact] = True
decimal.getcontext().Emax, decimal.getcontext().clamp = 5, 1
changed = state()
with open(os.devnull, "w") as other:
    faulthandler.enable(file=other)
    print(repr(tidy.restore(10.0, True)), state() == before, [a != b for a, b in zip(changed, before)],
          signal.set_wakeup_fd(-1), flush=True)
signal.raise_signal(ASKS_STACK)
print("asked", flush=True)
faulthandler._sigsegv()
"""


def test_scheduling_and_settings_of_the_interpreter_are_put_back_and_stacks_of_crashes_go_where_they_went() -> None:
    told = ended(PUTS_BACK)
    line, _, stacks = told.stdout.partition("\n")
    asked, _, stack = stacks.partition("asked\n")
    one_core = len(os.sched_getaffinity(0)) == 1
    assert line == f"'' True {[not one_core, *[True] * 23]} -1", told.stderr
    assert "Current thread" in asked
    assert "Segmentation fault" in stack


TAKEN_AWAY = """
import sys
from jobpool.child.restore import ProcessState

names = "argv", "stdin", "meta_path", "path_hooks", "path"
tidy = ProcessState(2)
before = [getattr(sys, name) for name in names]
for name in names:
    delattr(sys, name)
print(repr(tidy.restore(10.0, True)), [getattr(sys, name) for name in names] == before)
sys.argv = sys.meta_path = sys.path = None
print(repr(tidy.restore(20.0, True)), [getattr(sys, name) for name in names] == before)
"""


def test_what_a_handler_has_deleted_from_sys_is_put_back_and_costs_no_job() -> None:
    told = ended(TAKEN_AWAY)
    assert (told.stdout.splitlines(), told.stderr) == (["'' True", "'' True"], "")


REDIRECTED = """
import os
from jobpool.child.restore import ProcessState

tidy = ProcessState(2)
for fd in range(3):
    file = os.open(f"file{fd}", os.O_RDWR | os.O_CREAT)
    os.dup2(file, fd)
    os.close(file)
said = tidy.restore(10.0, True)
os.system("cat; echo printed; echo complained >&2")
print(repr(said), os.get_inheritable(1))
"""


def test_standard_streams_that_a_handler_has_redirected_are_put_back(tmp_path: Path) -> None:
    told = ended(REDIRECTED, cwd=tmp_path, input="typed\n")
    assert told.stdout.splitlines() == ["typed", "printed", "'' True"]
    assert told.stderr == "complained\n"
    assert [(tmp_path / f"file{fd}").read_text() for fd in range(3)] == ["", "", ""]


TAKEN = """
import os
from jobpool.child.restore import ProcessState

kept = os.dup(1)
os.close(kept)
tidy = ProcessState(2)
for number in range(kept, kept + 8):
    os.dup2(os.open("file", os.O_RDWR | os.O_CREAT), number)
os.dup2(os.open("other", os.O_RDWR | os.O_CREAT), 1)
try:
    tidy.restore(10.0, True)
except OSError as error:
    os.write(2, b"refused")
os.write(1, b"printed")
"""


def test_nothing_is_put_back_from_a_number_that_is_another_files_now(tmp_path: Path) -> None:
    told = ended(TAKEN, cwd=tmp_path)
    assert told.stderr == "refused"
    assert ((tmp_path / "file").read_text(), (tmp_path / "other").read_text()) == ("", "printed")
