"""Processes of their own for crowds, forked from a small server that has imported the backends already.

With `spawn` each of them would import the clients of all brokers: 0.8 s of a processor, which is more than most of
their work.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_BACKENDS = ("beanstalk", "memory", "postgres", "redis", "servicebus", "sqlite")
_IMPORTED = ["pytest", *(f"jobpool_backends.{name}" for name in _BACKENDS)]


def context() -> ForkServerContext:
    """Return what starts such processes. The server has no thread, no connection and nothing of a test."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_IMPORTED)
    return made
