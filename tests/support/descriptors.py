"""A process that has run out of descriptors: every new one is refused with EMFILE, those that are open go on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_more_descriptors(pid: int = 0) -> Iterator[None]:
    """Refuse every new descriptor to that process, or to this one."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # what is closed meanwhile is not to be had again
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
