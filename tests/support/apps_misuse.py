"""The app of tests of faults whose handlers break what a child needs: its frames, its output, its memory.

Beside `apps_pool`, and with its handlers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import orjson
from apps_pool import HELD, LONG, note, rubbish_to_all
from msgspec import Raw

import jobpool
from jobpool.ipc import packets
from jobpool.ipc.frames import Ask, Result, plain_success
from jobpool.ipc.linux import resident_memory
from jobpool.message import producer
from jobpool.message.outcome import ResultKind


def sockets() -> Iterator[socket.socket]:
    """Those that lead to the master, as a handler finds them that looks for them; it owns none of them."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=fd)
            if sock.type == socket.SOCK_SEQPACKET:
                sock.setblocking(False)
                yield sock
            sock.detach()


def genuine() -> bytes:
    """A result that says success, of an attempt with a low number."""
    return Result(1, ResultKind.SUCCEEDED, time.monotonic(), 0.0, output="x" * 1000).encode()


FRAMES: dict[str, Callable[[], bytes]] = {
    "half": lambda: genuine()[: len(genuine()) // 2],
    "announced": lambda: b"\xfe",
    "of another attempt": genuine,
    "not a frame": lambda: os.urandom(20_000),
}


@jobpool.handler
def break_frame(ctx: jobpool.JobContext, how: str) -> None:
    """In its first delivery it writes such a frame to the master, and dies before there is more of it."""
    note(ctx, "start")
    if ctx.fence == 1:
        for sock in sockets():
            with contextlib.suppress(OSError):
                sock.send(FRAMES[how]())
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG)
    note(ctx, "end")


@jobpool.handler
def write_everywhere(ctx: jobpool.JobContext) -> None:
    """In its first delivery it writes rubbish to every descriptor that takes it, and stays."""
    note(ctx, "start")
    if ctx.fence == 1:
        rubbish_to_all()
        time.sleep(LONG)
    note(ctx, "end")


@jobpool.handler
def flood_questions(ctx: jobpool.JobContext, until: str) -> None:
    """Asks the master as fast as its socket takes it, and reads the answers, until there is a file of that path.

    Each question costs the master some 10 ms: many jobs, of which the last is not valid, so that none is enqueued.
    """
    note(ctx, "start")
    question = Ask(Raw(orjson.dumps([{"handler": "work"}] * 1500 + [{}]))).encode()
    sock = producer.default()._channel  # type: ignore[attr-defined]
    owed = 0
    while owed or not os.path.exists(until):
        if not os.path.exists(until):
            with contextlib.suppress(BlockingIOError):
                sock.send(question, socket.MSG_DONTWAIT)
                owed += 1
                continue
        with contextlib.suppress(BlockingIOError):
            while packets.recv(sock, flags=socket.MSG_DONTWAIT):
                owed -= 1
        time.sleep(0.001)
    note(ctx, "end")


@jobpool.handler
def follow_up_much(ctx: jobpool.JobContext, kibibytes: int, count: int) -> None:
    """Enqueues so many jobs with so much in each."""
    note(ctx, "start")
    for _ in range(count):
        ident = ctx.enqueue("noop", {"much": "x" * (kibibytes << 10)})
        note(ctx, "follow", tag=ident)
    note(ctx, "end")


@jobpool.handler
def answer_for_others(ctx: jobpool.JobContext) -> None:
    """Answers for itself and for the next jobs, as if attempts had numbers in a row; then it dies."""
    note(ctx, "start")
    note(ctx, "end")
    frame: FrameType | None = sys._getframe()
    while frame is not None and "nonce" not in frame.f_locals:
        frame = frame.f_back
    assert frame is not None
    nonce = frame.f_locals["nonce"]
    for guess in range(nonce, nonce + 50):
        producer.default()._channel.send(plain_success(guess, time.monotonic(), 0.0))  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGKILL)


@jobpool.handler
def scribble(ctx: jobpool.JobContext) -> None:
    """Writes over all memory that it shares with other processes, as a stray pointer may: each line is a pattern's."""
    note(ctx, "start")
    with open("/proc/self/maps") as maps:
        shared = [line.split("-")[:2] for line in maps if " rw-s " in line]
    areas = [(int(first, 16), int(end.split()[0], 16)) for first, end in shared]
    for pattern in (b"\xff" * 8, struct.pack("=d", math.nan), b"\xfe\xff\xff\xff\xff\xff\xff\x7f", os.urandom(8)):
        for first, end in areas:
            ctypes.memmove(first, pattern * ((end - first) // 8), end - first)
        note(ctx, "effect", tag=str(sum(end - first for first, end in areas)))
        time.sleep(0.3)  # the master looks at what it shares about as often
    note(ctx, "end")


def peak_memory() -> int:
    """Bytes of resident memory at the most."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@jobpool.handler
def flood(ctx: jobpool.JobContext, mebibytes: int, then: str = "") -> None:
    """Prints so much: a quarter each by print, to stderr, to the raw descriptor and by a subprocess.

    The tag of its last line: the highest resident size that its process had meanwhile, in bytes. `then`: `fail`.
    """
    note(ctx, "start")
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # what the process had at its highest counts anew
    line = "x" * 1023
    for _ in range(mebibytes << 8):
        print(line)
        print(line, file=sys.stderr)
    block = (line + "\n").encode() * 1024
    for _ in range(mebibytes >> 2):
        os.write(2, block)
    subprocess.run(["head", "-c", str(mebibytes << 18), "/dev/zero"], check=True)
    note(ctx, "fail" if then else "end", tag=str(peak_memory()))
    if then:
        raise ValueError("all that is printed, and nothing is said")


@jobpool.handler
def print_raw(ctx: jobpool.JobContext, mebibytes: int) -> None:
    """Prints so much by a subprocess, more by C code that holds the interpreter's lock, fills its trace file, waits.

    A line `effect`: the bytes of memory that its output and its trace file hold then.
    """
    note(ctx, "start")
    subprocess.run(["head", "-c", str(mebibytes << 20), "/dev/zero"], check=True)
    held = os.fstat(1).st_blocks * 512
    block = b"x" * (4 << 20)
    assert ctypes.PyDLL(None).write(1, block, len(block)) == len(block)
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "trace" in os.readlink(f"/proc/self/fd/{fd}"):
                with contextlib.suppress(PermissionError):
                    for _ in range(mebibytes):
                        os.write(int(fd), b"x" * (1 << 20))
                held += os.fstat(int(fd)).st_blocks * 512
    os.write(1, b"the last words")
    note(ctx, "effect", tag=str(held + os.fstat(1).st_blocks * 512))
    time.sleep(LONG)


@jobpool.handler
def outgrow(ctx: jobpool.JobContext, mebibytes: int) -> None:
    """Takes that much memory, 10 MiB at a time, and keeps it: a line `effect` each time, with its size in MiB by then.

    And another, `all`, when all of it is there.
    """
    note(ctx, "start")
    for _ in range(0, mebibytes, 10):
        HELD.append(bytearray(10 << 20))
        note(ctx, "effect", tag=str(resident_memory() >> 20))
    note(ctx, "effect", tag="all")
    time.sleep(LONG)
