"""Leasing: many reserves in one write, and then the server's counts of each job.

The number of ready jobs is unknown, and each reserve that finds none costs the server an answer. So a fetch asks for
few at first, and for more as long as it gets all that it asked for. If the fetch before got many, it asks for many at
once. `stats-job` of all these jobs is one more write. Only it tells how often a job was reserved before, which reveals
crashes, and how long its lease lasts.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import greenstalk

from jobpool.clock import Clock
from jobpool.message.lease import make_lease
from jobpool_backends.beanstalk.burst import Answer
from jobpool_backends.beanstalk.charging import Ledger
from jobpool_backends.beanstalk.counters import Counters, read_counters
from jobpool_backends.beanstalk.line import Held, Line
from jobpool_backends.beanstalk.lines import Lines
from jobpool_backends.beanstalk.mending import Mender
from jobpool_backends.beanstalk.records import Record, from_bytes

FIRST = 4
"""Reserves in the first write of a fetch from a queue where the last one found nothing."""

MOST = 128
"""Reserves in one write, so that nobody who renews waits long for the line."""

_RESERVE = b"reserve-with-timeout 0"


@dataclass(frozen=True, slots=True, eq=False)
class Catch:
    """Jobs that were reserved together.

    Attributes:
        line: That has them.
        before: Boot-clock seconds before their leases began.
        word: 16 hex characters, fresh: half of each owner token. The other half is the job's number.
    """

    line: Line
    before: float
    word: str


class Fetcher:
    """Leases messages.

    Args:
        lines: To the server.
        ledger: The crash policies.
        clock: For deadlines.
        scheme: Name of the broker in leases.
    """

    def __init__(self, lines: Lines, ledger: Ledger, clock: Clock, scheme: str) -> None:
        self._lines = lines
        self._clock = clock
        self._scheme = scheme
        self._mender = Mender(lines, ledger, clock)
        self._hope: dict[str, int] = {}

    def fetch(self, queue: str, limit: int) -> list[Held]:
        """Reserve up to `limit` messages. All are marked as stashed."""
        with self._lines.fetching() as line:
            line.watch([self._lines.address.tube(queue)])
            return self._reserve(line, queue, limit)

    def _reserve(self, line: Line, queue: str, limit: int) -> list[Held]:
        found: list[Held] = []
        ask = min(limit, self._hope.get(queue, FIRST), MOST)
        while ask > 0:
            before = self._clock.boot()
            jobs = self._jobs(line.burst([_RESERVE] * ask))
            found += self.take_in(line, jobs, before)
            if len(jobs) < ask:
                break
            ask = min(limit - len(found), 4 * ask, MOST)
        self._hope[queue] = max(FIRST, len(found))
        return found

    def _jobs(self, answers: Sequence[Answer]) -> list[greenstalk.Job[bytes]]:
        """Return the jobs that were reserved; `TIMED_OUT` and `DEADLINE_SOON` mean that nothing is ready."""
        jobs = [answer for answer in answers if isinstance(answer, greenstalk.Job)]
        if len(jobs) < len(answers):
            for answer in answers:
                self._lines.check(answer)
        return jobs

    def take_in(
        self, line: Line, jobs: Sequence[greenstalk.Job[bytes]], before: float, *, touch: bool = False
    ) -> list[Held]:
        """Turn jobs reserved on this line into leases; fewer, if some may not be handed out.

        Args:
            line: Its lock is taken.
            jobs: Reserved just now.
            before: Boot-clock seconds before their leases began.
            touch: Let them begin now, because it is not known when they were reserved.
        """
        touches = [b"touch %d" % job.id for job in jobs] if touch else []
        told = line.burst([*touches, *(b"stats-job %d" % job.id for job in jobs)])[len(touches) :]
        catch = Catch(line, before, secrets.token_hex(8))
        found = []
        for job, answer in zip(jobs, told, strict=True):
            if isinstance(answer, bytes):
                held = self._look_at(catch, job, read_counters(answer))
                if held is not None:
                    found.append(held)
            else:
                self._lines.check(answer)  # NOT_FOUND: its lease has ended already, and it was deleted
        return found

    def _look_at(self, catch: Catch, job: greenstalk.Job[bytes], counters: Counters) -> Held | None:
        record, body = from_bytes(job.body, job.id)
        if not record.ours:
            record = replace(record, enqueued_at=self._clock.wall() - counters.age)
        if not counters.crashes and not record.is_dead:
            return self._hold(catch, job.id, record, body, counters)
        mended = self._mender.mend(catch.line, self._queue(counters), job.id, record, body, counters)
        if mended is None:
            return None
        number, record = mended
        if number == job.id:
            return self._hold(catch, number, record, body, counters)
        return self._reserve_copy(catch, number, record, body)

    def _reserve_copy(self, catch: Catch, number: int, record: Record, body: bytes) -> Held | None:
        """Reserve what was put just now; None where somebody else has."""
        anew = replace(catch, before=self._clock.boot())
        job, told = catch.line.burst([b"reserve-job %d" % number, b"stats-job %d" % number])
        if not isinstance(job, greenstalk.Job) or not isinstance(told, bytes):
            return None
        return self._hold(anew, number, record, body, read_counters(told))

    def _hold(self, catch: Catch, number: int, record: Record, body: bytes, counters: Counters) -> Held:
        lease = make_lease(
            record.id,
            self._queue(counters),
            body,
            number,
            f"{catch.word}{number:016x}",
            catch.before + counters.ttr,
            self._scheme,
            record.attempts,
            record.crashes,
            record.deliveries + counters.reserves,
            record.enqueued_at,
            record.begun,
        )
        held = Held(number, catch.line, lease, record, counters.priority, counters.ttr, stashed=True)
        self._lines.own(held)
        return held

    def _queue(self, counters: Counters) -> str:
        return self._lines.address.queue(counters.tube) or counters.tube
