"""Jobs reserved by a waiter, until they are fetched.

Sleep until a queue may have something: one thread waits in the server's `reserve`, and callers wait for the thread.

A waiting reserve cannot be called off: its connection is blocked until the answer. So a thread has a connection of its
own, without leases. It reserves for a second at a time, on the tubes of all queues that callers wait for. Reserved jobs
are prefetched, and the next fetch hands them out. Jobs that nobody fetches within `PREFETCH_KEPT_S` seconds, or that come when nobody
waits, are released: then another pool gets them, and no counters move.

An idle pool costs the server one command a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import greenstalk

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool_backends.beanstalk.connection import Connection, Held
from jobpool_backends.beanstalk.connections import Connections, send_each
from jobpool_backends.beanstalk.fetch import Fetcher


class Prefetched:
    """Leases that nobody has fetched yet, by queue, the oldest first; any number of threads at once."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._helds: dict[str, list[Held]] = {}

    def put(self, helds: Sequence[Held]) -> None:
        with self._changing:
            for held in helds:
                self._helds.setdefault(held.lease.queue, []).append(held)

    def take(self, queue: str, limit: int) -> list[Held]:
        """Take up to `limit` of this queue: they are the caller's now."""
        if queue not in self._helds:
            return []
        with self._changing:
            helds = self._helds.pop(queue, [])
            if helds[limit:]:
                self._helds[queue] = helds[limit:]
            return helds[:limit]

    def take_all(self) -> list[Held]:
        """Return all there is, of any queue."""
        with self._changing:
            helds = [held for kept in self._helds.values() for held in kept]
            self._helds.clear()
            return helds

    def withdraw(self, helds: Sequence[Held]) -> list[Held]:
        """Take those that are still here: they are the caller's now."""
        with self._changing:
            mine = [held for held in helds if held in self._helds.get(held.lease.queue, ())]
            for held in mine:
                self._helds[held.lease.queue].remove(held)
                if not self._helds[held.lease.queue]:
                    del self._helds[held.lease.queue]
            return mine

    def any_of(self, queues: Sequence[str]) -> str | None:
        """Return one of these queues that has something here."""
        return next((queue for queue in queues if queue in self._helds), None) if self._helds else None


RESERVE_S = 1
"""Whole seconds of one reserve: for so long at most is a connection bound when nobody waits any more."""

LATE_ANSWER_S = 2.0
"""Seconds after the end of a turn for which its answer may be late, for nothing is lost with a connection without leases."""

PREFETCH_KEPT_S = 1.0
"""Seconds for which what was reserved is kept for who waited."""

IDLE_THREAD_S = 5.0
"""Seconds after which a thread that nobody has waited for ends."""

MISSED_KEPT_S = 0.5
"""Seconds for which it is remembered that something came when nobody waited: who waits in glances finds that."""

_MAX_WATCHES = 100


