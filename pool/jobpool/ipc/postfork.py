"""The first moments of a child: from the fork to its main function, and out again without ever going back.

The order matters. An after-fork hook, registered before the app was imported, sheds descriptors first (inheritance.py).
The app's own hooks come later, so what they open anew is kept. Then comes the process group, so that a kill of the
group finds it, and the signal at the parent's death. Signals, streams, the fault handler and random states follow.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from socket import AF_UNIX, SOCK_SEQPACKET, socket  # by name: an app's `monkey_patch` replaces it in the module
from typing import NoReturn

from jobpool.ipc import linux
from jobpool.ipc.frames import Spawn
from jobpool.ipc.inheritance import Inheritance, flush, writers
from jobpool.ipc.process_options import ASKS_STACK, ChildBoot, ChildOptions
from jobpool.ipc.scoreboard import ChildPage
from jobpool.message.death import BROKEN

VICTIM_POINTS = 300
ChildMain = Callable[[ChildBoot], int]


def live(run: Callable[[], int]) -> NoReturn:
    """Be the child: exit with what `run` returns, which settles in and calls the child's main function."""
    status = BROKEN
    try:
        returned = run()
        status = returned if isinstance(returned, int) else BROKEN
    except BaseException:  # noqa: BLE001 - whatever it is, it must not get into the fork server's stack
        traceback.print_exc()
    finally:
        try:
            flush_streams()
            flush(writers())  # of files that handlers opened: there are no exit handlers
        finally:
            os._exit(status & 0xFF)


def flush_streams() -> None:
    """Write out what print() has buffered; a stream that is closed, replaced or gone is fine."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def settle_in(
    spawn: Spawn,
    fds: Sequence[int],
    page: ChildPage,
    options: ChildOptions,
    server_pid: int,
    inheritance: Inheritance,
) -> ChildBoot:
    """Make a forked process a child, and return what its main function gets. `fds`: work, channel, trace, output."""
    work, channel, trace, output = fds
    with contextlib.suppress(PermissionError):  # the fork server did it first, or the child leads a session
        os.setpgid(0, 0)
    linux.die_with_parent(server_pid)
    linux.become_subreaper()
    linux.prefer_as_victim(VICTIM_POINTS)
    reset_signals({ASKS_STACK})
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(file=trace, all_threads=True)
    faulthandler.register(ASKS_STACK, file=trace, all_threads=True, chain=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ASKS_STACK})
    for name in ("random", "numpy.random"):  # `random.Random` objects and numpy generators of the app stay shared
        if module := sys.modules.get(name):
            module.seed()
    return ChildBoot(
        slot=spawn.slot,
        child=spawn.child,
        work=socket(AF_UNIX, SOCK_SEQPACKET, 0, fileno=work),
        channel=socket(AF_UNIX, SOCK_SEQPACKET, 0, fileno=channel),
        page=page,
        trace_fd=trace,
        output_fd=output,
        options=options,
        inheritance=inheritance,
    )


def reset_signals(blocked: Iterable[signal.Signals] = ()) -> None:
    """Let every signal do what it does to a plain program: one that a stranger sends to a child ends it, as a crash.

    Signals that Python itself ignores stay ignored; those that are to stay blocked wait.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - linux.PYTHON_IGNORES:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
