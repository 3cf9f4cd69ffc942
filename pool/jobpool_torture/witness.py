"""The witness: stands between a pool and its broker, and writes the broker's answers to the ledger.

An oracle can count by that, and not by a pool's beliefs: by deliveries with their counters, accepted settlements, and
those with an unknown result. It changes no answer, and of the calls only one thing: no message pauses after a crash,
for which tests would wait.

Fail-points kill or stop the master at a chosen call, such as `after-fetch:3` or `before-settle/ack:1=stop`. They name
a point, the verb that a settle call must hold (optional), the number of that call, and the action (`kill`).
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.parts import Settlements
from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.clock import Clock, SystemClock
from jobpool.errors import ConfigurationError, WriteRefused
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Move, Settled, Settlement
from jobpool_torture.ledger import LEDGER, Line, append, open_ledger

POINTS = tuple(f"{when}-{what}" for what in ("fetch", "settle", "renew", "reap") for when in ("before", "after"))
"""After a fetch or a reap: one that brought something. Before it, or at a renewal: every one."""

VERBS = ("ack", "nack", "abandon", "release", "forfeit", "move")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_FORM = re.compile(r"(?P<point>[a-z-]+)(/(?P<verb>[a-z]+))?(:(?P<number>[1-9][0-9]*))?(=(?P<action>kill|stop))?")
FAILPOINT = "JOBPOOL_FAILPOINT"
POOL_NAME = "JOBPOOL_NAME"
"""Environment variables: fail-points; the pool's name, as a pool reads it itself."""

MAX_CAUSE_CHARS = 100  # characters of a cause of death that are written: a stack is the log's business


@dataclass(frozen=True, slots=True)
class FailPoint:
    """The `number`-th call (>= 1) at `point`; `verb` "" = whatever it settles. `action`: `kill` or `stop`."""

    point: str
    verb: str = ""
    number: int = 1
    action: str = "kill"

    @classmethod
    def parse(cls, text: str) -> FailPoint:
        """Read `point[/verb][:number][=action]`. Raises `ConfigurationError`."""
        found = _FORM.fullmatch(text.strip())
        if found is None or found["point"] not in POINTS:
            raise ConfigurationError(
                f"{text!r} is not a fail-point POINT[/VERB][:NUMBER][=stop]; points: {', '.join(POINTS)}"
            )
        verb = found["verb"] or ""
        if verb and (verb not in VERBS or not found["point"].endswith("settle")):
            raise ConfigurationError(f"{text!r}: a verb belongs to a settle call, and is one of {', '.join(VERBS)}")
        return cls(found["point"], verb, int(found["number"] or 1), found["action"] or "kill")


def parse_points(text: str) -> list[FailPoint]:
    """Read a list with commas; "" = none. Raises `ConfigurationError`."""
    return [FailPoint.parse(part) for part in text.split(",") if part.strip()]


class FailPoints:
    """Counts calls, in any thread, and kills or stops the process at each point that is reached."""

    def __init__(self, points: Sequence[FailPoint] = ()) -> None:
        self._left = {point: point.number for point in points}
        self._lock = threading.Lock()

    def at(self, point: str, verbs: Collection[str] = ()) -> None:
        """Act if the program is to end at `point`, with these verbs in the call."""
        if not self._left:
            return
        with self._lock:
            here = [found for found in self._left if found.point == point and (not found.verb or found.verb in verbs)]
            for found in here:
                self._left[found] -= 1
            due = [found for found in here if self._left[found] == 0]
        for found in due:  # sent to the process, it may hit this thread late
            signal.pthread_kill(threading.get_ident(), _SIGNALS[found.action])


