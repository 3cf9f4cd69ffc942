"""Taking back messages whose lease has expired, a bounded piece a script, so that no other call waits long."""

from __future__ import annotations

import secrets

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.message.definition import LONGEST
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.scripts import REAP
from jobpool_backends.shared import MICRO, DeadCaps, micros, more_than

MAX_REAPED_PER_CALL = 1000
LEASES_PER_SCRIPT = 200


class Reaper:
    """The reaper of queues."""

    def __init__(self, link: Link, keys: KeyNames, caps: DeadCaps) -> None:
        self._link = link
        self._keys = keys
        self._caps = caps

    def reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        """Take back up to `MAX_REAPED_PER_CALL` messages; those of ended claims, and ended posts, count too.

        With a visibility timeout all leases of the queue are looked at, in pieces. A lease taken or settled meanwhile
        may shift another out of sight, until the next call.
        """
        visibility = -1 if visibility_timeout is None else more_than(visibility_timeout)
        back_off = [micros(min(delay, LONGEST)) for delay in (policy.back_off, policy.back_off_cap)]
        reaped: list[Reaped] = []
        first = swept = 0
        while (room := MAX_REAPED_PER_CALL - len(reaped) - swept) > 0:
            most = min(LEASES_PER_SCRIPT, room)
            charges = (policy.max_crashes, float(policy.window * MICRO), *back_off, secrets.randbits(31))
            words = (most, first, visibility, *charges, self._caps.most, self._caps.age)
            looked, ended, *told = REAP.run(self._link, self._keys, [queue], words)
            found = [
                Reaped(ident.decode(), queue, int(crashes), cause.decode("utf-8", "replace"), dead == b"1")
                for ident, crashes, cause, dead in zip(*[iter(told)] * 4, strict=True)
            ]
            reaped += found
            swept += ended
            first += looked - len(found)
            if looked + ended < most:
                break
        return reaped
