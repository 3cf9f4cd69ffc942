"""A channel: one sender or receiver of the SDK, used by one coroutine at a time, and thrown away on any doubt.

The SDK's handlers do not recover from most failures. After a detach the first management call poisons them, concurrent
calls open connections that nobody closes, and replies to management calls end after 10,000. So handlers are cheap here:
a failure that is not final means a new one, and so does a certain age or number of calls. The old one is closed in the
background, within a limit, and cut off when it does not come to an end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool_backends.servicebus.address import Address
from jobpool_backends.servicebus.errors import FINAL, LOST, NOT_LET_IN, SOUND, explain, is_refused, words
from jobpool_backends.servicebus.internals import close_or_cut_off, is_broken, log, remember_clients

# Calls of one handler: the SDK gives its management link credit for 10,000 replies, and never more.
MAX_OPERATIONS = 5000
MAX_HANDLER_AGE_S = 1500.0  # before the token's renewal and the service's own limits come into play
STALE_AFTER_S = 5.0  # time without use after which a handler may have been detached by the other side without a word
CHECK_AFTER_S = 0.02  # time without use after which to look whether the other side has ended the connection
CLOSE_LIMIT_S = 5.0
H = TypeVar("H", bound=ServiceBusSender | ServiceBusReceiver)
Done = TypeVar("Done")


class Channel(Generic[H]):
    """A channel, only for coroutines on the namespace's loop. A handler, from `make`, has at most `most` calls."""

    def __init__(self, make: Callable[[], H], address: Address, queue: str, *, most: int = MAX_OPERATIONS) -> None:
        self.address = address
        self._make = make
        self._queue = queue
        self._most = most
        self._handler: H | None = None
        self._clients: list[Any] = []
        self._born = self._used = 0.0
        self.operations = 0  # calls of this handler
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.lock = asyncio.Lock()
        self.generation = 0  # which handler it is: deliveries of one cannot be settled on another's link

    async def run(
        self, work: Callable[[H], Awaitable[Done]], deadline: float | None = None, *, patiently: bool = True
    ) -> Done:
        """Do `work` with the handler, alone. Try again with a new one if it fails in a way that may pass.

        `deadline` is of `time.monotonic()`; None = the address's timeout from now. Not `patiently`: try again only when
        the handler had been idle, so that most likely nothing was done. Raises one of `LOST` as it is, and anything
        else explained: at once when nothing listens there.
        """
        give_up = time.monotonic() + self.address.timeout if deadline is None else deadline
        pause = 0.05
        trouble: Exception | None = None  # says more than that the time is over
        async with self.lock:
            if time.monotonic() >= give_up:  # others took all the time: no fault of the handler's
                raise self._explain(TimeoutError())
            while True:
                was_let_in = self._handler is not None
                is_stale = was_let_in and time.monotonic() - self._used > STALE_AFTER_S
                try:
                    return await self._attempt(work, give_up)
                except LOST:
                    raise
                except FINAL as error:
                    if not (was_let_in and isinstance(error, NOT_LET_IN)):
                        raise self._explain(error) from None
                    trouble = error
                except Exception as error:  # noqa: BLE001 - explained, without a chain that hides the sentence
                    trouble = trouble if trouble and isinstance(error, TimeoutError) else error
                    late = time.monotonic() + pause >= give_up
                    if late or not (patiently or is_stale) or is_refused(error):
                        raise self._explain(trouble) from None
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)

    async def _attempt(self, work: Callable[[H], Awaitable[Done]], give_up: float) -> Done:
        """Do `work` once. A failure that leaves a doubt costs the handler."""
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                result = await work(await self._get())
        except BaseException as error:
            if not isinstance(error, SOUND):
                # Logged, because the call may still succeed. If no handler is open, the call itself raises it.
                if self._handler is not None and isinstance(error, Exception) and not self._closed:
                    log.info(
                        "%s, queue %s: a connection is replaced: %s: %s",
                        self.address.title,
                        self._queue,
                        type(error).__name__,
                        words(error),
                        extra={"limit": f"replaced: {self._queue}"},
                    )
                self.recycle()
            raise
        self._used = time.monotonic()
        return result

    def recycle(self) -> None:
        if self._handler is not None:
            handler, self._handler = self._handler, None
            self._close(handler)

    async def close(self) -> None:
        """Close the handler, for good, and wait a little over `CLOSE_LIMIT_S` for those that are closing."""
        self._closed = True
        self.recycle()
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=CLOSE_LIMIT_S + 1)

    async def _get(self) -> H:
        if self._closed:
            raise BackendUnavailable(f"{self.address.title}: this backend was closed: open another")
        if time.monotonic() - self._used > CHECK_AFTER_S:
            for _ in range(3):  # let the loop learn of ended connections: from socket to transport to reader
                await asyncio.sleep(0)
        too_old = time.monotonic() - self._born > MAX_HANDLER_AGE_S
        if self._handler and (too_old or self.operations >= self._most or is_broken(self._handler)):
            self.recycle()
        self.operations += 1
        if self._handler is None:
            self._handler = await self._open()
        return self._handler

    async def _open(self) -> H:
        handler = self._make()
        self._clients = remember_clients(handler)
        try:
            await handler.__aenter__()
        except BaseException:
            self._close(handler)
            raise
        self._born = time.monotonic()
        self.operations = 1
        self.generation += 1
        return handler

    def _close(self, handler: H) -> None:
        task = asyncio.ensure_future(close_or_cut_off(handler, self._clients, CLOSE_LIMIT_S))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _explain(self, error: BaseException) -> JobpoolError:
        return explain(error, self.address, self._queue)
