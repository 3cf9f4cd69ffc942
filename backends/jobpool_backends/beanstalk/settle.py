"""Ending and renewing leases, on the connections that own them.

An ack is a delete. A release is beanstalkd's own, except for the first one of a job that could have expired. Any change
of the header goes on as a copy. The lease is touched first, so that it cannot end meanwhile; then the copies are put,
and only then the originals are deleted. A break in between leaves both. If a delete is refused all the same, the copies
are deleted again.

A call that failed may be repeated with its id: its finished parts are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import greenstalk
from msgspec import Struct, field
from msgspec.structs import replace

from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import NewMessage
from jobpool.errors import BackendUnavailable, JobpoolError, WriteRefused
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settled, Settlement
from jobpool_backends.beanstalk.connection import Answer, Held, number_of
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.enqueue import Copy, new_copies, put_copies
from jobpool_backends.beanstalk.records import EXPIRED, CountedCrash, Record, count_crashes, to_bytes, whole_seconds
from jobpool_backends.reaping import NativeReaping
from jobpool_backends.shared import lifts_expiry, with_past, with_texts

_MAX_FAILED_CALLS = 100  # calls that failed whose results are remembered
# Command that ends a job → the good answer. `BURIED` to a release is a bad one.
_DONE = {b"delete": b"DELETED", b"release": b"RELEASED", b"bury": b"BURIED"}


class Plan(Struct, eq=False):
    """The steps of a settlement: jobs are put, and then a command ends the original."""

    place: int  # in the call
    end: bytes
    copies: Sequence[Copy] = ()
    charged: CountedCrash | None = None  # of a forfeit
    stands: bool = False
    """True if one of the copies is the message itself: then the settlement stands once they are put. Else the copies
    are follow-ups, and the settlement is unknown until the original is ended.
    """


class Call(Struct, eq=False):
    """A settle call under way."""

    answers: dict[int, Settled]  # by place; also those of a failed call before this one, of the same id
    plans: dict[Held, Plan] = field(default_factory=dict)
    trouble: JobpoolError | None = None  # the reason why some have no answer


class Settler:
    """The settler and renewer of leases. Its boot clock tells when they end."""

    def __init__(self, connections: Connections, ledger: NativeReaping) -> None:
        self._connections = connections
        self._ledger = ledger
        self._clock = connections.clock
        self._failed: dict[str, dict[int, Settled]] = {}

    def renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        """Return each lease for its job's TTR from now; None where it has ended, or its connection does not answer."""
        del ttl
        held_jobs = [self._connections.owner(lease) for lease in leases]
        renewed = self.touch([held for held in held_jobs if held is not None])
        return [renewed.get(held) if held is not None else None for held in held_jobs]

    def touch(self, held_jobs: Sequence[Held]) -> dict[Held, JobLease]:
        """Return the leases that go on, each for its job's TTR from now."""
        before = self._clock.boot()
        told = self._connections.send_each(held_jobs, lambda held: b"touch %d" % held.job, ends=False)
        renewed = {}
        for held, answer in told.items():
            if isinstance(answer, tuple):
                held.lease = renewed[held] = replace(held.lease, expires_at=before + held.ttr)
        return renewed

    def settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        """See `QueueBackend.settle_many`.

        WriteRefused: some were refused and are unchanged; its `answers` are those of the others. BackendUnavailable:
        the result of some is unknown. When the call is repeated, those whose connection is gone are refused, and the
        others done. InvalidJob: a follow-up is larger than the server takes; nothing was settled.
        """
        call = Call(dict(self._failed.get(call_id, ())))
        for place, (lease, settlement) in enumerate(settlements):
            if place not in call.answers:
                self._plan(call, place, lease, settlement, brought.get(place, ()))
        self._end(call, {held: [] for held, plan in call.plans.items() if not plan.copies})
        copied = [held for held, plan in call.plans.items() if plan.copies]
        if copied:
            touched = self.touch(copied)
            call.answers |= {call.plans[held].place: Settled.EXPIRED for held in copied if held not in touched}
            self._end(call, self._put(call, [held for held in copied if held in touched]))
        if call.trouble is None:
            self._failed.pop(call_id, None)
            return [call.answers[place] for place in range(len(settlements))]
        if len(self._failed) >= _MAX_FAILED_CALLS:
            self._failed.clear()
        self._failed[call_id] = {
            place: Settled.ALREADY if answer is Settled.OK else answer for place, answer in call.answers.items()
        }
        if isinstance(call.trouble, WriteRefused):
            told = [call.answers.get(place) for place in range(len(settlements))]
            raise WriteRefused(str(call.trouble), told) from call.trouble
        raise call.trouble

    def _plan(
        self, call: Call, place: int, lease: JobLease, settlement: Settlement, brought: Sequence[NewMessage]
    ) -> None:
        held = self._connections.owner(lease)
        kind = type(settlement)
        if held is None or held in call.plans:
            call.answers[place] = Settled.NOT_IN_FLIGHT
        elif self._clock.boot() >= held.lease.expires_at:
            call.answers[place] = Settled.EXPIRED
        elif kind is Ack and not brought:
            call.plans[held] = Plan(place, b"delete %d" % held.job)
        elif isinstance(settlement, Release) and not lifts_expiry(lease, settlement):
            delay = whole_seconds(settlement.delay)
            call.plans[held] = Plan(place, b"release %d %d %d" % (held.job, held.priority, delay))
        else:
            call.plans[held] = self._plan_copies(place, held, settlement, brought)

    def _plan_copies(self, place: int, held: Held, settlement: Settlement, brought: Sequence[NewMessage]) -> Plan:
        """Return the plan of a settlement by copies. Raises InvalidJob when the server takes no job of that size."""
        record = replace(held.record, deliveries=held.lease.deliveries)
        match settlement:
            case Nack(delay, error, cause):
                retried = replace(with_texts(record, error, cause), attempts=record.attempts + 1)
                return self._go_on(place, held, retried, whole_seconds(delay))
            case Abandon(reason, error, cause):
                failed = replace(with_texts(record, error, cause), attempts=record.attempts + settlement.attempts)
                dead = replace(failed, reason=reason, died_at=self._clock.wall())
                return self._go_on(place, held, dead, brought=new_copies(self._connections, brought))
            case Release(delay):
                return self._go_on(place, held, replace(record, begun=True), whole_seconds(delay))
            case Forfeit(cause):
                policy, now = self._ledger.policy(held.lease.queue), self._clock.wall()
                charged = count_crashes(record, 1, cause or EXPIRED, policy, now)
                return replace(self._go_on(place, held, charged.record, charged.delay), charged=charged)
            case Move():
                copies = [self._move(held, message) for message in brought]
                return Plan(place, b"delete %d" % held.job, copies, stands=True)
            case _:
                return Plan(place, b"delete %d" % held.job, new_copies(self._connections, brought))

    def _go_on(self, place: int, held: Held, record: Record, delay: int = 0, brought: Sequence[Copy] = ()) -> Plan:
        """Let the message go on with this header; to die, a job of another program is buried as it is.

        Raises InvalidJob: it has no room for a header, and is to live.
        """
        largest = self._connections.max_job_size()
        packed = to_bytes(record, held.lease.body, largest)
        if len(packed) > largest:
            if not record.is_dead:
                raise self._connections.put_refusal(greenstalk.JobTooBigError())
            return Plan(place, b"bury %d %d" % (held.job, held.priority), brought)
        tube = self._connections.address.tube(held.lease.queue)
        copy = Copy(tube, held.priority, delay, held.ttr, packed, record.is_dead)
        return Plan(place, b"delete %d" % held.job, [copy, *brought], stands=True)

    def _move(self, held: Held, message: NewMessage) -> Copy:
        """Return the copy of a moved message: it keeps its enqueue time, the length of its lease, and how it failed."""
        moved = with_past(message, (held.record.last_error, held.record.cause))
        [copy] = new_copies(self._connections, [moved], since=held.record.enqueued_at)
        return replace(copy, ttr=held.ttr)

    def _put(self, call: Call, held_jobs: Sequence[Held]) -> dict[Held, list[int]]:
        """Put the copies; return the numbers of its own for each lease that may now be deleted.

        After a break in the middle those are done whose copies are there for certain: a repeated call makes no more.
        Incomplete sets of copies are deleted again.
        """
        answers: dict[int, Answer] = {}  # by the copy's place; after a break there are none to the last ones
        try:
            with self._connections.spare() as connection:
                put_copies(connection, [copy for held in held_jobs for copy in call.plans[held].copies], answers)
        except JobpoolError as error:
            call.trouble = error
        places = count()
        put, alone = {}, []
        for held in held_jobs:
            own = [answers.get(next(places)) for _ in call.plans[held].copies]
            numbers = [number for answer in own if answer and (number := number_of(answer)) is not None]
            if len(numbers) == len(own):
                put[held] = numbers
            else:
                alone += numbers
                refused = next((answer for answer in own if answer and number_of(answer) is None), None)
                call.trouble = self._connections.put_refusal(refused) if refused else call.trouble
        self._undo(alone)
        return put

    def _end(self, call: Call, put: dict[Held, list[int]]) -> None:
        """End the originals, whose copies have these numbers.

        If a connection breaks meanwhile, copies that stand for the message count as done. Others stay too: the original
        may be gone, and the result is unknown.
        """
        told = self._connections.send_each(list(put), lambda held: call.plans[held].end, ends=True)
        alone = []
        for held, numbers in put.items():
            plan = call.plans[held]
            answer = told.get(held)  # None: it was not sent, because the lease had ended
            if isinstance(answer, greenstalk.OutOfMemoryError):  # of a release with a delay: the job is hidden
                answer = greenstalk.InternalError()
            broken = isinstance(answer, JobpoolError | greenstalk.InternalError)
            done = isinstance(answer, tuple) and answer[0] == _DONE[plan.end.partition(b" ")[0]]
            if done or (broken and plan.stands):
                call.answers[plan.place] = Settled.OK
                if plan.charged is not None:
                    self._ledger.add(plan.charged.reaped(held.lease.queue))
                continue
            if answer is None or isinstance(answer, greenstalk.NotFoundError):
                call.answers[plan.place] = Settled.EXPIRED
            else:
                call.trouble = answer if isinstance(answer, JobpoolError) else self._connections.put_refusal(answer)
            if not broken:
                alone += numbers
        self._undo(alone)

    def _undo(self, numbers: Sequence[int]) -> None:
        """Delete copies again, but for what somebody else has reserved by now, or cannot be reached."""
        if numbers:
            with suppress(BackendUnavailable), self._connections.spare() as connection:
                connection.burst([b"delete %d" % number for number in numbers])
