"""Tiny apps and main functions for children, named by strings in the tests of the fork server."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobpool.errors import ConfigurationError
from jobpool.ipc import fork_server as fork_server
from jobpool.ipc import packets
from jobpool.ipc.frames import RUN_HEAD, HandlerInfo, Ready, Result
from jobpool.ipc.process_options import ChildBoot, ChildOptions
from jobpool.message.outcome import ResultKind

OPENED: list[Any] = []

# --- apps --------------------------------------------------------------------------------------------


def plain(_: ChildOptions) -> list[HandlerInfo]:
    print("this was printed at the import and must be printed once")
    return [HandlerInfo("demo", max_retries=3)]


def missing(_: ChildOptions) -> list[HandlerInfo]:
    import nowhere_to_be_found  # type: ignore[import-not-found]

    return [nowhere_to_be_found]


def starts_a_helper_and_fails(_: ChildOptions) -> list[HandlerInfo]:
    raise LookupError(subprocess.Popen(["sleep", "600"]).pid)


def bad_syntax(_: ChildOptions) -> list[HandlerInfo]:
    exec(compile("def report(:\n", "myapp.py", "exec"))
    return []


def exits(_: ChildOptions) -> list[HandlerInfo]:
    sys.exit(5)


def misconfigured(_: ChildOptions) -> list[HandlerInfo]:
    raise ConfigurationError("the app 'myapp' has no handlers: decorate one with @jobpool.handler")


def hangs(_: ChildOptions) -> list[HandlerInfo]:
    print("importing", flush=True)
    sum(range(10**12))
    return []


def dies(_: ChildOptions) -> list[HandlerInfo]:
    os._exit(9)


def starts_threads(_: ChildOptions) -> list[HandlerInfo]:
    threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()
    threading.Thread(target=lambda: None, name="short").start()
    subprocess.Popen(["sleep", "600"])
    return [HandlerInfo("demo")]


def opens_things(_: ChildOptions) -> list[HandlerInfo]:
    OPENED.extend(socket.socketpair())
    OPENED.append(os.fdopen(os.open(os.devnull, os.O_RDONLY), "rb"))
    os.register_at_fork(after_in_child=lambda: OPENED.append(os.fdopen(os.open("/dev/zero", os.O_RDONLY), "rb")))
    return []


def shares_memory(_: ChildOptions) -> list[HandlerInfo]:
    from multiprocessing.shared_memory import SharedMemory

    OPENED.append(SharedMemory(create=True, size=4096))
    return []


def starts_pythons_fork_server(_: ChildOptions) -> list[HandlerInfo]:
    from multiprocessing import forkserver

    forkserver.ensure_running()
    return []


def computes_in_parallel(_: ChildOptions) -> list[HandlerInfo]:
    _in_parallel()
    return []


def _in_parallel() -> int:
    """Have four threads of OpenMP run a function of C, as compiled code with `#pragma omp parallel` does."""
    run = ctypes.CDLL(os.environ["OPENMP"]).GOMP_parallel
    run(ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p), None, 4, 0)
    return len(os.listdir("/proc/self/task"))


def starts_native_threads(_: ChildOptions) -> list[HandlerInfo]:
    libc = ctypes.CDLL(None)
    for _number in range(2):
        libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
    return []


def meddles(_: ChildOptions) -> list[HandlerInfo]:
    """Handlers for signals, a helper forked at import that lives on, ignored deaths, a fixed seed."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: os._exit(66))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGALRM})
    random.seed(42)
    helper = os.fork()
    if helper == 0:
        while True:
            signal.pause()
    OPENED.append(helper)
    return []


def forks_fail_at_first(_: ChildOptions) -> list[HandlerInfo]:
    fork, left = os.fork, [1]

    def failing() -> int:
        if left:
            left.pop()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    os.fork = failing
    return []


def sleeps_at_the_third_fork(_: ChildOptions) -> list[HandlerInfo]:
    return _hangs_at_the_third_fork(lambda: time.sleep(600))


def hangs_in_c_at_the_third_fork(_: ChildOptions) -> list[HandlerInfo]:
    fork_server.FORK_LIMIT_S = 0.5
    return _hangs_at_the_third_fork(lambda: sum(range(10**12)))


def _hangs_at_the_third_fork(hang: Callable[[], object]) -> list[HandlerInfo]:
    server, left = os.getpid(), [1, 2]

    def hook() -> None:
        if os.getpid() != server:
            return
        if left:
            left.pop()
            return
        print("hanging", flush=True)
        hang()

    os.register_at_fork(before=hook)
    return []


def thirty_megabytes(_: ChildOptions) -> list[HandlerInfo]:
    OPENED.extend(f"{number:0100d}" for number in range(200_000))
    return []


# --- main functions ----------------------------------------------------------------------------------


