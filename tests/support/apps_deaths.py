"""An app whose handlers end abnormally, each in its own way, after a word to both outputs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import jobpool

LONG = 600


def say(ctx: jobpool.JobContext) -> None:
    """Through `sys.stdout`, and past it."""
    print(f"printed in delivery {ctx.fence}")
    os.write(2, b"written to descriptor 2\n")


def segfault() -> None:
    ctypes.string_at(0)


def exit_at_once() -> None:
    os._exit(3)


def loop_in_c() -> None:
    sum(range(10**11))


def sleep() -> None:
    time.sleep(LONG)


def grow() -> None:
    held = bytearray(300 << 20)
    for page in range(0, len(held), 4096):
        held[page] = 1
    time.sleep(LONG)


def die_of_the_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sleep()


def become_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", str(LONG)])


_WAYS = segfault, exit_at_once, loop_in_c, sleep, grow, die_of_the_alarm, become_another_program, os.abort
WAYS = {way.__name__: way for way in _WAYS}


@jobpool.handler
def end(ctx: jobpool.JobContext, how: str) -> None:
    """`how`: one of `WAYS`."""
    say(ctx)
    WAYS[how]()


@jobpool.handler
def note_payload(ctx: jobpool.JobContext, **payload: Any) -> None:
    """For copies of failed payloads: leaves what it got beside the queue."""
    with open(f"got-{ctx.id}", "w") as file:
        print(ctx.queue, payload, file=file)


@jobpool.handler
def outgrow(ctx: jobpool.JobContext, mebibytes: int) -> int:
    """Takes that much memory for as long as a sample needs to see it, then succeeds."""
    with open("runs", "a") as file:
        file.write(f"{ctx.queue} {ctx.fence} {ctx.attempt} {ctx.crashes} {ctx.meta.get('customer')}\n")
    held = bytearray(mebibytes << 20)
    for page in range(0, len(held), 4096):
        held[page] = 1
    time.sleep(2.5)
    return len(held)


@jobpool.handler
def crash_in(ctx: jobpool.JobContext, queue: str) -> None:
    """Crashes in that queue, and succeeds in another."""
    with open("runs", "a") as file:
        file.write(f"{ctx.queue} {ctx.fence} {ctx.attempt} {ctx.crashes} {ctx.meta.get('customer')}\n")
    if ctx.queue == queue:
        segfault()
    sys.stdout.flush()
