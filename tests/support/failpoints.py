"""A pool under a torture's witness that kills or stops its master at a chosen call to the broker.

Run as a program it is the command `jobpool`. The variable FAILPOINT names the calls, such as `after-fetch:3` or
`before-settle/ack:1=stop`: a point, the verb that a settle call must hold (optional), the number of that call, and the
action (`kill`). Points are before and after each fetch, settle, renew and reap; after a fetch or a reap, if it has
brought something.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jobpool.broker.backend import QueueBackend
from jobpool.broker.parts import Settlements
from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.cli.main import cli
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_torture.ledger import LEDGER, Line
from jobpool_torture.witness import POOL_NAME, Witness

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_FORM = re.compile(r"(?P<point>[a-z-]+)(/(?P<verb>[a-z]+))?(:(?P<number>[1-9][0-9]*))?(=(?P<action>kill|stop))?")
FAILPOINT = "FAILPOINT"


@dataclass(frozen=True, slots=True)
class FailPoint:
    """The `number`-th call (>= 1) at `point`; `verb` "" = whatever it settles. `action`: `kill` or `stop`."""

    point: str
    verb: str = ""
    number: int = 1
    action: str = "kill"

    @classmethod
    def parse(cls, text: str) -> FailPoint:
        """Read `point[/verb][:number][=action]`."""
        found = _FORM.fullmatch(text)
        assert found, f"{text!r} is not a fail-point POINT[/VERB][:NUMBER][=stop]"
        return cls(found["point"], found["verb"] or "", int(found["number"] or 1), found["action"] or "kill")


def parse_points(text: str) -> list[FailPoint]:
    """Read a list with commas."""
    return [FailPoint.parse(part) for part in text.split(",")]


class FailPoints:
    """Counts calls, in any thread, and kills or stops the process at each point that is reached."""

    def __init__(self, points: Sequence[FailPoint]) -> None:
        self._left = {point: point.number for point in points}
        self._lock = threading.Lock()

    def at(self, point: str, verbs: Collection[str] = ()) -> None:
        """Act if the program is to end at `point`, with these verbs in the call."""
        with self._lock:
            here = [found for found in self._left if found.point == point and (not found.verb or found.verb in verbs)]
            for found in here:
                self._left[found] -= 1
            due = [found for found in here if self._left[found] == 0]
        for found in due:  # sent to the process, it may hit this thread late
            signal.pthread_kill(threading.get_ident(), _SIGNALS[found.action])


class MortalWitness(Witness):
    """A witness that acts at these points, before or after it has written what it saw."""

    def __init__(self, backend: QueueBackend, ledger: str, points: Sequence[FailPoint], pool: str) -> None:
        super().__init__(backend, ledger, pool)
        self._points = FailPoints(points)

    def fetch_many(self, queue: str, **how: Any) -> list[JobLease]:
        self._points.at("before-fetch")
        if leases := super().fetch_many(queue, **how):
            self._points.at("after-fetch")
        return leases

    def settle_many(self, settlements: Settlements, call_id: str | None = None) -> list[Settled]:
        answers = super().settle_many(settlements, call_id)
        self._points.at("after-settle", [type(settlement).__name__.lower() for _, settlement in settlements])
        return answers

    def renew_many(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        self._points.at("before-renew")
        renewed = super().renew_many(leases, ttl)
        self._points.at("after-renew")
        return renewed

    def reap(self, queue: str, policy: ReapPolicy | None = None) -> list[Reaped]:
        self._points.at("before-reap")
        if reaped := super().reap(queue, policy):
            self._points.at("after-reap")
        return reaped

    def _write(self, lines: Sequence[Line]) -> None:
        """Write; a settle call is asked as soon as that was written."""
        super()._write(lines)
        if verbs := [line.verb for line in lines if line.event == "asked"]:
            self._points.at("before-settle", verbs)


def wrap(backend: QueueBackend) -> QueueBackend:
    points = parse_points(os.environ[FAILPOINT])
    return cast(QueueBackend, MortalWitness(backend, os.environ[LEDGER], points, os.environ[POOL_NAME]))


if __name__ == "__main__":
    cli(obj=wrap)