def obey(boot: ChildBoot) -> int:
    """Do what the bodies of the frames say, each the name of a function below, and send back what came of it."""
    page = boot.page.child
    page.booting(os.getpid(), time.monotonic())
    packets.send(boot.channel, Ready().encode())
    page.idle(time.monotonic())
    while (got := packets.recv(boot.work)) is not None:
        _, nonce, *_ = RUN_HEAD.unpack_from(got[0])
        page.took(nonce, time.monotonic())
        word, *arguments = got[0][RUN_HEAD.size :].decode().split()
        output = json.dumps(globals()[word](boot, *arguments))
        packets.send(boot.channel, Result(nonce, ResultKind.SUCCEEDED, 0.0, 0.0, output).encode())
        page.finished(True, time.monotonic())
    return 0


def quiet(boot: ChildBoot) -> int:
    """Get ready and wait, with the heap looked through once: what an idle child costs."""
    gc.collect()
    return obey(boot)


def raises(_: ChildBoot) -> int:
    raise LookupError("a fault of the child's own")


def report(_: ChildBoot) -> Any:
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "parent": os.getppid(),
        "threads": threading.active_count(),
        "environ": dict(os.environ),
        "stdin": os.readlink("/proc/self/fd/0"),
        "random": random.random(),
        "preload": _.options.preload,
        "subreaper": _is_subreaper(),
    }


def _is_subreaper() -> bool:
    answer = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def descriptors(boot: ChildBoot) -> Any:
    known = {0, 1, 2, boot.work.fileno(), boot.channel.fileno(), boot.trace_fd, boot.output_fd}
    fds = {int(fd): _target(fd) for fd in os.listdir("/proc/self/fd")}
    return {fd: target for fd, target in fds.items() if fd not in known and target}


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the listing's own
        return ""


def opened(_: ChildBoot) -> Any:
    """What has become of the things that the app opened at its import."""
    first, _second, file, reopened = OPENED
    return {
        "socket": _failure(lambda: first.send(b"x")),
        "file": _failure(file.read),
        "reopened": len(reopened.read(3)),
    }


def _failure(action: Callable[[], Any]) -> str:
    try:
        action()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "worked"


def signals(_: ChildBoot) -> Any:
    changed = {number.name: str(signal.getsignal(number)) for number in signal.Signals}
    for number in signal.Signals:
        if signal.getsignal(number) == signal.SIG_DFL:
            del changed[number.name]
    return {"changed": changed, "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]}


def leave(_: ChildBoot, status: str) -> Any:
    os._exit(int(status))


def kill_myself(_: ChildBoot, number: str) -> Any:
    os.kill(os.getpid(), int(number))


def crash_in_c(_: ChildBoot) -> Any:
    ctypes.string_at(0)


def spin(_: ChildBoot) -> Any:
    return sum(range(10**12))


def become(_: ChildBoot, *command: str) -> Any:
    os.execvp(command[0], command)


def shout(_: ChildBoot) -> Any:
    os.write(1, b"to one\n")
    os.write(2, b"to two\n")
    print("by print")


def leave_grandchildren(_: ChildBoot) -> Any:
    """A plain one, one in a session of its own, one that has forked twice. Their pids."""
    plain_one = subprocess.Popen(["sleep", "600"])
    own_session = subprocess.Popen(["sleep", "600"], start_new_session=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            os.execvp("sleep", ["sleep", "600"])
        os.write(writing, str(daemon).encode())
        os._exit(0)
    os.wait()
    OPENED.extend([plain_one, own_session])
    return [plain_one.pid, own_session.pid, int(os.read(reading, 20))]


def leave_shared_memory(_: ChildBoot) -> Any:
    """Its name, and the pid of a process that calls itself a resource tracker, but never ends.

    Python's own is up when that is returned: it ignores SIGTERM, and will tidy up within a moment.
    """
    from multiprocessing import resource_tracker
    from multiprocessing.shared_memory import SharedMemory

    OPENED.append(SharedMemory(create=True, size=4096))
    status = Path(f"/proc/{resource_tracker._resource_tracker._pid}/status")  # type: ignore[attr-defined]
    while not int(status.read_text().partition("SigIgn:")[2].split()[0], 16) & 1 << signal.SIGTERM - 1:
        time.sleep(0.001)
    OPENED.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "resource_tracker"]))
    return [OPENED[-2].name, OPENED[-1].pid]


def leave_chain_of_trackers(_: ChildBoot) -> Any:
    """Each calls itself a resource tracker, and is forked by the one before, which ends."""
    chain = "import os, time\nwhile True:\n    time.sleep(0.2)\n    os.fork() and os._exit(0)"
    OPENED.append(subprocess.Popen([sys.executable, "-c", chain, "resource_tracker"]))
    return None


def start_pythons_fork_server(_: ChildBoot) -> Any:
    """Return the pid of it."""
    from multiprocessing import forkserver

    forkserver.ensure_running()
    return vars(forkserver)["_forkserver"]._forkserver_pid


def attach_memory(_: ChildBoot) -> Any:
    """The name of the app's shared memory."""
    from multiprocessing.shared_memory import SharedMemory

    SharedMemory(OPENED[0].name).close()
    return OPENED[0].name


def helper(_: ChildBoot) -> Any:
    return OPENED[0]


def compute_in_parallel(_: ChildBoot) -> Any:
    return _in_parallel()
