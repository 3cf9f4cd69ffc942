"""An event loop for `async def` handlers, kept from one attempt to the next, one a thread.

The alarm may raise in any task, and the task keeps that error. So when it fires, the loop is stopped as well (`stop`,
called from the signal handler), and nothing waits for a task that swallowed it.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class _Keeper(threading.local):
    loop: asyncio.AbstractEventLoop | None = None


_kept = _Keeper()


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return or raise the coroutine's result. Tasks that it leaves behind are cancelled, and awaited.

    Raises:
        RuntimeError: This thread runs another event loop.
    """
    import asyncio  # a child whose handlers are plain functions never pays for it

    loop = _kept.loop
    if loop is None or loop.is_closed():
        loop = _kept.loop = asyncio.new_event_loop()
    threads = threading.active_count()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        coroutine.close()  # does nothing, unless the loop refused to run it
        _cancel_what_is_left(loop)
        if threading.active_count() > threads:
            close()  # `asyncio.to_thread` leaves threads, which only the end of the loop's executor ends


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


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    if loop.is_running():  # somebody's own loop, in which the coroutine could not run
        return
    tasks = asyncio.all_tasks(loop)
    if tasks:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
