"""The process's default producer: where `handler.enqueue()` and `builder.dispatch()` send what names no backend.

That is `jobpool.Jobs`, opened at the first use by the factory; in a child it is the channel to the master. The
asynchronous calls of all producers go through `on_thread`, because brokers' drivers block.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from jobpool.clock import Clock, SystemClock
from jobpool.message.definition import JobDefinition

if TYPE_CHECKING:
    import asyncio

    from jobpool.message.batches import BatchCall, BatchStatus

T = TypeVar("T")

MAX_AWAITED_CALLS = 4
"""At a time, of one event loop: no more than any backend keeps connections for, and fewer than asyncio has threads."""


class Enqueues(Protocol):
    """A taker of one job at a time, that returns its id and blocks for one round trip."""

    def enqueue(self, definition: JobDefinition, /) -> str: ...


class Producer(Enqueues, Protocol):
    """A taker of jobs: `jobpool.Jobs`, any `QueueBackend`, or a child's channel to its master."""

    def enqueue_many(self, definitions: Iterable[JobDefinition], /) -> list[str]:
        """Enqueue jobs, all or none; their ids, in order. Blocks for one round trip."""


class Target(Producer, Protocol):
    """A producer that knows batches: a `QueueBackend`, or a child's channel to its master."""

    def call_batch(self, call: BatchCall, jobs: Sequence[JobDefinition] = ()) -> BatchStatus | None:
        """Carry out a call about a batch. See `QueueBackend.call_batch`."""


class Process:
    """The producers of this process, and their clock.

    Attributes:
        producer: The default one; None = the factory is asked for it at the next use.
        chosen: The one that `set_default` was given; None = none.
        child: The one that `enter_child` was given; None = this is not a pool's child.
        clock: Delays count from it where no other is given: the machine's, or that of a test's pool.
        was_used: Something has enqueued here, through the default producer or a `Jobs` of its own.
        factory: Opens the default producer at its first use. It must not call `default()`.
    """

    def __init__(self) -> None:
        # Two threads that need it first at the same time must not open two.
        self.lock = threading.Lock()
        self.producer: Producer | None = None
        self.chosen: Producer | None = None
        self.child: Target | None = None
        self.clock: Clock = SystemClock()
        self.was_used = False
        self.factory: Callable[[], Producer] = _open_jobs

    @property
    def of_child(self) -> Target | None:
        """The one that `Jobs(…)` uses for any URL, and opens no broker: of a pool's child, or of a test's attempt."""
        return self.child or of_attempt.get()


def _open_jobs() -> Producer:
    import jobpool  # here: it would be half imported at this module's top, and `Jobs` stays for programs that enqueue

    return jobpool.Jobs()


process = Process()
of_attempt: contextvars.ContextVar[Target | None] = contextvars.ContextVar("of_attempt", default=None)
"""The taker of jobs of a handler that `jobpool.testing` runs in this process, as if in a child of a pool."""

if hasattr(os, "register_at_fork"):  # Windows cannot fork
    # A lock that another thread holds at a fork would stay locked in the child forever.
    os.register_at_fork(after_in_child=lambda: setattr(process, "lock", threading.Lock()))


def default() -> Producer:
    """Return the default producer of this process, made by the factory at the first call; that may block to open it.

    Raises `ConfigurationError`: the factory could not open one.
    """
    with process.lock:
        process.was_used = True
        if process.producer is None:
            process.producer = process.factory()
        return process.producer


def set_default(producer: Producer | None) -> None:
    """Make `producer` the default of this process; None = ask the factory again at the next use.

    If it is a `Jobs`, every `Jobs()` that names no broker goes by it meanwhile.
    """
    with process.lock:
        process.producer = process.chosen = producer


def enter_child(producer: Target) -> None:
    """Send all that this process enqueues to its master from now on. Called once when a child starts."""
    with process.lock:
        process.producer = process.child = producer


class _Turns(threading.local):
    """The turns of the event loop that was last seen in this thread."""

    loop: asyncio.AbstractEventLoop | None = None
    semaphore: asyncio.Semaphore


_turns = _Turns()


async def on_thread(call: Callable[[], T]) -> T:
    """Return what a blocking call returns, or raise its error, made on a thread of the running loop's own executor.

    The call sees the caller's context variables. `MAX_AWAITED_CALLS` run at a time, and the others wait in their order.
    A cancelled one that still waits is never made; one under way is finished, and keeps its turn until then.
    """
    import asyncio  # a program without an event loop never pays for it

    loop = asyncio.get_running_loop()
    if _turns.loop is not loop:
        _turns.loop, _turns.semaphore = loop, asyncio.Semaphore(MAX_AWAITED_CALLS)
    turns = _turns.semaphore
    await turns.acquire()
    try:
        made = loop.run_in_executor(None, contextvars.copy_context().run, call)
    except BaseException:  # the executor is shut down
        turns.release()
        raise

    def end(made: asyncio.Future[T]) -> None:
        turns.release()
        if not made.cancelled():
            made.exception()  # else asyncio logs that of a call whose caller was cancelled

    made.add_done_callback(end)
    return await asyncio.shield(made)
