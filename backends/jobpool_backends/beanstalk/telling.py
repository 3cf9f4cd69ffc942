"""Commands about leases, each on the connection that owns it: all are written before any answer is read.

A break spoils the leases of its own connection only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import greenstalk

from jobpool.errors import BackendUnavailable
from jobpool_backends.beanstalk.connection import Connection, Held
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.protocol import COMMANDS_PER_WRITE, Answer
from jobpool_backends.beanstalk.trouble import TROUBLE

Answers = dict[Held, Answer | BackendUnavailable]
"""The result of a command about each lease. Missing: it had ended before. An error: the lease is lost, and nobody knows
whether the server did it.
"""

Command = Callable[[Held], bytes]

_HURRIED_TIMEOUT_S = 0.1
"""Seconds for an answer when another connection's has not come in time, and both were asked at once."""


def send_each(connections: Connections, helds: Sequence[Held], command: Command, *, ends: bool) -> Answers:
    """Send a command about each lease on the connection that owns it, and not for those that have ended by then.

    Args:
        connections: Of which some own these leases.
        helds: On any number of connections.
        command: About one of them.
        ends: True if the command ends the lease.

    Blocks for a round trip, and for those that others have under way on these connections.
    """
    connections.check_process()
    works: dict[Connection, list[Held]] = {}
    for held in helds:
        works.setdefault(held.connection, []).append(held)
    order = sorted(works, key=lambda connection: connection.serial)
    for connection in order:
        connection.lock.acquire()
    told: Answers = {}
    try:
        for start in range(0, max(map(len, works.values()), default=0), COMMANDS_PER_WRITE):
            pieces = {
                connection: owned
                for connection in order
                if (owned := _still_owned(connections, works[connection][start : start + COMMANDS_PER_WRITE]))
            }
            _exchange(connections, pieces, command, told)
        _note(connections, told, ends=ends)
    finally:
        for connection in order:
            connections.give_back(connection)
    return told


def _still_owned(connections: Connections, helds: Sequence[Held]) -> list[Held]:
    now = connections.clock.boot()
    return [held for held in helds if held.is_owned and now < held.lease.expires_at]


def _exchange(connections: Connections, pieces: dict[Connection, list[Held]], command: Command, told: Answers) -> None:
    """Write to all connections, then read from all."""
    sent = []
    for connection, helds in pieces.items():
        try:
            connection.write([command(held) for held in helds])
            sent.append(connection)
        except TROUBLE as error:
            told |= dict.fromkeys(helds, connections.broken(connection, error))
    limit = connections.address.timeout
    for connection in sent:
        helds = pieces[connection]
        try:
            told |= zip(helds, connection.read(len(helds), limit), strict=True)
        except TROUBLE as error:
            told |= dict.fromkeys(helds, connections.broken(connection, error))
            limit = _HURRIED_TIMEOUT_S if isinstance(error, TimeoutError) else limit


def _note(connections: Connections, told: Answers, *, ends: bool) -> None:
    for held, answer in told.items():
        if ends or isinstance(answer, greenstalk.NotFoundError):
            connections.forget(held)
