"""Sleep until a queue may have something: one thread waits in the server's `reserve`, and callers wait for the thread.

A waiting reserve cannot be called off: its connection is blocked until the answer. So a thread has a connection of its
own, without leases. It reserves for a second at a time, on the tubes of all queues that callers wait for. Reserved jobs
are kept, and the next fetch hands them out. A job that nobody fetches in time, or that comes when nobody waits, is
released: then another pool gets it, and no counters move. An idle pool costs the server one command a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import greenstalk

from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool_backends.beanstalk.connection import Connection, Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.fetch import Fetcher

RESERVE_S = 1  # whole seconds of one reserve: it binds a connection even when nobody waits any more
LATE_ANSWER_S = 2.0  # by which an answer may be late: nothing is lost with a connection without leases
PREFETCH_KEPT_S = 1.0  # for which jobs are kept for callers that waited
IDLE_THREAD_S = 5.0  # after which a thread that nobody has waited for ends
MISSED_KEPT_S = 0.5  # for which a job that came when nobody waited is remembered, for a caller that waits in glances
_MAX_WATCHES = 100


class Prefetched:
    """Leases that nobody has fetched yet, the oldest first; any number of threads at once."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._held_jobs: list[Held] = []

    def put(self, held_jobs: Sequence[Held]) -> None:
        with self._changing:
            self._held_jobs += held_jobs

    def take(self, wanted: Callable[[Held], bool], limit: int | None = None) -> list[Held]:
        """Take up to `limit` of those that are still here: they are the caller's now."""
        if not self._held_jobs:
            return []
        with self._changing:
            taken = [held for held in self._held_jobs if wanted(held)][:limit]
            self._held_jobs = [held for held in self._held_jobs if held not in taken]
            return taken

    def any_of(self, queues: Sequence[str]) -> str | None:
        return next((held.lease.queue for held in self._held_jobs if held.lease.queue in queues), None)


class Waiter:
    """The wait for messages; any number of threads at once."""

    def __init__(self, connections: Connections, fetcher: Fetcher, prefetched: Prefetched) -> None:
        self._connections = connections
        self._fetcher = fetcher
        self._prefetched = prefetched
        self._changing = threading.Lock()
        self._watches: dict[tuple[str, ...], Watch] = {}
        self._closed = threading.Event()

    def wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        """Return a queue that may have something; None after `timeout` seconds, or when this is closed."""
        try:
            self._connections.check_usable()
            return self._watch(tuple(sorted(set(queues)))).wait(timeout)
        except BackendUnavailable:
            if not self._closed.is_set():
                raise
            return None

    def close(self) -> None:
        """End all waits, and release what nobody fetched. Call before the connections are closed."""
        self._closed.set()
        for watch in list(self._watches.values()):
            watch.close()
        give_back(self._connections, self._prefetched.take(lambda _: True))

    def join(self) -> None:
        """Wait for the threads, once the connections are closed."""
        for watch in list(self._watches.values()):
            if (thread := watch.thread) is not None:
                thread.join(RESERVE_S)

    def _watch(self, queues: tuple[str, ...]) -> Watch:
        with self._changing:
            if len(self._watches) > _MAX_WATCHES:
                self._watches = {key: watch for key, watch in self._watches.items() if watch.is_busy}
            if queues not in self._watches:
                self._watches[queues] = Watch(queues, self._connections, self._fetcher, self._prefetched)
            watch = self._watches[queues]
            if self._closed.is_set():
                watch.close()
            return watch


