"""Taking back messages whose lease has expired, a bounded piece a script, so that no other call waits long."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.message.definition import LONGEST
from jobpool_backends.redis.connection import Word
from jobpool_backends.redis.connections import Link
from jobpool_backends.redis.key_names import KeyNames
from jobpool_backends.redis.scripts import REAP
from jobpool_backends.shared import MICRO, DeadCaps, micros, more_than

MAX_REAPED_PER_CALL = 1000
LEASES_PER_SCRIPT = 200
"""Leases a script."""


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
        reaped: list[Reaped] = []
        first = tended = 0
        while len(reaped) + tended < MAX_REAPED_PER_CALL:
            most = min(LEASES_PER_SCRIPT, MAX_REAPED_PER_CALL - len(reaped) - tended)
            looked, ended, *told = self._piece(queue, policy, (most, first, visibility))
            found = list(_read(queue, told))
            reaped += found
            tended += ended
            first += looked - len(found)
            if looked + ended < most:
                break
        return reaped

    def _piece(self, queue: str, policy: ReapPolicy, which: tuple[int, int, int]) -> list[Any]:
        words: tuple[Word, ...] = (
            *which,
            policy.max_crashes,
            float(policy.window * MICRO),
            micros(min(policy.back_off, LONGEST)),
            micros(min(policy.back_off_cap, LONGEST)),
            secrets.randbits(31),
            self._caps.most,
            self._caps.age,
        )
        answer: list[Any] = self._link.run(REAP.script, REAP.keys(self._keys, [queue]), words)
        return answer


def _read(queue: str, told: list[Any]) -> Iterator[Reaped]:
    for ident, crashes, cause, dead in zip(*[iter(told)] * 4, strict=True):
        yield Reaped(ident.decode(), queue, int(crashes), cause.decode("utf-8", "replace"), dead == b"1")
