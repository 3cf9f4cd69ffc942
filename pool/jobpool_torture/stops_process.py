"""The process of `jobpool_torture.processes.Stops`: it outlives its parent, and continues what that one has stopped.

It is sent a pidfd of each process before that is stopped. When its parent is gone, it continues all of them. They see
that their owner is gone, and end in their own way, sweeping their own processes. Processes that have not ended some
seconds later are killed. Standard library only: it is started as a script.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress


def keep(owner: socket.socket) -> list[int]:
    """Take in pidfds until the owner is gone; those of processes that are alive."""
    held: list[int] = []
    while True:
        word, fresh, *_ = socket.recv_fds(owner, 1, 1)
        held = alive([*held, *fresh])
        if not word:
            return held


def alive(pidfds: list[int], limit: float = 0.0) -> list[int]:
    """Return the pidfds whose processes live; close the others. Blocks for up to `limit` seconds until one ends."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in poll.poll(limit * 1000)}
    for pidfd in ended:
        os.close(pidfd)
    return [pidfd for pidfd in pidfds if pidfd not in ended]


def send(pidfds: list[int], number: signal.Signals) -> None:
    for pidfd in pidfds:
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, number)


def main(control: int, patience: float) -> None:
    """Serve until its starter is gone, and some seconds more at most."""
    with socket.socket(fileno=control) as owner:
        held = keep(owner)
    send(held, signal.SIGCONT)
    give_up = time.monotonic() + patience
    while held and (left := give_up - time.monotonic()) > 0:
        held = alive(held, left)
    send(held, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