class Witness:
    """A `QueueBackend` that wraps another one: all that it does not watch is the backend's own.

    Lines are written before the caller gets the answer. One call is one write, so it costs some microseconds a message.
    `reap_expired`, which no pool calls, is not watched: it tells no ids. Raises OSError: the ledger cannot be opened.
    """

    def __init__(
        self,
        backend: QueueBackend,
        ledger: Path | str,
        points: Sequence[FailPoint] = (),
        pool: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Open the ledger. `clock`: the backend's, by which its leases end; None = the machine's."""
        self._backend = backend
        self._clock = clock or SystemClock()
        self._ledger = open_ledger(ledger)
        self._points = FailPoints(points)
        self._about: dict[str, Any] = {"pool": pool, "pid": os.getpid()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def fetch_many(
        self, queue: str, *, limit: int, ttl: float = 30.0, wait: float = 0.0, fetch_id: str | None = None
    ) -> list[JobLease]:
        self._points.at("before-fetch")
        since = self._clock.mono()
        leases = self._backend.fetch_many(queue, limit=limit, ttl=ttl, wait=wait, fetch_id=fetch_id)
        if leases:
            begun = self._clock.boot() - (self._clock.mono() - since)
            holds = [max(0.0, lease.expires_at - begun) for lease in leases]
            pairs = zip(leases, holds, strict=True)
            self._write([self._of_lease("fetched", one, since=since, holds=held, tag=queue) for one, held in pairs])
            self._points.at("after-fetch")
        return leases

    def settle_many(self, settlements: Settlements, call_id: str | None = None) -> list[Settled]:
        verbs = [type(settlement).__name__.lower() for _, settlement in settlements]
        since = self._clock.mono()
        self._write_call("asked", settlements, [""] * len(verbs), since)
        self._points.at("before-settle", verbs)
        try:
            answers = self._backend.settle_many(settlements, call_id)
        except Exception as error:
            self._write_failed(settlements, error, since)
            raise
        self._write_call("settled", settlements, [answer.value for answer in answers], since)
        self._points.at("after-settle", verbs)
        return answers

    def renew_many(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        self._points.at("before-renew")
        renewed = self._backend.renew_many(leases, ttl)
        ended = [lease for lease, new in zip(leases, renewed, strict=True) if new is None]
        self._write([self._of_lease("lost", lease, verb="renew") for lease in ended])
        self._points.at("after-renew")
        return renewed

    def reap(self, queue: str, policy: ReapPolicy | None = None) -> list[Reaped]:
        self._points.at("before-reap")
        policy = replace(policy or ReapPolicy(), back_off=0.0)
        reaped = self._backend.reap(queue, policy)
        if reaped:
            lines = []
            for one in reaped:
                answer, cause = "dead" if one.dead else "back", (one.cause or "")[:MAX_CAUSE_CHARS]
                lines.append(self._line("reaped", one.id, crashes=one.crashes, answer=answer, tag=cause))
            self._write(lines)
            self._points.at("after-reap")
        return reaped

    def lost(self) -> list[JobLease]:
        leases = self._backend.lost()
        self._write([self._of_lease("lost", lease, verb="connection") for lease in leases])
        return leases

    # The single forms are the contract's own, on the batch forms above.
    fetch = QueueBackend.fetch
    ack = QueueBackend.ack
    nack = QueueBackend.nack
    abandon = QueueBackend.abandon
    release = QueueBackend.release
    forfeit = QueueBackend.forfeit
    renew = QueueBackend.renew
    _settle_one = QueueBackend._settle_one

    def close(self) -> None:
        """Close the backend. The ledger stays open: a thread that still waits in the backend may yet write."""
        self._backend.close()

    def _of_lease(self, event: str, lease: JobLease, **more: Any) -> Line:
        told = {"attempt": lease.attempts + 1, "crashes": lease.crashes, "owner": lease.owner_token}
        return self._line(event, lease.id, fence=lease.deliveries, **told, **more)

    def _write_call(self, event: str, settlements: Settlements, answers: Sequence[str], since: float) -> None:
        asked = zip(settlements, answers, strict=True)
        self._write([self._of_call(event, lease, what, answer, since) for (lease, what), answer in asked])

    def _write_failed(self, settlements: Settlements, error: Exception, since: float) -> None:
        """Note what a call that failed has settled all the same, and that the rest is not known."""
        answers = (isinstance(error, WriteRefused) and error.answers) or [None] * len(settlements)
        for asked, answer in zip(settlements, answers, strict=True):
            if answer is None:
                self._write_call("unknown", [asked], [type(error).__name__], since)
            else:
                self._write_call("settled", [asked], [answer.value], since)

    def _of_call(self, event: str, lease: JobLease, settlement: Settlement, answer: str, since: float) -> Line:
        about: dict[str, Any] = {"owner": lease.owner_token, "verb": type(settlement).__name__.lower()}
        if isinstance(settlement, Abandon):
            about |= {"attempt": settlement.attempts}
        elif isinstance(settlement, Move):
            about |= {"attempt": settlement.attempts, "crashes": settlement.crashes, "tag": settlement.queue}
        return self._line(event, lease.id, fence=lease.deliveries, since=since, answer=answer, **about)

    def _line(self, event: str, ident: str, **more: Any) -> Line:
        return Line(event, ident, at=self._clock.mono(), wall=self._clock.wall(), **self._about, **more)

    def _write(self, lines: Sequence[Line]) -> None:
        append(self._ledger, lines)


QueueBackend.register(Witness)  # so that checks for the class of a backend accept it


def watched(backend: QueueBackend, environ: Mapping[str, str]) -> QueueBackend:
    """Return the backend under a witness, as the environment asks for it (`LEDGER`, `FAILPOINT`, `POOL_NAME`).

    Raises:
        ConfigurationError: There is no ledger in the environment, it cannot be opened, or a fail-point is unknown.
    """
    path = environ.get(LEDGER)
    if not path:
        raise ConfigurationError(f"set {LEDGER} to the file that the witness writes")
    points = parse_points(environ.get(FAILPOINT, ""))
    try:
        witness = Witness(backend, path, points, environ.get(POOL_NAME, ""))
    except OSError as error:
        raise ConfigurationError(f"the ledger {path} cannot be opened: {error.strerror}") from error
    return cast(QueueBackend, witness)
