"""The set of connections to one beanstalkd, and which of them owns what.

A connection without leases is idle, free for any caller, so no caller waits for another. One with leases is holding:
settlements and renewals go to it, and more is fetched on it. If it breaks, the server gives all its leases to others at
once; they are remembered until `lost` is called, and logged. Nothing is tried again: a kept connection that has died
meanwhile is noticed before use.

A thread waits for the lock of a connection only while it holds none, except in `send_each`, which takes several locks
in their order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import greenstalk

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, JobpoolError
from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.connection import COMMANDS_PER_WRITE, TROUBLE, Answer, Connection, Held, explain
from jobpool_backends.shared import OneProcess, grouped

LINE_END_BYTES = 2
MAX_IDLE = 4  # idle connections that are kept; more are closed
# More are fetched on another connection: the server often searches all of one for the first lease that ends.
MAX_LEASES_PER_CONNECTION = 256
_ENDED_KEPT_S = 1.0  # for which an ended lease may still be remembered: it is refused by its deadline all the same
_HURRIED_TIMEOUT_S = 0.1  # of an answer after another connection, asked at the same time, has not answered in time

Answers = dict[Held, Answer | JobpoolError]
"""Answers to a command about each lease. Missing: it had ended before. An error: the lease is lost, and nobody knows if
the server did it.
"""

_log = logging.getLogger("jobpool.beanstalk")


class Connections(OneProcess):
    """All connections of a backend, to one address; any number of threads at once."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(f"the connection to {address.title}")
        self.address = address
        self.clock = clock
        self._changing = threading.Lock()
        self._open: dict[Connection, None] = {}
        self._owners: dict[str, Held] = {}
        self._lost: list[JobLease] = []
        self._max_job_size = 0

    # --- connections to speak on -----------------------------------------------------------------------

    def spare(self) -> AbstractContextManager[Connection]:
        """Lend an idle connection, for this block alone; leases that it then has stay with it.

        Inside the block, trouble with the connection ends it and becomes `BackendUnavailable`. Refusals of the server
        become errors as in `refusal`, and ordinary answers pass through. Refusals of a `burst` are values. Raises
        BackendUnavailable. Blocks as long as connecting does, if no connection is idle.
        """
        return self.lending(self.take_idle())

    def fetching(self) -> AbstractContextManager[Connection]:
        """Lend a connection to reserve on, as `spare`: one that has leases already, if any has room."""
        with_room = self._take(lambda connection: 0 < len(connection.held) < MAX_LEASES_PER_CONNECTION)
        return self.lending(with_room or self.take_idle())

    @contextmanager
    def lending(self, connection: Connection) -> Iterator[Connection]:
        """Yield this connection, whose lock was taken; give it back after the block. Errors as in `spare`."""
        try:
            yield connection
        except JobpoolError:  # some are ValueErrors besides, and the connection is as good as before
            raise
        except TROUBLE as error:
            raise self.broken(connection, error) from None
        except greenstalk.Error as error:
            connection.check(error)
            raise
        except BaseException as error:  # in the middle of an exchange: the next answer would be the wrong one
            self.drop(connection, error)
            raise
        finally:
            self.give_back(connection)

    def take_idle(self) -> Connection:
        """Return a connection without leases, its lock taken, for `lending`. Raises and blocks as `spare`."""
        return self._take(lambda connection: not connection.held) or self._connect()

    def put_refusal(self, answer: Answer) -> JobpoolError:
        """Return the error of a put that was not answered with `INSERTED`."""
        if isinstance(answer, greenstalk.JobTooBigError):
            self._max_job_size = 0  # the server is another one than that which was asked
        error = answer if isinstance(answer, greenstalk.Error) else greenstalk.BuriedError()
        return explain(error, self.address)

    def max_job_size(self, connection: Connection | None = None, *, anew: bool = False) -> int:
        """Return bytes that a job may have; asked for once, or `anew`, on this connection or a `spare` one.

        A started server counts the line end after a job in its binlog, and drops the rest of a file that holds one over
        `max-job-size`.
        """
        if not self._max_job_size or anew:
            with nullcontext(connection) if connection else self.spare() as speaking:
                self._max_job_size = int(speaking.stats()[0]["max-job-size"]) - LINE_END_BYTES
        return self._max_job_size

    def close(self) -> None:
        """Close all connections, which ends waits on them. The server gives their leases to others. Safe twice."""
        self.closed = True
        for connection in self._all():
            connection.interrupt()
            if connection.lock.acquire(blocking=False):  # else the thread that speaks on it meets its end and closes it
                self.drop(connection)
                connection.lock.release()

    # --- leases ----------------------------------------------------------------------------------------

    def own(self, held: Held) -> None:
        """Record that its connection has reserved it. Called with the connection's lock taken."""
        held.connection.held[held.job] = held
        self._owners[held.lease.owner_token] = held

    def forget(self, held: Held) -> None:
        """Record that its connection no longer has it."""
        if held.is_owned:
            del held.connection.held[held.job]
        self._owners.pop(held.lease.owner_token, None)

    def owner(self, lease: JobLease) -> Held | None:
        """Return the holder of this lease; None if it was settled, has ended, is lost, or is another client's."""
        return self._owners.get(lease.owner_token)

    def prefetched(self, queue: str) -> int:
        """Return how many jobs of this queue are reserved here, and wait to be fetched."""
        return sum(held.lease.queue == queue and held.prefetched for held in list(self._owners.values()))

    def lost(self) -> list[JobLease]:
        """See `QueueBackend.lost`."""
        self.check_fork()
        self.tidy()
        with self._changing:
            lost, self._lost = self._lost, []
            return lost

    def tidy(self) -> None:
        """Drop connections that have died, or whose leases have all ended unsettled. No I/O that waits."""
        for connection in self._all():
            if connection.held and connection.lock.acquire(blocking=False):  # else the thread that speaks on it notices
                if not connection.broken and connection.has_died():
                    self.drop(connection)
                self.give_back(connection)

    def send_each(self, held_jobs: Sequence[Held], command: Callable[[Held], bytes], *, ends: bool) -> Answers:
        """Send a command about each lease on the connection that owns it: all are written before any answer is read.

        Not for leases that have ended by then. A break spoils the leases of its own connection only. `ends`: the
        command ends the lease. Blocks for a round trip, and for those that others have under way on these connections.
        """
        self.check_fork()
        works = grouped(held_jobs, lambda held: held.connection)
        order = sorted(works, key=lambda connection: connection.serial)
        for connection in order:
            connection.lock.acquire()
        answers: Answers = {}
        try:
            for start in range(0, max(map(len, works.values()), default=0), COMMANDS_PER_WRITE):
                now = self.clock.boot()
                pieces = {}
                for connection in order:
                    piece = works[connection][start : start + COMMANDS_PER_WRITE]
                    if owned := [held for held in piece if held.is_owned and now < held.lease.expires_at]:
                        pieces[connection] = owned
                self._exchange(pieces, command, answers)
            for held, answer in answers.items():
                if ends or isinstance(answer, greenstalk.NotFoundError):
                    self.forget(held)
        finally:
            for connection in order:
                self.give_back(connection)
        return answers

    def _exchange(
        self, pieces: dict[Connection, list[Held]], command: Callable[[Held], bytes], answers: Answers
    ) -> None:
        limit = self.address.timeout
        for connection, held_jobs in pieces.items():
            try:
                connection.write([command(held) for held in held_jobs])
            except TROUBLE as error:
                answers |= dict.fromkeys(held_jobs, self.broken(connection, error))
        for connection, held_jobs in pieces.items():
            try:
                if not connection.broken:
                    answers |= zip(held_jobs, connection.read(len(held_jobs), limit), strict=True)
            except TROUBLE as error:
                answers |= dict.fromkeys(held_jobs, self.broken(connection, error))
                limit = _HURRIED_TIMEOUT_S if isinstance(error, TimeoutError) else limit

    # --- the set ---------------------------------------------------------------------------------------

    def _all(self) -> list[Connection]:
        with self._changing:
            return list(self._open)

    def _take(self, fits: Callable[[Connection], bool]) -> Connection | None:
        """Return a living connection that fits, on which nobody speaks just now; its lock taken."""
        self.check_usable()
        for connection in self._all():
            if fits(connection) and connection.lock.acquire(blocking=False):
                if fits(connection) and not connection.broken:
                    if not connection.has_died():
                        return connection
                    self.drop(connection)
                connection.lock.release()
        return None

    def _connect(self) -> Connection:
        try:
            connection = Connection(self.address)
        except TimeoutError:
            raise BackendUnavailable(
                f"{self.address.title} took no connection in time: see whether it runs and no firewall swallows"
                " packets, or raise the option connect_timeout"
            ) from None
        except OSError as error:
            raise explain(error, self.address) from None
        connection.lock.acquire()
        with self._changing:
            self._open[connection] = None
        if self.closed:
            self.drop(connection)
            raise self.was_closed()
        return connection

    def give_back(self, connection: Connection) -> None:
        """Put a connection where it belongs now, and release its lock, which the caller took.

        One whose leases have all ended unsettled is closed: beanstalkd 1.12 may not notice that a lease has run out
        before its connection speaks again.
        """
        some_ended = self._forget_ended(connection)
        if not connection.held and not connection.broken:
            idle = sum(not other.held and not other.lock.locked() for other in self._all())
            if some_ended or self.closed or idle >= MAX_IDLE:
                self.drop(connection)
        connection.lock.release()

    def _forget_ended(self, connection: Connection) -> bool:
        """Forget leases that nobody settled in time; return whether there were any."""
        now = self.clock.boot()
        if now < connection.ends_first:
            return False
        ended = [held for held in connection.held.values() if held.lease.expires_at <= now]
        for held in ended:
            self.forget(held)
        ends = (held.lease.expires_at for held in connection.held.values())
        connection.ends_first = min(ends, default=now) + _ENDED_KEPT_S
        return bool(ended)

    def broken(self, connection: Connection, error: BaseException) -> JobpoolError:
        """Drop a connection, whose lock was taken, and say what its break means."""
        self.drop(connection, error)
        return self.was_closed() if self.closed else explain(error, self.address)

    def drop(self, connection: Connection, error: BaseException | None = None) -> None:
        """Close a broken or unneeded connection: its leases are lost. Called with its lock taken, and keeps it."""
        now = self.clock.boot()
        jobs = list(connection.held.values())
        for held in jobs:
            self.forget(held)
        connection.close()
        lost = [held.lease for held in jobs if not held.prefetched and now < held.lease.expires_at and not self.closed]
        with self._changing:
            self._open.pop(connection, None)
            self._lost += lost
        if lost:
            _log.warning(
                "a connection to %s broke: %d leases that it owned are lost, and their messages go to whoever fetches"
                " next; a settlement under way may have been done (%s)",
                self.address.title,
                len(lost),
                error or "it was closed by the other side",
            )
