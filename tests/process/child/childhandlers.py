"""The app of the process tests: handlers that behave, and handlers that do not."""

# ruff: noqa: ARG001 - a handler takes its context, whether it looks at it or not
from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import jobpool.message.producer
from jobpool.handlers.registry import handler
from jobpool.ipc.packets import INLINE_BYTES
from jobpool.message.context import JobContext
from jobpool.message.definition import JobDefinition

LONG = 60.0
STARTED_IN = os.getcwd()


@dataclass
class Order:
    customer: int
    month: str = "2026-06"


@handler
def noop(ctx: JobContext) -> None:
    pass


@handler
def tell(ctx: JobContext) -> dict[str, Any]:
    return {"attempt": ctx.attempt, "fence": ctx.fence, "crashes": ctx.crashes, "queue": ctx.queue, "id": ctx.id}


@handler
def sum_up(ctx: JobContext, order: Order) -> str:
    print("adding")
    return f"{order.customer} {order.month}"


class Markup(str):
    """Text of a class of its own, as template engines return it."""


@handler
def render(ctx: JobContext) -> str:
    return Markup("<p>")


@handler
def flood(ctx: JobContext, megabytes: int) -> None:
    chunk = "x" * (1 << 20)
    for _ in range(megabytes):
        sys.stdout.write(chunk)
    print("the end", flush=True)


@handler
def print_everywhere(ctx: JobContext) -> str:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.stdout.buffer.write(b"bytes\n")
    os.write(1, b"to descriptor 1\n")
    os.write(2, b"to descriptor 2\n")
    subprocess.run(["echo", "from a subprocess"], check=True)
    return "returned"


@handler
def print_through_c(ctx: JobContext) -> None:
    ctypes.CDLL(None).puts(b"from C")


@handler
def steal_streams(ctx: JobContext) -> None:
    sys.stdout.close()
    sys.stdout = None
    del sys.stderr


@handler
def hoard_descriptors(ctx: JobContext) -> str:
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)
    return "x" * 2 * INLINE_BYTES


@handler
def lose_environment(ctx: JobContext) -> str:
    del os.environ
    return "done"


# --- failing ---------------------------------------------------------------------------------------


@handler
def fail(ctx: JobContext) -> None:
    print("before the error")
    raise ValueError("no such customer")


SUSPECT = {
    "memory": MemoryError(),
    "recursion": RecursionError(),
    "descriptors": OSError(errno.EMFILE, "Too many open files"),
    "rights": PermissionError(errno.EPERM, "Operation not permitted"),
    "import": ImportError("no such module", name="json.decoder"),
}
PLAIN = {
    "value": ValueError("no such customer"),
    "file": FileNotFoundError(errno.ENOENT, "No such file"),
    "access": PermissionError(errno.EACCES, "Permission denied"),
    "connection": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "module": ModuleNotFoundError("no such module", name="vendors_module"),
}


@handler
def fail_by(ctx: JobContext, name: str) -> None:
    try:
        raise (SUSPECT | PLAIN)[name]
    except Exception as error:
        raise RuntimeError("wrapped") from error


@handler
def leave(ctx: JobContext, code: int) -> None:
    sys.exit(code)


@handler
def fail_untellably(ctx: JobContext) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    raise Mute


@handler
def fail_with_endless_words(ctx: JobContext) -> None:
    class Endless(Exception):
        def __str__(self) -> str:
            time.sleep(LONG)
            return ""

    raise Endless


# --- async -----------------------------------------------------------------------------------------


@handler
async def use_a_thread(ctx: JobContext) -> int:
    return await asyncio.to_thread(lambda: 42)


# --- what the alarm must interrupt -----------------------------------------------------------------


@handler
def hang_sleep(ctx: JobContext) -> None:
    time.sleep(LONG)


@handler
def hang_except_exception(ctx: JobContext) -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


@handler
def hang_swallow_once(ctx: JobContext) -> None:
    with contextlib.suppress(BaseException):
        time.sleep(LONG)
    time.sleep(LONG)


@handler
def hang_in_finally(ctx: JobContext) -> None:
    try:
        time.sleep(LONG)
    finally:
        time.sleep(0.05)
        print("cleaned up")


@handler
async def hang_async(ctx: JobContext) -> None:
    await asyncio.sleep(LONG)


