"""The set of connections to one beanstalkd, and which of them owns what.

A connection without leases is idle, free for any caller, so no caller waits for another. One with leases is holding:
settlements and renewals go to it, and more is fetched on it. If it breaks, all its leases are lost at once, because the
server gives them to others; they are remembered until `lost` is called, and logged. Nothing is tried again: a kept
connection that has died meanwhile is noticed before use.

A thread waits for the lock of a connection only while it holds none, except in telling.py, which takes several locks in
their order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import greenstalk

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.burst import Answer
from jobpool_backends.beanstalk.errors import TROUBLE, explain_break, explain_unreached, refusal
from jobpool_backends.beanstalk.line import Held, Line

SPARE = 4
"""Idle lines that are kept; more are closed."""

MOST_HELD = 256
"""Leases on one line beyond which the next are fetched on another. The server often searches all leases of a line for
the one that ends first.
"""

_log = logging.getLogger("jobpool.beanstalk")


class Lines:
    """All lines of a backend; any number of threads at once, never across a fork.

    Args:
        address: Where they lead to.
        clock: Its boot clock tells when leases end.

    Attributes:
        closed: Nothing is opened any more.
    """

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._open_lines: set[Line] = set()
        self._idle: dict[Line, None] = {}
        self._holding: dict[Line, None] = {}
        self._owners: dict[str, Held] = {}
        self._lost: list[JobLease] = []
        self._max_job_size = 0
        self.closed = False

    # --- lines to speak on -----------------------------------------------------------------------------

    @contextmanager
    def spare(self) -> Iterator[Line]:
        """Yield an idle line, for this block alone; leases that it then has stay with it.

        Inside the block, trouble with the connection ends the line and becomes `BackendUnavailable`; refusals of the
        server become errors as in `trouble`. `NotFoundError`, `TimedOutError` and `DeadlineSoonError` pass through. The
        refusals of a `burst` are values: see `check`.

        Raises BackendUnavailable. Blocks as long as connecting does, if no line is idle.
        """
        with self.speaking(self.take_idle()) as line:
            yield line

    @contextmanager
    def fetching(self) -> Iterator[Line]:
        """Yield a line to reserve on, for this block alone: one that has leases already, if any has room. As
        `spare`.
        """
        with self.speaking(self._take_holding() or self.take_idle()) as line:
            yield line

    @contextmanager
    def speaking(self, line: Line) -> Iterator[Line]:
        """Yield this line, whose lock was taken; give it back after the block. Errors as in `spare`."""
        try:
            yield line
        except JobpoolError:  # some are ValueErrors besides, and the line is as good as before
            raise
        except TROUBLE as error:
            raise self.broken(line, error) from error
        except greenstalk.Error as error:
            meaning = refusal(error, self.address)
            if meaning is None:
                raise
            raise meaning from error
        except BaseException as error:  # in the middle of an exchange: the next answer would be the wrong one
            self._drop(line, error)
            raise
        finally:
            self.give_back(line)

    def take_idle(self) -> Line:
        """Return a line without leases, its lock taken; `speaking` gives it back. Raises and blocks as `spare`."""
        self.check_usable()
        while (line := self._pop_idle()) is not None:
            if not line.has_died():
                return line
            self._drop(line, None)
            line.lock.release()
        return self._open()

    def discard(self, line: Line) -> None:
        """Close a line that is of no more use, whose lock was taken; `give_back` releases that."""
        self._drop(line, None)

    def check_usable(self) -> None:
        """Raise when this was closed, or inherited by a fork."""
        if self.closed:
            raise BackendUnavailable(f"the connection to {self.address.title} was closed: open the backend again")
        self.check_process()

    @property
    def is_inherited(self) -> bool:
        """True if the lines are those of a parent process."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise when this was inherited by a fork."""
        if self.is_inherited:
            raise ConfigurationError(
                f"the connections to {self.address.title} were opened by process {self._pid}, before a fork, and cannot"
                " be shared: open the backend after the fork, in the process that uses it"
            )

    def check(self, answer: Answer) -> Answer:
        """Return this answer, or raise the error that it means."""
        if isinstance(answer, greenstalk.Error):
            meaning = refusal(answer, self.address)
            if meaning is not None:
                raise meaning from answer
        return answer

    def put_refusal(self, answer: Answer) -> JobpoolError:
        """Return the error behind a put that was not answered with `INSERTED`."""
        if isinstance(answer, greenstalk.JobTooBigError):
            self._max_job_size = 0  # the server is another one than that which was asked
        error = answer if isinstance(answer, greenstalk.Error) else greenstalk.BuriedError()
        return refusal(error, self.address) or explain_break(error, self.address)

    def max_job_size(self, line: Line | None = None, *, anew: bool = False) -> int:
        """Return bytes that a job may have; asked for once, or `anew`.

        On this line, or a spare one: then it raises and blocks as `spare`.
        """
        if self._max_job_size and not anew:
            return self._max_job_size
        if line is None:
            with self.spare() as spare:
                return self.max_job_size(spare, anew=True)
        largest = self._max_job_size = int(line.client.stats()["max-job-size"])
        return largest

    def close(self) -> None:
        """Close all lines; who waits on one comes back. The server gives their leases to others. Safe to call twice."""
        with self._changing:
            self.closed = True
            open_lines = list(self._open_lines)
        for line in open_lines:
            line.interrupt()
            if line.lock.acquire(blocking=False):  # else the thread that speaks on it meets its end, and closes it
                self._drop(line, None)
                line.lock.release()

    # --- leases ----------------------------------------------------------------------------------------

    def own(self, held: Held) -> None:
        """Record that its line has reserved it. Called with the line's lock taken."""
        held.line.held[held.job] = held
        self._owners[held.lease.owner_token] = held

    def forget(self, held: Held) -> None:
        """Record that its line no longer has it."""
        if held.is_owned:
            del held.line.held[held.job]
        self._owners.pop(held.lease.owner_token, None)

    def owner(self, lease: JobLease) -> Held | None:
        """Return the holder of this lease; None if it was settled, has ended, is lost, or is another client's."""
        return self._owners.get(lease.owner_token)

    def stashed(self, queue: str) -> int:
        """Return how many jobs of this queue are reserved here, and wait to be fetched."""
        return sum(held.lease.queue == queue and held.stashed for held in list(self._owners.values()))

    def lost(self) -> list[JobLease]:
        """See `QueueBackend.lost`."""
        self.check_process()
        self.tidy()
        with self._changing:
            lost, self._lost = self._lost, []
            return lost

    def tidy(self) -> None:
        """Drop lines that have died, or whose leases have all ended unsettled. No I/O that waits."""
        with self._changing:
            holding = list(self._holding)
        for line in holding:
            if line.lock.acquire(blocking=False):  # else the thread that speaks on it notices
                if not line.broken and line.has_died():
                    self._drop(line, None)
                self.give_back(line)

    # --- the set ---------------------------------------------------------------------------------------

    def _pop_idle(self) -> Line | None:
        with self._changing:
            for line in reversed(self._idle):
                if line.lock.acquire(blocking=False):
                    del self._idle[line]
                    return line
        return None

    def _take_holding(self) -> Line | None:
        """Return a line with leases, and with room for more, on which nobody speaks just now; its lock taken."""
        self.check_usable()
        with self._changing:
            holding = list(self._holding)
        for line in holding:
            if len(line.held) < MOST_HELD and line.lock.acquire(blocking=False):
                if line.held and not line.broken and not line.has_died():
                    return line
                if line.held and not line.broken:
                    self._drop(line, None)
                line.lock.release()
        return None

    def _open(self) -> Line:
        try:
            line = Line(self.address)
        except OSError as error:
            raise explain_unreached(error, self.address) from error
        line.lock.acquire()
        with self._changing:
            self._open_lines.add(line)
        if self.closed:
            self._drop(line, None)
            self.check_usable()
        return line

    def give_back(self, line: Line) -> None:
        """Put a line where it belongs now, and release its lock; for who took the lock himself.

        One whose leases have all ended unsettled is closed: beanstalkd 1.12 may not notice that a lease has run out
        before its line speaks again.
        """
        surplus = self._forget_ended(line) and not line.held
        with self._changing:
            self._holding.pop(line, None)
            if line.held:
                self._holding[line] = None
            elif not line.broken:
                self._idle[line] = None
                surplus = surplus or self.closed or len(self._idle) > SPARE
        if surplus and not line.broken:
            self._drop(line, None)
        line.lock.release()

    def _forget_ended(self, line: Line) -> bool:
        """Forget leases that nobody settled in time; return whether there were any."""
        now = self.clock.boot()
        if now < line.ends_first:
            return False
        before = len(line.held)
        for held in list(line.held.values()):
            if held.lease.expires_at <= now:
                self.forget(held)
        line.ends_first = min((held.lease.expires_at for held in line.held.values()), default=now) + _LAZINESS
        return len(line.held) < before

    def broken(self, line: Line, error: BaseException) -> BackendUnavailable:
        """Drop a line, whose lock was taken, and say what its break means."""
        self._drop(line, error)
        if self.closed:
            return BackendUnavailable(f"the connection to {self.address.title} was closed: open the backend again")
        return explain_break(error, self.address)

    def _drop(self, line: Line, error: BaseException | None) -> None:
        """Close a broken or unneeded line: its leases are lost. Called with its lock taken."""
        now = self.clock.boot()
        helds = list(line.held.values())
        for held in helds:
            self.forget(held)
        line.close()
        lost = [held.lease for held in helds if not held.stashed and now < held.lease.expires_at and not self.closed]
        with self._changing:
            for lines in (self._idle, self._holding):
                lines.pop(line, None)
            self._open_lines.discard(line)
            self._lost += lost
        if lost:
            _log.warning(
                "a connection to %s broke: %d leases that it owned are lost, and their messages go to whoever fetches"
                " next (%s)",
                self.address.title,
                len(lost),
                error or "it was closed by the other side",
            )


_LAZINESS = 1.0
"""Seconds for which a lease that has ended may still be remembered: it is refused by its deadline all the same."""
