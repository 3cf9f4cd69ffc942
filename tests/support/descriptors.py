"""The descriptors of a process: how many are open, and a process that has run out of them."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def open_descriptors() -> int:
    """How many this process has open, without those of objects that an earlier test left in a cycle.

    Compare with `<=`: what other tests left to a thread may be closed at any time.
    """
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def no_more_descriptors(pid: int = 0) -> Iterator[None]:
    """Refuse every new descriptor to that process, or to this one, with EMFILE; those that are open go on."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # what is closed meanwhile is not to be had again
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextmanager
def few_descriptors(more: int = 0) -> Iterator[None]:
    """Let this process open so many `more` files, and others only in place of those that it closes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(more + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