class Waiter:
    """The wait for messages; any number of threads at once."""

    def __init__(self, connections: Connections, fetcher: Fetcher, prefetched: Prefetched, clock: Clock) -> None:
        self._connections = connections
        self._fetcher = fetcher
        self._prefetched = prefetched
        self._clock = clock
        self._changing = threading.Lock()
        self._watches: dict[tuple[str, ...], Watch] = {}
        self._closed = threading.Event()

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return a queue that may have something, None after `timeout` seconds, or when this is closed.

        Raises BackendUnavailable.
        """
        try:
            self._connections.check_usable()
            if queues:
                return self._watch(tuple(sorted(set(queues)))).wait(timeout)
        except BackendUnavailable:
            if not self._closed.is_set():
                raise
        self._closed.wait(timeout)
        return None

    def close(self) -> None:
        """End all waits, and release jobs that nobody fetched. Call before the connections are closed."""
        self._closed.set()
        for watch in list(self._watches.values()):
            watch.close()
        give_back(self._connections, self._prefetched.take_all())

    def join(self) -> None:
        """Wait for the threads, once the connections are closed."""
        for watch in list(self._watches.values()):
            watch.join()

    def _watch(self, queues: tuple[str, ...]) -> Watch:
        with self._changing:
            if len(self._watches) > _MAX_WATCHES:
                self._watches = {key: watch for key, watch in self._watches.items() if watch.is_busy()}
            if queues not in self._watches:
                self._watches[queues] = Watch(queues, self._connections, self._fetcher, self._prefetched, self._clock)
            watch = self._watches[queues]
            if self._closed.is_set():
                watch.close()
            return watch


@dataclass(slots=True, eq=False)
class Ticket:
    """Somebody who waits, and what he is told."""

    found: str | None = None
    trouble: JobpoolError | None = None


class Watch:
    """The wait for one set of queues."""

    def __init__(
        self, queues: tuple[str, ...], connections: Connections, fetcher: Fetcher, prefetched: Prefetched, clock: Clock
    ) -> None:
        self._queues = queues
        self._connections = connections
        self._fetcher = fetcher
        self._prefetched = prefetched
        self._clock = clock
        self._tubes = [connections.address.tube(queue) for queue in queues]
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        self._thread: threading.Thread | None = None
        self._kept: list[Held] = []
        self._kept_until = 0.0
        self._missed: tuple[str, float] | None = None
        self._closed = False

    def wait(self, timeout: float) -> str | None:
        """See `Waiter.wait_any`."""
        give_up = time.monotonic() + timeout
        ticket = Ticket()
        with self._changed:
            self._tickets.append(ticket)
            try:
                while not self._closed:
                    found = ticket.found or self._prefetched.any_of(self._queues) or self._heard()
                    if found is not None:
                        return found
                    if ticket.trouble is not None:
                        raise type(ticket.trouble)(*ticket.trouble.args)
                    remaining = give_up - time.monotonic()
                    if remaining <= 0:
                        return None
                    self._start()
                    self._changed.wait(remaining)
                return None
            finally:
                if ticket in self._tickets:
                    self._tickets.remove(ticket)

    def is_busy(self) -> bool:
        """Return whether anybody waits, or the thread has not ended yet."""
        return bool(self._tickets or self._thread)

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread, whose connection was closed."""
        thread = self._thread
        if thread is not None:
            thread.join(RESERVE_S)

    def _heard(self) -> str | None:
        missed, self._missed = self._missed, None
        return missed[0] if missed and time.monotonic() < missed[1] else None

    # --- the thread ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._serve, name="beanstalkd wait", daemon=True)
            self._thread.start()
        else:
            self._changed.notify_all()

    def _serve(self) -> None:
        while self._is_wanted():
            try:
                self._turn()
            except JobpoolError as error:
                self._fail(error)

    def _is_wanted(self) -> bool:
        """Sleep until somebody waits, or the prefetched is to be cleared; False: the thread ends."""
        with self._changed:
            pause = max(0.0, self._kept_until - time.monotonic()) if self._kept else IDLE_THREAD_S
            self._changed.wait_for(lambda: bool(self._tickets) or self._closed, pause)
            if self._closed or not (self._tickets or self._kept):
                self._thread = None
                return False
            return True

    def _turn(self) -> None:
        """Clear up what nobody fetched, and settled; then wait for more, if anybody does."""
        if self._kept and time.monotonic() >= self._kept_until:
            kept, self._kept = self._kept, []
            give_back(self._connections, self._prefetched.withdraw(kept))
        self._connections.tidy()
        if self._tickets:
            with self._connections.speaking(self._connections.take_idle()) as connection:
                self._reserve(connection)

    def _reserve(self, connection: Connection) -> None:
        connection.watch(self._tubes)
        connection.write([b"reserve-with-timeout %d" % RESERVE_S])
        [answer] = connection.read(1, limit=RESERVE_S + min(LATE_ANSWER_S, self._connections.address.timeout))
        if isinstance(answer, greenstalk.Job):
            self._keep(connection, self._fetcher.take_in(connection, [answer], self._clock.boot(), touch=True))
        elif isinstance(answer, greenstalk.DeadlineSoonError):
            self._connections.discard(
                connection
            )  # it has a lease that nobody knows of, and would be answered so again and again
        else:
            self._connections.check(answer)

    def _keep(self, connection: Connection, helds: list[Held]) -> None:
        if not helds:
            return
        with self._changed:
            if self._tickets and not self._closed:
                self._prefetched.put(helds)
                self._kept = helds
                self._kept_until = time.monotonic() + PREFETCH_KEPT_S
                self._tell(Ticket(found=helds[0].lease.queue))
                return
            self._missed = (helds[0].lease.queue, time.monotonic() + MISSED_KEPT_S)
        connection.burst([release(held) for held in helds])
        for held in helds:
            self._connections.forget(held)

    def _fail(self, error: JobpoolError) -> None:
        with self._changed:
            self._tell(Ticket(trouble=error))

    def _tell(self, what: Ticket) -> None:
        """Wake everybody: they wait no more."""
        for ticket in self._tickets:
            ticket.found, ticket.trouble = what.found, what.trouble
        self._tickets.clear()
        self._changed.notify_all()


def release(held: Held) -> bytes:
    """Return the command that gives a job back to its place."""
    return b"release %d %d 0" % (held.job, held.priority)


def give_back(connections: Connections, helds: Sequence[Held]) -> None:
    """Release what nobody fetched."""
    if helds:
        send_each(connections, helds, release, ends=True)
