"""Repairs of jobs that were reserved and may not be handed out as they are: kicked dead letters, crashed messages.

A crash is found by the server's counts when its message is reserved next. It is charged by a copy with new counters, so
that nobody charges it again. The copy is put first and then the original is deleted: a break in between leaves both.
"""

from __future__ import annotations

import random
from dataclasses import replace

import greenstalk

from jobpool.clock import Clock
from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.counters import Counters
from jobpool_backends.beanstalk.dying import Copy, number_of, put_copies
from jobpool_backends.beanstalk.protocol import Answer
from jobpool_backends.beanstalk.reap import EXPIRED, Charge, CrashLedger, charge
from jobpool_backends.beanstalk.records import Record, to_bytes

PUT_OFF_S = 60
"""Seconds for which a message that is to die is put off, where the server takes no copy of it."""


class Repairer:
    """The repair of jobs met on a connection.

    Args:
        connections: To the server.
        ledger: The crash policies.
        clock: Its wall clock dates crashes.
    """

    def __init__(self, connections: Connections, ledger: CrashLedger, clock: Clock) -> None:
        self._connections = connections
        self._ledger = ledger
        self._clock = clock
        self._draw = random.Random().uniform

    def repair(
        self, connection: Connection, queue: str, job: int, record: Record, body: bytes, counters: Counters
    ) -> tuple[int, Record] | None:
        """Put right a job that is reserved on this connection. Return the number and header of the job to hand out in its
        place: its own, or one still to reserve. None: nothing, for now or forever.
        """
        if record.is_dead:
            connection.burst([b"bury %d %d" % (job, counters.priority)])
            return None
        handed_out = replace(record, deliveries=record.deliveries + counters.reserves - 1)
        policy = self._ledger.policy(queue)
        charged = charge(handed_out, counters.crashes, EXPIRED, policy, self._clock.wall(), self._draw)
        answer = self._put(connection, charged, body, counters)
        copy = number_of(answer)
        if copy is None:
            if isinstance(answer, greenstalk.JobTooBigError) and charged.record.is_dead:
                connection.burst(
                    [b"bury %d %d" % (job, counters.priority)]
                )  # another program's, without room for a header
                return None
            return self._put_off(connection, job, record, charged, counters)
        [gone] = connection.burst([b"delete %d" % job])
        if isinstance(gone, greenstalk.NotFoundError):  # the lease has ended meanwhile: its new holder charges it
            connection.burst([b"delete %d" % copy])
            return None
        self._ledger.note(queue, charged)
        return None if charged.record.is_dead or charged.delay else (copy, charged.record)

    def _put(self, connection: Connection, charged: Charge, body: bytes, counters: Counters) -> Answer:
        packed = to_bytes(charged.record, body, self._connections.max_job_size(connection))
        dead = charged.record.is_dead
        answers: dict[int, Answer] = {}
        put_copies(
            connection, [Copy(counters.tube, counters.priority, charged.delay, counters.ttr, packed, dead)], answers
        )
        return answers[0]

    def _put_off(
        self, connection: Connection, job: int, record: Record, charged: Charge, counters: Counters
    ) -> tuple[int, Record] | None:
        """Leave the crash uncharged, to be found again: the server takes no copy now (it drains, or has no memory)."""
        if not charged.record.is_dead:
            return job, replace(charged.record, deliveries=record.deliveries)
        connection.burst([b"release %d %d %d" % (job, counters.priority, PUT_OFF_S)])
        return None
