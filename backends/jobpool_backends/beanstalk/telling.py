"""Commands about leases, each on the connection that owns it: all are written before any answer is read.

A break spoils the leases of its own connection only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import greenstalk

from jobpool.errors import BackendUnavailable
from jobpool_backends.beanstalk.burst import PIECE, Answer
from jobpool_backends.beanstalk.errors import TROUBLE
from jobpool_backends.beanstalk.line import Held, Line
from jobpool_backends.beanstalk.lines import Lines

Told = dict[Held, Answer | BackendUnavailable]
"""The result of a command about each lease. Missing: it had ended before. An error: the lease is lost, and nobody knows
whether the server did it.
"""

Command = Callable[[Held], bytes]

_HURRY = 0.1
"""Seconds for an answer when another line's has not come in time, and both were asked at once."""


def tell(lines: Lines, helds: Sequence[Held], command: Command, *, ends: bool) -> Told:
    """Send a command about each lease on the line that owns it, and not for those that have ended by then.

    Args:
        lines: Of which some own these leases.
        helds: On any number of lines.
        command: About one of them.
        ends: True if the command ends the lease.

    Blocks for a round trip, and for those that others have under way on these lines.
    """
    lines.check_process()
    works: dict[Line, list[Held]] = {}
    for held in helds:
        works.setdefault(held.line, []).append(held)
    order = sorted(works, key=lambda line: line.serial)
    for line in order:
        line.lock.acquire()
    told: Told = {}
    try:
        for start in range(0, max(map(len, works.values()), default=0), PIECE):
            pieces = {
                line: owned for line in order if (owned := _still_owned(lines, works[line][start : start + PIECE]))
            }
            _exchange(lines, pieces, command, told)
        _note(lines, told, ends=ends)
    finally:
        for line in order:
            lines.give_back(line)
    return told


def _still_owned(lines: Lines, helds: Sequence[Held]) -> list[Held]:
    now = lines.clock.boot()
    return [held for held in helds if held.is_owned and now < held.lease.expires_at]


def _exchange(lines: Lines, pieces: dict[Line, list[Held]], command: Command, told: Told) -> None:
    """Write to all lines, then read from all."""
    sent = []
    for line, helds in pieces.items():
        try:
            line.write([command(held) for held in helds])
            sent.append(line)
        except TROUBLE as error:
            told |= dict.fromkeys(helds, lines.broken(line, error))
    limit = lines.address.timeout
    for line in sent:
        helds = pieces[line]
        try:
            told |= zip(helds, line.read(len(helds), limit), strict=True)
        except TROUBLE as error:
            told |= dict.fromkeys(helds, lines.broken(line, error))
            limit = _HURRY if isinstance(error, TimeoutError) else limit


def _note(lines: Lines, told: Told, *, ends: bool) -> None:
    for held, answer in told.items():
        if ends or isinstance(answer, greenstalk.NotFoundError):
            lines.forget(held)
