"""Where the threads leave events: nothing is lost, and no wake-up either."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import threading
import time
from contextlib import closing

import pytest

from jobpool.master.events import SignalCame
from jobpool.master.inbox import FD_SETSIZE, Inbox

WRITERS = 4
EACH = 20_000


def test_no_event_and_no_wake_up_is_lost_between_threads() -> None:
    inbox = Inbox()
    poll = select.epoll()
    poll.register(inbox.fd, select.EPOLLIN)
    writers = [threading.Thread(target=_write, args=(inbox,)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    taken = 0
    while taken < WRITERS * EACH:
        assert poll.poll(5.0), f"asleep with {WRITERS * EACH - taken} events still to come"
        taken += len(inbox.take())
    for writer in writers:
        writer.join()
    poll.close()
    inbox.close()
    assert taken == WRITERS * EACH


def _write(inbox: Inbox) -> None:
    for number in range(EACH):
        inbox.put(SignalCame(number))


def test_a_thread_that_comes_after_the_end_writes_to_no_descriptor() -> None:
    """Its number may be another file's by then."""
    here, there = socket.socketpair()
    inbox = Inbox()
    inbox.close()
    with here, there:
        os.dup2(there.fileno(), inbox.fd)
        inbox.put(SignalCame(7))
        os.close(inbox.fd)
        assert select.select([here], [], [], 0.0)[0] == []


@pytest.mark.parametrize("many_files", [False, True])
def test_a_wait_ends_with_an_event_or_its_time(many_files: bool) -> None:
    event = SignalCame(7)
    with closing(Inbox()) as inbox:
        if many_files:
            low, inbox.fd = inbox.fd, a_large_copy(inbox.fd)
            os.close(low)
        begun = time.monotonic()
        inbox.wait(0.001)
        assert time.monotonic() - begun >= 0.001
        assert inbox.take() == []
        writer = threading.Timer(0.01, inbox.put, [event])
        writer.start()
        inbox.wait(600.0)
        assert inbox.take() == [event]
        writer.join()


def a_large_copy(fd: int) -> int:
    """As in a program with many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FD_SETSIZE + 1), hard))
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_SETSIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
