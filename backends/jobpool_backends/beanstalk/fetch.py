"""Leasing: many reserves in one write, the server's counts of each job, and repairs of those that need any.

The number of ready jobs is unknown, and each reserve that finds none costs the server an answer. So a fetch asks for
few at first, and for more as long as it gets all that it asked for. If the fetch before got many, it asks for many at
once. `stats-job` of all these jobs is one more write. Only it tells how often a job was reserved before, which reveals
crashes, and how long its lease lasts.

A crash is charged by a copy with new counters, so that nobody charges it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import greenstalk
from msgspec.structs import replace

from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk.connection import Answer, Connection, Counters, Held, number_of, read_counters
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.enqueue import Copy, put_copies
from jobpool_backends.beanstalk.records import EXPIRED, CountedCrash, Record, count_crashes, from_bytes, to_bytes
from jobpool_backends.reaping import NativeReaping

FIRST_RESERVES = 4  # in the first write of a fetch from a queue where the last one found nothing
MAX_RESERVES_PER_WRITE = 128  # a small number, so that nobody who renews waits long for the connection
PUT_OFF_S = 60  # delay of a message that is to die, where the server takes no copy of it


class Fetcher:
    """The leaser of messages. `scheme` names the broker in leases."""

    def __init__(self, connections: Connections, ledger: NativeReaping, scheme: str) -> None:
        self._connections = connections
        self._address = connections.address
        self._ledger = ledger
        self._clock = connections.clock
        self._scheme = scheme
        self._hope: dict[str, int] = {}

    def fetch(self, queue: str, limit: int) -> list[Held]:
        """Reserve up to `limit` messages. All are marked as prefetched."""
        with self._connections.fetching() as connection:
            connection.watch([self._address.tube(queue)])
            found: list[Held] = []
            ask = min(limit, self._hope.get(queue, FIRST_RESERVES), MAX_RESERVES_PER_WRITE)
            while ask > 0:
                before = self._clock.boot()
                # `TIMED_OUT` and `DEADLINE_SOON` mean that nothing is ready.
                answers = map(connection.check, connection.burst([b"reserve-with-timeout 0"] * ask))
                jobs = [answer for answer in answers if isinstance(answer, greenstalk.Job)]
                found += self.take_in(connection, jobs, before)
                if len(jobs) < ask:
                    break
                ask = min(limit - len(found), 4 * ask, MAX_RESERVES_PER_WRITE)
            self._hope[queue] = max(FIRST_RESERVES, len(found))
            return found

    def take_in(
        self, connection: Connection, jobs: Sequence[greenstalk.Job[bytes]], before: float, *, touch: bool = False
    ) -> list[Held]:
        """Turn jobs reserved on this connection into leases; fewer, if some may not be handed out.

        Called with its lock taken. The leases began after `before` (boot clock); with `touch` they begin now, because
        it is not known when the jobs were reserved.
        """
        touches = [b"touch %d" % job.id for job in jobs] if touch else []
        told = connection.burst([*touches, *(b"stats-job %d" % job.id for job in jobs)])[len(touches) :]
        word = secrets.token_hex(8)
        found = []
        for job, answer in zip(jobs, told, strict=True):
            if isinstance(answer, bytes):
                held = self._look_at(connection, job, read_counters(answer), before, word)
                if held is not None:
                    found.append(held)
            else:
                connection.check(answer)  # NOT_FOUND: its lease has ended already, and it was deleted
        return found

    def _look_at(
        self, connection: Connection, job: greenstalk.Job[bytes], counters: Counters, before: float, word: str
    ) -> Held | None:
        """Own a reserved job, or the copy that is handed out in its place. `word`: half of its owner token."""
        number = job.id
        record, body = from_bytes(job.body, number)
        if not record.ours:
            record = replace(record, enqueued_at=self._clock.wall() - counters.age)
        if counters.crashes or record.is_dead:
            repaired = self._repair(connection, number, record, body, counters)
            if repaired is None:
                return None
            number, record = repaired
        if number != job.id:
            before = self._clock.boot()
            copy, told = connection.burst([b"reserve-job %d" % number, b"stats-job %d" % number])
            if not isinstance(copy, greenstalk.Job) or not isinstance(told, bytes):  # another client has it
                return None
            counters = read_counters(told)
        owner, ends, deliveries = f"{word}{number:016x}", before + counters.ttr, record.deliveries + counters.reserves
        history = record.attempts, record.crashes, deliveries, record.enqueued_at, record.begun
        queue = self._address.queue(counters.tube) or counters.tube
        lease = JobLease(record.id, queue, body, number, owner, ends, self._scheme, *history)
        held = Held(number, connection, lease, record, counters.priority, counters.ttr, prefetched=True)
        self._connections.own(held)
        return held

    def _repair(
        self, connection: Connection, job: int, record: Record, body: bytes, counters: Counters
    ) -> tuple[int, Record] | None:
        """Put right a kicked dead letter or a crashed message that is reserved here.

        Return the number and header of the job to hand out in its place: its own, or one still to reserve. None:
        nothing, for now or forever.
        """
        bury = b"bury %d %d" % (job, counters.priority)
        if record.is_dead:
            connection.burst([bury])
            return None
        queue = self._address.queue(counters.tube) or counters.tube
        handed_out = replace(record, deliveries=record.deliveries + counters.reserves - 1)
        policy, now = self._ledger.policy(queue), self._clock.wall()
        charged = count_crashes(handed_out, counters.crashes, EXPIRED, policy, now)
        answer = self._put(connection, charged, body, counters)
        copy = number_of(answer)
        if copy is None:
            if not charged.record.is_dead:  # the crash stays uncharged, to be found again
                return job, replace(charged.record, deliveries=record.deliveries)
            too_big = isinstance(answer, greenstalk.JobTooBigError)  # another program's, without room for a header
            connection.burst([bury if too_big else b"release %d %d %d" % (job, counters.priority, PUT_OFF_S)])
            return None
        [gone] = connection.burst([b"delete %d" % job])
        if isinstance(gone, greenstalk.NotFoundError):  # the lease has ended meanwhile: its new holder charges it
            connection.burst([b"delete %d" % copy])
            return None
        self._ledger.add(charged.reaped(queue))
        return None if charged.record.is_dead or charged.delay else (copy, charged.record)

    def _put(self, connection: Connection, charged: CountedCrash, body: bytes, counters: Counters) -> Answer:
        largest = self._connections.max_job_size(connection)
        packed = to_bytes(charged.record, body, largest)
        if len(packed) > largest:
            return greenstalk.JobTooBigError()
        dead = charged.record.is_dead
        answers: dict[int, Answer] = {}
        copy = Copy(counters.tube, counters.priority, charged.delay, counters.ttr, packed, dead)
        put_copies(connection, [copy], answers)
        return answers[0]