class Watch:
    """The wait for one set of queues."""

    def __init__(
        self, queues: tuple[str, ...], connections: Connections, fetcher: Fetcher, prefetched: Prefetched
    ) -> None:
        self.thread: threading.Thread | None = None
        self._queues = queues
        self._connections = connections
        self._fetcher = fetcher
        self._prefetched = prefetched
        self._changed = threading.Condition()
        self._waits: list[Future[str | None]] = []
        self._kept: list[Held] = []
        self._kept_until = 0.0
        self._missed = ("", 0.0)
        self._closed = False

    def wait(self, timeout: float) -> str | None:
        """See `Waiter.wait_any`."""
        told: Future[str | None] = Future()
        with self._changed:
            found = self._prefetched.any_of(self._queues)
            if found is None:
                (missed, until), self._missed = self._missed, ("", 0.0)
                found = missed if time.monotonic() < until else None
            if self._closed or found is not None or timeout <= 0:
                return None if self._closed else found
            self._waits.append(told)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._serve, name="beanstalkd wait", daemon=True)
                self.thread.start()
            self._changed.notify_all()
        try:
            return told.result(timeout)
        except TimeoutError:
            return self._prefetched.any_of(self._queues)
        finally:
            with self._changed:
                if told in self._waits:
                    self._waits.remove(told)

    @property
    def is_busy(self) -> bool:
        """True if anybody waits, or the thread has not ended yet."""
        return bool(self._waits or self.thread)

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._tell(None)

    def _tell(self, found: str | None, error: JobpoolError | None = None) -> None:
        """Wake everybody: they wait no more. Called with the lock taken."""
        for told in self._waits:
            if error is None:
                told.set_result(found)
            else:
                told.set_exception(type(error)(*error.args))
        self._waits.clear()
        self._changed.notify_all()

    # --- the thread ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._is_wanted():
            try:
                self._turn()
            except JobpoolError as error:
                with self._changed:
                    self._tell(None, error)

    def _is_wanted(self) -> bool:
        """Sleep until somebody waits, or kept jobs are to be released; return False if the thread is to end."""
        with self._changed:
            pause = max(0.0, self._kept_until - time.monotonic()) if self._kept else IDLE_THREAD_S
            self._changed.wait_for(lambda: bool(self._waits) or self._closed, pause)
            if self._closed or not (self._waits or self._kept):
                self.thread = None
                return False
            return True

    def _turn(self) -> None:
        """Release what nobody fetched in time; then wait for more, if anybody does."""
        if self._kept and time.monotonic() >= self._kept_until:
            kept, self._kept = self._kept, []
            give_back(self._connections, self._prefetched.take(kept.__contains__))
        self._connections.tidy()
        if not self._waits:
            return
        with self._connections.lending(self._connections.take_idle()) as connection:
            connection.watch(map(self._connections.address.tube, self._queues))
            connection.write([b"reserve-with-timeout %d" % RESERVE_S])
            [answer] = connection.read(1, limit=RESERVE_S + min(LATE_ANSWER_S, self._connections.address.timeout))
            if isinstance(answer, greenstalk.Job):
                before = self._connections.clock.boot()
                self._keep(connection, self._fetcher.take_in(connection, [answer], before, touch=True))
            elif isinstance(answer, greenstalk.DeadlineSoonError):
                # It has a lease that nobody knows of, and would be answered so again and again.
                self._connections.drop(connection)
            else:
                connection.check(answer)

    def _keep(self, connection: Connection, held_jobs: list[Held]) -> None:
        if not held_jobs:
            return
        queue, now = held_jobs[0].lease.queue, time.monotonic()
        with self._changed:
            if self._waits and not self._closed:
                self._prefetched.put(held_jobs)
                self._kept, self._kept_until = held_jobs, now + PREFETCH_KEPT_S
                self._tell(queue)
                return
            self._missed = (queue, now + MISSED_KEPT_S)
        connection.burst([_release(held) for held in held_jobs])
        for held in held_jobs:
            self._connections.forget(held)


def give_back(connections: Connections, held_jobs: Sequence[Held]) -> None:
    if held_jobs:
        connections.send_each(held_jobs, _release, ends=True)


def _release(held: Held) -> bytes:
    return b"release %d %d 0" % (held.job, held.priority)
