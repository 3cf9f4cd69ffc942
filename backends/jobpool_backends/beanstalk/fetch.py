"""Leasing: many reserves in one write, the server's counts of each job, and repairs of those that need any.

The number of ready jobs is unknown, and each reserve that finds none costs the server an answer. So a fetch asks for
few at first, and for more as long as it gets all that it asked for. If the fetch before got many, it asks for many at
once. `stats-job` of all these jobs is one more write. Only it tells how often a job was reserved before, which reveals
crashes, and how long its lease lasts.

A crash is charged by a copy with new counters, so that nobody charges it again. The copy is put first and then the
original is deleted: a break in between leaves both.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import greenstalk

from jobpool.clock import Clock
from jobpool.message.lease import make_lease
from jobpool_backends.beanstalk.answers import Counters, read_counters
from jobpool_backends.beanstalk.connection import Answer, Connection, Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.enqueue import Copy, number_of, put_copies
from jobpool_backends.beanstalk.reap import EXPIRED, Charge, CrashLedger, charge
from jobpool_backends.beanstalk.records import Record, from_bytes, to_bytes

FIRST_RESERVES = 4
"""Reserves in the first write of a fetch from a queue where the last one found nothing."""

MAX_RESERVES_PER_WRITE = 128
"""A small number, so that nobody who renews waits long for the connection."""

PUT_OFF_S = 60
"""Delay of a message that is to die, where the server takes no copy of it."""

_RESERVE = b"reserve-with-timeout 0"


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Jobs that were reserved together.

    Attributes:
        before: Boot-clock seconds before their leases began.
        word: 16 hex characters, fresh: half of each owner token. The other half is the job's number.
    """

    connection: Connection
    before: float
    word: str


class Fetcher:
    """The leaser of messages. `scheme` names the broker in leases."""

    def __init__(self, connections: Connections, ledger: CrashLedger, clock: Clock, scheme: str) -> None:
        self._connections = connections
        self._ledger = ledger
        self._clock = clock
        self._scheme = scheme
        self._hope: dict[str, int] = {}
        self._draw = random.Random().uniform

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
            # `TIMED_OUT` and `DEADLINE_SOON` mean that nothing is ready.
            answers = [connection.check(answer) for answer in connection.burst([_RESERVE] * ask)]
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
        reservation = Reservation(connection, before, secrets.token_hex(8))
        found = []
        for job, answer in zip(jobs, told, strict=True):
            if isinstance(answer, bytes):
                held = self._look_at(reservation, job, read_counters(answer))
                if held is not None:
                    found.append(held)
            else:
                connection.check(answer)  # NOT_FOUND: its lease has ended already, and it was deleted
        return found

    def _look_at(self, reservation: Reservation, job: greenstalk.Job[bytes], counters: Counters) -> Held | None:
        record, body = from_bytes(job.body, job.id)
        if not record.ours:
            record = replace(record, enqueued_at=self._clock.wall() - counters.age)
        if not counters.crashes and not record.is_dead:
            return self._hold(reservation, job.id, record, body, counters)
        repaired = self._repair(reservation.connection, job.id, record, body, counters)
        if repaired is None:
            return None
        number, record = repaired
        if number == job.id:
            return self._hold(reservation, number, record, body, counters)
        before = self._clock.boot()
        copy, told = reservation.connection.burst([b"reserve-job %d" % number, b"stats-job %d" % number])
        if not isinstance(copy, greenstalk.Job) or not isinstance(told, bytes):  # somebody else has it
            return None
        return self._hold(replace(reservation, before=before), number, record, body, read_counters(told))

    def _hold(self, reservation: Reservation, number: int, record: Record, body: bytes, counters: Counters) -> Held:
        lease = make_lease(
            record.id,
            self._queue(counters),
            body,
            number,
            f"{reservation.word}{number:016x}",
            reservation.before + counters.ttr,
            self._scheme,
            record.attempts,
            record.crashes,
            record.deliveries + counters.reserves,
            record.enqueued_at,
            record.begun,
        )
        held = Held(number, reservation.connection, lease, record, counters.priority, counters.ttr, prefetched=True)
        self._connections.own(held)
        return held

    def _queue(self, counters: Counters) -> str:
        return self._connections.address.queue(counters.tube) or counters.tube

    # --- repairs ---------------------------------------------------------------------------------------

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
        queue = self._queue(counters)
        handed_out = replace(record, deliveries=record.deliveries + counters.reserves - 1)
        policy = self._ledger.policy(queue)
        charged = charge(handed_out, counters.crashes, EXPIRED, policy, self._clock.wall(), self._draw)
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
        self._ledger.note(queue, charged)
        return None if charged.record.is_dead or charged.delay else (copy, charged.record)

    def _put(self, connection: Connection, charged: Charge, body: bytes, counters: Counters) -> Answer:
        packed = to_bytes(charged.record, body, self._connections.max_job_size(connection))
        dead = charged.record.is_dead
        copy = Copy(counters.tube, counters.priority, charged.delay, counters.ttr, packed, dead)
        answers: dict[int, Answer] = {}
        put_copies(connection, [copy], answers)
        return answers[0]
