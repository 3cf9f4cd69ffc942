"""The set of lines to one beanstalkd, and which of them owns what.

A line without leases is idle, and who needs one takes it; nobody waits behind another. A line with leases is holding:
whoever settles or renews goes to it, and more is fetched on it. A line that breaks loses all its leases at once, for
the server gives them to others; they are remembered until somebody asks (`lost`), and told in the log. Nothing is tried
again: a kept line that has died meanwhile is noticed before it is used.

A thread waits for the lock of a line only while it has none, but for `tell`, which takes those of several in their
order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import greenstalk

from jobpool.clock import Clock
from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool.lease import JobLease
from jobpool_backends.beanstalk.address import Address
from jobpool_backends.beanstalk.burst import PIECE, Answer
from jobpool_backends.beanstalk.held import Held
from jobpool_backends.beanstalk.line import Line
from jobpool_backends.beanstalk.trouble import TROUBLE, explain_break, explain_unreached, refusal

SPARE = 4
"""Idle lines that are kept; more are closed."""

MOST_HELD = 256
"""Leases on one line beyond which the next are fetched on another: the server looks through all of a line's leases for
the one that ends first, again and again."""

Told = dict[Held, Answer | BackendUnavailable]
"""What came of a command about each lease. Missing: it had ended before. An error: whether the server did it, nobody
knows; the lease is lost."""

_log = logging.getLogger("jobpool.beanstalk")


class Lines:
    """All lines of a backend; any number of threads at once, never across a fork.

    Args:
        address: Where they lead to.
        clock: Its boot clock tells when leases end.
    """

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self._clock = clock
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
        """An idle line, for this block alone; leases that it then has stay with it.

        Within, trouble with the connection ends the line and becomes `BackendUnavailable`, and what the server refuses
        what `trouble` says; `NotFoundError`, `TimedOutError` and `DeadlineSoonError` come through. Of a `burst` the
        refusals are values: see `check`.

        Raises BackendUnavailable. Blocks as long as connecting does, where no line is idle.
        """
        with self.speaking(self.take_idle()) as line:
            yield line

    @contextmanager
    def fetching(self) -> Iterator[Line]:
        """A line to reserve on, for this block alone: one that has leases already, if any has room. As `spare`."""
        with self.speaking(self._take_holding() or self.take_idle()) as line:
            yield line

    @contextmanager
    def speaking(self, line: Line) -> Iterator[Line]:
        """This line, whose lock was taken, for this block; then it is given back. Errors as in `spare`."""
        try:
            yield line
        except TROUBLE as error:
            raise self._broken(line, error) from error
        except greenstalk.Error as error:
            meaning = refusal(error, self.address)
            if meaning is None:
                raise
            raise meaning from error
        except JobpoolError:
            raise
        except BaseException as error:  # in the middle of an exchange: what comes next would be the wrong answer
            self._drop(line, error)
            raise
        finally:
            self._give_back(line)

    def take_idle(self) -> Line:
        """A line without leases, its lock taken; `speaking` gives it back. Raises and blocks as `spare`."""
        self.check_usable()
        while (line := self._pop_idle()) is not None:
            if not line.has_died():
                return line
            self._drop(line, None)
            line.lock.release()
        return self._open()

    def check_usable(self) -> None:
        """Raise when this was closed, or inherited by a fork."""
        if self.closed:
            raise BackendUnavailable(f"the connection to {self.address.title} was closed: open the backend again")
        self._check_process()

    @property
    def is_inherited(self) -> bool:
        """Whether the lines are those of a parent process."""
        return os.getpid() != self._pid

    def _check_process(self) -> None:
        if self.is_inherited:
            raise ConfigurationError(
                f"the connections to {self.address.title} were opened by process {self._pid}, before a fork, and cannot"
                " be shared: open the backend after the fork, in the process that uses it"
            )

    def check(self, answer: Answer) -> Answer:
        """This answer; of one that is trouble, what it means is raised."""
        if isinstance(answer, greenstalk.Error):
            meaning = refusal(answer, self.address)
            if meaning is not None:
                raise meaning from answer
        return answer

    def put_refusal(self, answer: Answer) -> JobpoolError:
        """What it means that this was the answer to a put, and not `INSERTED`."""
        if isinstance(answer, greenstalk.JobTooBigError):
            self._max_job_size = 0  # the server is another one than that which was asked
        error = answer if isinstance(answer, greenstalk.Error) else greenstalk.BuriedError()
        return refusal(error, self.address) or explain_break(error, self.address)

    def max_job_size(self) -> int:
        """Bytes that a job may have; asked for once. Raises and blocks as `spare`."""
        if not self._max_job_size:
            with self.spare() as line:
                self._max_job_size = int(line.client.stats()["max-job-size"])
        return self._max_job_size

    def close(self) -> None:
        """Close all lines; who waits on one comes back. The server gives their leases to others. Safe to call twice."""
        with self._changing:
            self.closed = True
            open_lines = list(self._open_lines)
        for line in open_lines:
            line.interrupt()
            if line.lock.acquire(blocking=False):  # else who speaks on it meets its end, and closes it
                self._drop(line, None)
                line.lock.release()

    # --- leases ----------------------------------------------------------------------------------------

    def own(self, held: Held) -> None:
        """Its line has reserved it. Called with the line's lock taken."""
        held.line.held[held.job] = held
        self._owners[held.lease.owner_token] = held

    def forget(self, held: Held) -> None:
        """Its line has it no more."""
        if held.is_owned:
            del held.line.held[held.job]
        self._owners.pop(held.lease.owner_token, None)

    def owner(self, lease: JobLease) -> Held | None:
        """Who has this lease here; None when it was settled, has ended or is lost, or is another client's."""
        return self._owners.get(lease.owner_token)

    def stashed(self, queue: str) -> int:
        """Jobs of this queue that are reserved here, and wait to be fetched."""
        return sum(held.lease.queue == queue and held.stashed for held in list(self._owners.values()))

    def tell(self, helds: Sequence[Held], command: Callable[[Held], bytes], *, ends: bool) -> Told:
        """Send a command about each lease on the line that owns it, and not for those that have ended by then.

        Args:
            helds: On any number of lines: all are written to before any is read from.
            command: About one of them.
            ends: Whether the command ends the lease.

        Blocks for a round trip, and for those that others have under way on these lines.
        """
        self._check_process()
        works: dict[Line, list[Held]] = {}
        for held in helds:
            works.setdefault(held.line, []).append(held)
        order = sorted(works, key=lambda line: line.serial)
        for line in order:
            line.lock.acquire()
        told: Told = {}
        try:
            for start in range(0, max(map(len, works.values()), default=0), PIECE):
                pieces = {line: self._still_owned(works[line][start : start + PIECE]) for line in order}
                self._exchange(pieces, command, told)
            self._note(told, ends=ends)
        finally:
            for line in order:
                self._give_back(line)
        return told

    def _still_owned(self, helds: list[Held]) -> list[Held]:
        now = self._clock.boot()
        return [held for held in helds if held.is_owned and now < held.lease.expires_at]

    def _exchange(self, pieces: dict[Line, list[Held]], command: Callable[[Held], bytes], told: Told) -> None:
        """Write to all lines, then read from all. One that breaks spoils its own leases only."""
        sent = []
        for line, helds in pieces.items():
            try:
                line.write([command(held) for held in helds])
                sent.append(line)
            except TROUBLE as error:
                told |= dict.fromkeys(helds, self._broken(line, error))
        limit = self.address.timeout
        for line in sent:
            helds = pieces[line]
            try:
                told |= zip(helds, line.read(len(helds), limit), strict=True)
            except TROUBLE as error:
                told |= dict.fromkeys(helds, self._broken(line, error))
                limit = _HURRY if isinstance(error, TimeoutError) else limit

    def _note(self, told: Told, *, ends: bool) -> None:
        for held, answer in told.items():
            if ends or isinstance(answer, greenstalk.NotFoundError):
                self.forget(held)

    def lost(self) -> list[JobLease]:
        """See `QueueBackend.lost`."""
        self._check_process()
        self.tidy()
        with self._changing:
            lost, self._lost = self._lost, []
            return lost

    def tidy(self) -> None:
        """Drop lines that have died, or whose leases have all ended unsettled. No I/O that waits."""
        with self._changing:
            holding = list(self._holding)
        for line in holding:
            if line.lock.acquire(blocking=False):  # else who speaks on it notices
                if not line.broken and line.has_died():
                    self._drop(line, None)
                self._give_back(line)

    # --- the set ---------------------------------------------------------------------------------------

    def _pop_idle(self) -> Line | None:
        with self._changing:
            for line in reversed(self._idle):
                if line.lock.acquire(blocking=False):
                    del self._idle[line]
                    return line
        return None

    def _take_holding(self) -> Line | None:
        """A line with leases, and with room for more, on which nobody speaks just now; its lock taken."""
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

    def _give_back(self, line: Line) -> None:
        """Put a line where it belongs now, and release its lock.

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
        """Leases that nobody settled in time are the server's again; whether there were any."""
        now = self._clock.boot()
        if now < line.ends_first:
            return False
        before = len(line.held)
        for held in list(line.held.values()):
            if held.lease.expires_at <= now:
                self.forget(held)
        line.ends_first = min((held.lease.expires_at for held in line.held.values()), default=now) + _LAZINESS
        return len(line.held) < before

    def _broken(self, line: Line, error: BaseException) -> BackendUnavailable:
        """Drop a line, and say what its break means."""
        self._drop(line, error)
        if self.closed:
            return BackendUnavailable(f"the connection to {self.address.title} was closed: open the backend again")
        return explain_break(error, self.address)

    def _drop(self, line: Line, error: BaseException | None) -> None:
        """A line has broken, or is not needed any more: its leases are lost. Called with its lock taken."""
        now = self._clock.boot()
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


_HURRY = 0.1
"""Seconds for an answer when another line's has not come in time, and both were asked at once."""

_LAZINESS = 1.0
"""Seconds for which a lease that has ended may still be remembered: it is refused by its deadline all the same."""
