"""Repairs of jobs that were reserved and may not be handed out as they are: kicked dead letters, crashed messages.

A crash is found by the server's counts when its message is reserved next. It is charged by a copy with new counters, so
that nobody charges it again. The copy is put first and then the original is deleted: a break in between leaves both.
"""

from __future__ import annotations

import random
from dataclasses import replace

import greenstalk

from jobpool.clock import Clock
from jobpool_backends.beanstalk.burst import Answer
from jobpool_backends.beanstalk.charging import EXPIRED, Charge, Ledger, charge
from jobpool_backends.beanstalk.counters import Counters
from jobpool_backends.beanstalk.dying import Copy, number_of, put_copies
from jobpool_backends.beanstalk.line import Line
from jobpool_backends.beanstalk.lines import Lines
from jobpool_backends.beanstalk.records import Record, to_bytes

LATER = 60
"""Seconds for which a message that is to die is put off, where the server takes no copy of it."""


class Mender:
    """The repair of jobs met on a line.

    Args:
        lines: To the server.
        ledger: The crash policies.
        clock: Its wall clock dates crashes.
    """

    def __init__(self, lines: Lines, ledger: Ledger, clock: Clock) -> None:
        self._lines = lines
        self._ledger = ledger
        self._clock = clock
        self._draw = random.Random().uniform

    def mend(
        self, line: Line, queue: str, job: int, record: Record, body: bytes, counters: Counters
    ) -> tuple[int, Record] | None:
        """Put right a job that is reserved on this line. Return the number and header of the job to hand out in its
        place: its own, or one still to reserve. None: nothing, for now or forever.
        """
        if record.is_dead:
            line.burst([b"bury %d %d" % (job, counters.priority)])
            return None
        handed_out = replace(record, deliveries=record.deliveries + counters.reserves - 1)
        policy = self._ledger.policy(queue)
        charged = charge(handed_out, counters.crashes, EXPIRED, policy, self._clock.wall(), self._draw)
        answer = self._put(line, charged, body, counters)
        copy = number_of(answer)
        if copy is None:
            if isinstance(answer, greenstalk.JobTooBigError) and charged.record.is_dead:
                line.burst([b"bury %d %d" % (job, counters.priority)])  # another program's, without room for a header
                return None
            return self._put_off(line, job, record, charged, counters)
        [gone] = line.burst([b"delete %d" % job])
        if isinstance(gone, greenstalk.NotFoundError):  # the lease has ended meanwhile: its new holder charges it
            line.burst([b"delete %d" % copy])
            return None
        self._ledger.note(queue, charged)
        return None if charged.record.is_dead or charged.delay else (copy, charged.record)

    def _put(self, line: Line, charged: Charge, body: bytes, counters: Counters) -> Answer:
        packed = to_bytes(charged.record, body, self._lines.max_job_size(line))
        dead = charged.record.is_dead
        answers: dict[int, Answer] = {}
        put_copies(line, [Copy(counters.tube, counters.priority, charged.delay, counters.ttr, packed, dead)], answers)
        return answers[0]

    def _put_off(
        self, line: Line, job: int, record: Record, charged: Charge, counters: Counters
    ) -> tuple[int, Record] | None:
        """Leave the crash uncharged, to be found again: the server takes no copy now (it drains, or has no memory)."""
        if not charged.record.is_dead:
            return job, replace(charged.record, deliveries=record.deliveries)
        line.burst([b"release %d %d %d" % (job, counters.priority, LATER)])
        return None
