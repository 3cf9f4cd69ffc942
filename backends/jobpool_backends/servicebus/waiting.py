"""Waiting on several queues at once: one receiver of each waits for a message, and the first that gets one ends all
waits.

The message is kept for the fetch that follows (station.py). A queue that is missing does not stop the wait for the
others. If none of them is there, that is an error, and for some seconds the next wait raises it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.servicebus.hub import Hub
from jobpool_backends.servicebus.station import GIVING_BACK, Station

ALIVE = 10.0
"""Seconds after which a receiver that waits is asked for an answer: one that is deaf is found out then."""

MISSING = 5.0
"""Seconds for which a queue that was not there is not looked for."""


class Waiter:
    """The wait for messages."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._missing: dict[str, tuple[float, ConfigurationError]] = {}
        self._waited: set[str] = set()
        self._closed = False

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return the first of these that has something to take; None when none has within `timeout` seconds.

        Raises:
            ConfigurationError: None of the queues is there.
            BackendUnavailable: The broker cannot be asked.
        """
        stations = [self._hub.queue(queue) for queue in dict.fromkeys(queues)]
        self._waited.update(queues)
        if self._closed:
            return None
        limit = max(0.0, timeout)
        return self._hub.call(self._wait_any(stations, time.monotonic() + limit), limit + self._hub.address.timeout)

    def close(self) -> None:
        """End the waits of others; what came for them and was never fetched goes back to its queue. No more waits."""
        self._closed = True
        waited, self._waited = self._waited, set()
        if waited:
            with suppress(BackendUnavailable):
                self._hub.call(self._leave([self._hub.queue(name) for name in waited]), GIVING_BACK)

    async def _leave(self, stations: Sequence[Station]) -> None:
        for station in stations:
            station.stop_waiting()
        await asyncio.gather(*(station.give_back() for station in stations), return_exceptions=True)

    async def _wait_any(self, stations: Sequence[Station], deadline: float) -> str | None:
        there = self._without_missing(stations)
        stop = asyncio.Event()
        tasks = {asyncio.ensure_future(self._wait_one(each, deadline, stop)): each for each in there}
        try:
            return await self._first(tasks)
        finally:
            stop.set()
            for task, station in tasks.items():
                if not task.done():
                    station.stop_waiting()
                    task.add_done_callback(_ignore)

    async def _first(self, tasks: dict[asyncio.Task[bool], Station]) -> str | None:
        waiting = set(tasks)
        trouble: BaseException | None = None
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None and task.result():
                    return tasks[task].name
                if isinstance(error, ConfigurationError):
                    self._missing[tasks[task].name] = (time.monotonic(), error)
                    trouble = error
                elif error is not None:
                    raise error
        if trouble is not None and all(task.exception() is not None for task in tasks):
            raise trouble
        return None

    async def _wait_one(self, station: Station, deadline: float, stop: asyncio.Event) -> bool:
        def unwanted() -> bool:
            return stop.is_set() or self._closed or station.closed

        while not unwanted():
            now = time.monotonic()
            if await station.wait(min(deadline, now + ALIVE), unwanted):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0)  # a caller that wanted the receiver goes first
        return False

    def _without_missing(self, stations: Sequence[Station]) -> list[Station]:
        """Return the stations, but for those that were missing just now. Raises when that is all of them."""
        now = time.monotonic()
        recent = {name: error for name, (at, error) in self._missing.items() if now - at < MISSING}
        there = [station for station in stations if station.name not in recent]
        if not there and stations:
            raise recent[stations[0].name]
        return there


def _ignore(task: asyncio.Task[bool]) -> None:
    """Ignore the result of a wait that nobody waits for any more; the next one tells it."""
    if not task.cancelled():
        task.exception()
