"""An event loop for `async def` handlers, one a thread, kept from one attempt to the next.

A new loop costs 100 microseconds, and an app's open connections belong to the old one. So the loop is kept, cleared of
tasks, timers, callbacks and settings, unless the attempt has used the loop's own threads.

The alarm may raise in any task, and the task keeps that error. So when it fires, the loop is stopped as well (`stop`,
called from the signal handler), and nothing waits for a task that swallowed it.
"""

from __future__ import annotations

import atexit
import threading
from types import CoroutineType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


_BUSY = (
    "an `async def` handler cannot run in a thread with a running event loop. Run the jobs in another thread: in a test"
    " with `await asyncio.to_thread(pool.run_all)`, on sync:// with `aenqueue`"
)


class _Closer:
    """A holder of a loop that closes it when the thread that keeps it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __del__(self) -> None:
        if not self.loop.is_running():
            self.loop.close()


class _Keeper(threading.local):
    loop: asyncio.AbstractEventLoop | None = None
    closer: _Closer | None = None


_kept = _Keeper()


def awaited(value: Any) -> Any:
    """Return the value; of an awaitable, its result, or raise its error. Cancel what it leaves in the loop.

    Raises `RuntimeError`: this thread runs another event loop.
    """
    if value is None or not hasattr(type(value), "__await__"):  # not only coroutines: those of Cython are a type apart
        return value
    import asyncio  # a child whose handlers are plain functions never pays for it

    loop = _kept.loop
    if loop is None or loop.is_closed():
        loop = _kept.loop = asyncio.new_event_loop()
        _kept.closer = _Closer(loop)
    threads, debug = threading.active_count(), loop.get_debug()
    try:
        return loop.run_until_complete(value)
    except RuntimeError:
        if asyncio._get_running_loop() is None:
            raise
        raise RuntimeError(_BUSY) from None
    finally:
        if type(value) is CoroutineType:
            value.close()  # does nothing, unless the loop refused to run it
        if not loop.is_running():  # else somebody's own loop, in which the coroutine could not run
            loop.set_task_factory(None)
            loop.set_exception_handler(None)
            loop.set_debug(debug)
            _cancel_all(loop)
            # Threads of `asyncio.to_thread` end with the loop's executor only, and one that is shut down stays so.
            spoilt = getattr(loop, "_default_executor", None) or getattr(loop, "_executor_shutdown_called", False)
            if spoilt or threading.active_count() > threads:
                close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel tasks, timers and callbacks, which would go on in the next attempt. Runs the loop until tasks end."""
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    for handle in (*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())):
        handle.cancel()


def stop() -> None:
    """End the loop of this thread after the step it is in, if it runs. Made for signal handlers."""
    loop = _kept.loop
    if loop is not None and loop.is_running():
        loop.stop()


def close() -> None:
    """Close the loop of this thread and end its executor's threads; the next coroutine gets a new loop.

    Blocks until what the executor is doing is done.
    """
    loop, _kept.loop = _kept.loop, None
    if loop is None or loop.is_closed() or loop.is_running():
        return
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


atexit.register(close)  # of the main thread, while asyncio can still do it
