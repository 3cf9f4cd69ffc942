"""The thread on which the SDK runs: one event loop, started by the first call, and never inherited by a fork.

A forked child has the memory of the parent's loop and connections, but not its thread. It must neither use nor close
them, for the sockets are the parent's as well; so it leaves them alone, for good, and starts anew.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from jobpool.errors import BackendUnavailable

T = TypeVar("T")

LOOP_THREAD_NAME = "jobpool-servicebus"
"""The thread's name."""

_INHERITED: list[object] = []
"""Objects that came over a fork: kept, so that nothing of them is ever closed by being forgotten."""

_STOP_LIMIT_S = 5.0
"""Seconds that the thread may take to end."""


class LoopThread:
    """A thread that runs coroutines on one event loop, for callers on any thread.

    Args:
        name: Purpose of the loop, for error texts.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def inherited(self) -> bool:
        """True if this was made by a process that this one was forked from."""
        return self._pid != os.getpid()

    def run(self, work: Coroutine[Any, Any, T], limit: float) -> T:
        """Do it on the loop, and wait for it, `limit` seconds at most.

        Raises:
            BackendUnavailable: It is not done by then and was cancelled, or the thread was stopped.
            Whatever it raises.
        """
        try:
            loop = self._running()
        except BackendUnavailable:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(limit)
        except concurrent.futures.CancelledError:
            raise BackendUnavailable(f"{self._name}: this backend was closed meanwhile") from None
        except concurrent.futures.TimeoutError:  # ours, or one of the work's own
            raise BackendUnavailable(f"{self._name} did not answer within {limit:g} s") from None
        finally:
            future.cancel()  # does nothing to a finished one

    def stop(self) -> None:
        """End the thread. Nothing when there is none. Blocks for 5 seconds at most."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self.inherited:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_LIMIT_S)

    def leave_behind(self, *what: object) -> None:
        """Keep what a fork brought along out of the way, and begin anew."""
        _INHERITED.append((self._loop, self._thread, self._lock, *what))
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise BackendUnavailable(f"{self._name}: this backend was closed: open another")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name=LOOP_THREAD_NAME, daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        _end_tasks(loop)
        loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