@handler
async def hang_async_swallow(ctx: JobContext) -> None:
    while True:
        with contextlib.suppress(Exception):
            await asyncio.sleep(0.01)


@handler
async def hang_async_side_task(ctx: JobContext) -> None:
    async def busy() -> None:
        while True:
            time.sleep(0.05)
            await asyncio.sleep(0)

    task = asyncio.create_task(busy())
    await asyncio.sleep(LONG)
    task.cancel()


@handler
def hang_in_repr(ctx: JobContext) -> object:
    class Slow:
        def __repr__(self) -> str:
            time.sleep(LONG)
            return ""

    return Slow()


@handler(before_run=lambda _: time.sleep(LONG))
def hang_before(ctx: JobContext) -> None:
    pass


@handler(after_run=lambda _: time.sleep(LONG))
def hang_after(ctx: JobContext) -> None:
    pass


# --- what only a kill ends; `seconds` bounds it, so that a handler may also return late --------------


def _disarm(how: str) -> None:
    if how == "clear":
        signal.setitimer(signal.ITIMER_REAL, 0)
    elif how == "replace":
        signal.signal(signal.SIGALRM, lambda *_: None)
    elif how == "mask":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    elif how == "ignore":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    elif how == "replace in C":
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(int(signal.SIGALRM), 1)  # SIG_IGN


@handler
def disarm(ctx: JobContext, how: str, seconds: float = 0.0) -> None:
    _disarm(how)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


@handler
def resist(ctx: JobContext, seconds: float) -> None:
    end = time.monotonic() + seconds
    with contextlib.suppress(BaseException):  # of an alarm between two sleeps
        _sleep_until(end)
    _sleep_until(end)


def _sleep_until(end: float) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


@handler
def loop_in_c(ctx: JobContext, count: int) -> int:
    return sum(range(count))


# --- what ends or wears a child --------------------------------------------------------------------


@handler
def fork_and_exit(ctx: JobContext) -> list[int]:
    statuses = []
    for code in (0, None, 3, -1, "no such customer"):
        if not (pid := os.fork()):
            sys.exit(code)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return statuses


@handler
def close_everything(ctx: JobContext) -> None:
    os.closerange(0, 1000)


@handler
def swap_sockets(ctx: JobContext) -> None:
    """Put other sockets where ours were: every number stays taken."""
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2):
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_mode & 0o170000 == 0o140000:
                left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                os.dup2(left.fileno(), fd)
                left.close()
                right.detach()


@handler
def leak_descriptors(ctx: JobContext, count: int) -> None:
    for _ in range(count):
        os.dup(2)


def leak_threads(ctx: JobContext, seconds: float = 60.0, daemon: bool = True, count: int = 1) -> None:
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(seconds,), daemon=daemon).start()


handler(leak_threads)
handler("leak_allowed_threads", allow_daemons=True)(leak_threads)


@handler
def leak_busy_thread(ctx: JobContext) -> None:
    def compute() -> None:
        while True:
            pass

    threading.Thread(target=compute, name="busy", daemon=True).start()


@handler
def leave_process(ctx: JobContext) -> int:
    """Leave `sleep 600` behind; its pid."""
    return subprocess.Popen(["sleep", "600"]).pid


@handler
def leave_shared_memory(ctx: JobContext) -> str:
    """Leave a resource tracker behind, which Python starts for it; its name."""
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=4096)
    memory.close()
    return memory.name


@handler
def leave_ended_process(ctx: JobContext) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@handler(allow_daemons=True)
def leave_daemon(ctx: JobContext) -> int:
    return subprocess.Popen(["sleep", "600"]).pid


@handler
def grow(ctx: JobContext, megabytes: int) -> None:
    _kept.append(bytearray(megabytes << 20))


_kept: list[bytearray] = []


@handler
def disturb(ctx: JobContext) -> None:
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])


@handler
def look_around(ctx: JobContext) -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "home": os.getcwd() == STARTED_IN,
        "umask": umask != 0o777,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }


# --- talking to the master -------------------------------------------------------------------------


@handler
def enqueue_at_once(ctx: JobContext) -> list[str]:
    return jobpool.message.producer.default().enqueue_many([JobDefinition("noop"), JobDefinition("tell")])
