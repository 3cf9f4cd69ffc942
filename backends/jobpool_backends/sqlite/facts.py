"""The messages of some leases, and whether those leases may settle."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.sqlite.clock import Moment
from jobpool_backends.sqlite.fetch import owner_token
from jobpool_backends.sqlite.schema import LEASED

_FACTS = """
SELECT seq, state, holder, boot, deadline, deadline_wall, given, queue, unique_key
FROM messages WHERE seq IN (SELECT value FROM json_each(?))
"""


class Fact(NamedTuple):
    """The state of a message when a call begins.

    The lease's columns are None in a message that is not leased; boot and deadline also in one that a claim holds.
    """

    seq: int
    state: int
    holder: str
    boot: int
    deadline: int
    deadline_wall: int
    given: int
    queue: str
    unique_key: str | None

    def forfeited(self, now: Moment) -> Fact:
        return self._replace(boot=now.boot, deadline=now.boottime, deadline_wall=now.wall)


def read_facts(connection: sqlite3.Connection, leases: Sequence[JobLease]) -> dict[int, Fact | None]:
    """Return the messages of these leases, by sequence number."""
    sequence = json.dumps([number(lease) for lease in leases])
    return {row[0]: Fact._make(row) for row in connection.execute(_FACTS, (sequence,))}


def number(lease: JobLease) -> int:
    """Return the message's sequence number; 0, which no message has, for a lease of another backend."""
    return lease.token if isinstance(lease.token, int) else 0


def judge(fact: Fact | None, lease: JobLease, now: Moment) -> Settled:
    """Return whether this lease may settle, by the contract's order of refusals."""
    if fact is None or fact.state != LEASED:
        return Settled.NOT_IN_FLIGHT
    if now.is_past(fact.boot, fact.deadline, fact.deadline_wall):
        return Settled.EXPIRED
    return Settled.OK if lease.owner_token == owner_token(fact.holder, fact.seq) else Settled.NOT_OWNER
