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
from jobpool_backends.beanstalk.connection import Connection, Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.counters import Counters, read_counters
from jobpool_backends.beanstalk.protocol import Answer
from jobpool_backends.beanstalk.reap import CrashLedger
from jobpool_backends.beanstalk.records import Record, from_bytes
from jobpool_backends.beanstalk.repair import Repairer

FIRST_RESERVES = 4
"""Reserves in the first write of a fetch from a queue where the last one found nothing."""

MAX_RESERVES_PER_WRITE = 128
"""Reserves in one write, so that nobody who renews waits long for the connection."""

_RESERVE = b"reserve-with-timeout 0"


@dataclass(frozen=True, slots=True, eq=False)
class Catch:
    """Jobs that were reserved together.

    Attributes:
        connection: That has them.
        before: Boot-clock seconds before their leases began.
        word: 16 hex characters, fresh: half of each owner token. The other half is the job's number.
    """

    connection: Connection
    before: float
    word: str


class Fetcher:
    """Leases messages.

    Args:
        connections: To the server.
        ledger: The crash policies.
        clock: For deadlines.
        scheme: Name of the broker in leases.
    """

    def __init__(self, connections: Connections, ledger: CrashLedger, clock: Clock, scheme: str) -> None:
        self._connections = connections
        self._clock = clock
        self._scheme = scheme
        self._repairer = Repairer(connections, ledger, clock)
        self._hope: dict[str, int] = {}

    def fetch(self, queue: str, limit: int) -> list[Held]:
        """Reserve up to `limit` messages. All are marked as prefetched."""
        with self._connections.fetching() as connection:
            connection.watch([self._connections.address.tube(queue)])
            return self._reserve(connection, queue, limit)

    def _reserve(self, connection: Connection, queue: str, limit: int) -> list[Held]:
        found: list[Held] = []
        ask = min(limit, self._hope.get(queue, FIRST_RESERVES), MAX_RESERVES_PER_WRITE)
        while ask > 0:
            before = self._clock.boot()
            jobs = self._jobs(connection.burst([_RESERVE] * ask))
            found += self.take_in(connection, jobs, before)
            if len(jobs) < ask:
                break
            ask = min(limit - len(found), 4 * ask, MAX_RESERVES_PER_WRITE)
        self._hope[queue] = max(FIRST_RESERVES, len(found))
        return found

    def _jobs(self, answers: Sequence[Answer]) -> list[greenstalk.Job[bytes]]:
        """Return the jobs that were reserved; `TIMED_OUT` and `DEADLINE_SOON` mean that nothing is ready."""
        jobs = [answer for answer in answers if isinstance(answer, greenstalk.Job)]
        if len(jobs) < len(answers):
            for answer in answers:
                self._connections.check(answer)
        return jobs

    def take_in(
        self, connection: Connection, jobs: Sequence[greenstalk.Job[bytes]], before: float, *, touch: bool = False
    ) -> list[Held]:
        """Turn jobs reserved on this connection into leases; fewer, if some may not be handed out.

        Args:
            connection: Its lock is taken.
            jobs: Reserved just now.
            before: Boot-clock seconds before their leases began.
            touch: Let them begin now, because it is not known when they were reserved.
        """
        touches = [b"touch %d" % job.id for job in jobs] if touch else []
        told = connection.burst([*touches, *(b"stats-job %d" % job.id for job in jobs)])[len(touches) :]
        catch = Catch(connection, before, secrets.token_hex(8))
        found = []
        for job, answer in zip(jobs, told, strict=True):
            if isinstance(answer, bytes):
                held = self._look_at(catch, job, read_counters(answer))
                if held is not None:
                    found.append(held)
            else:
                self._connections.check(answer)  # NOT_FOUND: its lease has ended already, and it was deleted
        return found

    def _look_at(self, catch: Catch, job: greenstalk.Job[bytes], counters: Counters) -> Held | None:
        record, body = from_bytes(job.body, job.id)
        if not record.ours:
            record = replace(record, enqueued_at=self._clock.wall() - counters.age)
        if not counters.crashes and not record.is_dead:
            return self._hold(catch, job.id, record, body, counters)
        repaired = self._repairer.repair(catch.connection, self._queue(counters), job.id, record, body, counters)
        if repaired is None:
            return None
        number, record = repaired
        if number == job.id:
            return self._hold(catch, number, record, body, counters)
        return self._reserve_copy(catch, number, record, body)

    def _reserve_copy(self, catch: Catch, number: int, record: Record, body: bytes) -> Held | None:
        """Reserve what was put just now; None where somebody else has."""
        anew = replace(catch, before=self._clock.boot())
        job, told = catch.connection.burst([b"reserve-job %d" % number, b"stats-job %d" % number])
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
        held = Held(number, catch.connection, lease, record, counters.priority, counters.ttr, prefetched=True)
        self._connections.own(held)
        return held

    def _queue(self, counters: Counters) -> str:
        return self._connections.address.queue(counters.tube) or counters.tube
