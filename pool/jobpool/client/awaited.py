"""Await the ends of jobs, for any number of tasks of an event loop, on a few threads: brokers' drivers block."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TypeVar

from jobpool.broker import tracking
from jobpool.broker.backend import QueueBackend

T = TypeVar("T")

MAX_LOOKS = 8  # at a time, which do not wait
MAX_WAITING_CALLS = 32
MAX_REPEATED_CALLS = 16  # the others are for tasks that begin to wait
WAIT_SLICE_S = 0.5  # seconds of one such call


class _Wait:
    """One task's wait for the ends of jobs. `left`: their ids; `over`: done when none is left."""

    def __init__(self, idents: Iterable[str]) -> None:
        self.left = set(idents)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Waits:
    """The waits of one event loop for jobs of one backend.

    A call on a thread waits until one of its jobs has ended, for a slice at most. It takes all waits that no other call
    has. So while few tasks wait, each has a call of its own, and of many some may be noticed a slice late.
    """

    def __init__(self, backend: Callable[[], QueueBackend]) -> None:
        self._backend = backend
        self._untaken: list[_Wait] = []
        self._calls: set[asyncio.Future[set[str]]] = set()
        self._tasks = 0

    @staticmethod
    async def look(call: Callable[[], T]) -> T:
        """Return what a call returns that does not wait, made on a thread of its own kind: it holds up no enqueue."""
        return await asyncio.get_running_loop().run_in_executor(_threads("look", MAX_LOOKS), call)

    async def until_ended(self, idents: Iterable[str], give_up: float) -> None:
        """Wait until these jobs have ended, or until `give_up`, on CLOCK_MONOTONIC. Raises as `QueueBackend.wait`."""
        wait = _Wait(idents)
        self._untaken.append(wait)
        self._tasks += 1
        try:
            self._call(MAX_WAITING_CALLS)
            timeout = None if give_up == float("inf") else give_up - time.monotonic()
            await asyncio.wait([wait.over], timeout=timeout)
            if wait.over.done():
                wait.over.result()
        finally:
            if not wait.over.cancel():
                wait.over.exception()  # else asyncio logs one that a cancelled task did not fetch
            self._tasks -= 1
            if not self._tasks:
                self._drop_all()

    def _call(self, limit: int) -> None:
        """Begin a call for all waits that none has, if fewer than `limit` are under way."""
        if len(self._calls) >= limit:
            return
        taken = [wait for wait in self._untaken if not wait.over.done()]
        self._untaken.clear()
        if taken:
            idents = list(set[str]().union(*(wait.left for wait in taken)))
            call = asyncio.get_running_loop().run_in_executor(
                _threads("wait", MAX_WAITING_CALLS), _ended, self._backend, idents
            )
            self._calls.add(call)
            call.add_done_callback(partial(self._end, taken))

    def _end(self, taken: list[_Wait], call: asyncio.Future[set[str]]) -> None:
        if call.cancelled():
            return
        self._calls.discard(call)
        error = call.exception()
        for wait in taken:
            if wait.over.done():
                continue
            if error is not None:
                wait.over.set_exception(error)
                continue
            wait.left -= call.result()
            if wait.left:
                self._untaken.append(wait)
            else:
                wait.over.set_result(None)
        self._call(MAX_REPEATED_CALLS)

    def _drop_all(self) -> None:
        """Forget all calls: no task waits for them, and the loop may be closed before their threads are done."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()
        self._untaken.clear()


def _ended(backend: Callable[[], QueueBackend], idents: list[str]) -> set[str]:
    """Return those of these jobs that have ended, as soon as one has; none after a slice."""
    found = tracking.wait(backend(), idents, WAIT_SLICE_S, first=True)
    return {status.id for status in found if status.has_ended}


@cache
def _threads(name: str, most: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(most, f"jobpool-{name}")


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_threads.cache_clear)
