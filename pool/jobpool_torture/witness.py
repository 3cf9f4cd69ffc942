"""The witness: stands between a pool and its broker, and writes the broker's answers to the ledger.

An oracle can count by that, and not by a pool's beliefs: by deliveries with their counters, accepted settlements, and
those with an unknown result. It changes no answer, and of the calls only one thing: no message pauses after a crash,
for which tests would wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from jobpool.broker import parts
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Reaped, ReapPolicy
from jobpool.clock import Clock, SystemClock
from jobpool.errors import ConfigurationError, WriteRefused
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Move, Settled, Settlement
from jobpool_torture.ledger import LEDGER, Line, append, open_ledger

POOL_NAME = "JOBPOOL_NAME"  # the environment variable, as a pool reads it itself
MAX_CAUSE_CHARS = 100  # characters of a cause of death that are written: a stack is the log's business


class Witness:
    """A `QueueBackend` that wraps another one: all that it does not watch is the backend's own.

    Lines are written before the caller gets the answer. One call is one write, so it costs some microseconds a message.
    `reap_expired`, which no pool calls, is not watched: it tells no ids. Raises OSError: the ledger cannot be opened.
    """

    def __init__(self, backend: QueueBackend, ledger: Path | str, pool: str = "", clock: Clock | None = None) -> None:
        """Open the ledger. `clock`: the backend's, by which its leases end; None = the machine's."""
        self._backend = backend
        self._clock = clock or SystemClock()
        self._ledger = open_ledger(ledger)
        self._about: dict[str, Any] = {"pool": pool, "pid": os.getpid()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def fetch_many(
        self, queue: str, *, limit: int, ttl: float = 30.0, wait: float = 0.0, fetch_id: str | None = None
    ) -> list[JobLease]:
        since = self._clock.mono()
        leases = self._backend.fetch_many(queue, limit=limit, ttl=ttl, wait=wait, fetch_id=fetch_id)
        begun = self._clock.boot() - (self._clock.mono() - since)
        about = {"since": since, "tag": queue}
        self._write(
            [self._of_lease("fetched", lease, holds=max(0.0, lease.expires_at - begun), **about) for lease in leases]
        )
        return leases

    def settle_many(self, settlements: parts.Settlements, call_id: str | None = None) -> list[Settled]:
        since = self._clock.mono()
        self._write_call(settlements, [("asked", "")] * len(settlements), since)
        try:
            answers = self._backend.settle_many(settlements, call_id)
        except Exception as error:
            # A call that failed may have settled some all the same.
            known = (isinstance(error, WriteRefused) and error.answers) or [None] * len(settlements)
            unknown = "unknown", type(error).__name__
            told = [("settled", answer.value) if answer is not None else unknown for answer in known]
            self._write_call(settlements, told, since)
            raise
        self._write_call(settlements, [("settled", answer.value) for answer in answers], since)
        return answers

    def renew_many(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        renewed = self._backend.renew_many(leases, ttl)
        ended = [lease for lease, new in zip(leases, renewed, strict=True) if new is None]
        self._write([self._of_lease("lost", lease, verb="renew") for lease in ended])
        return renewed

    def reap(self, queue: str, policy: ReapPolicy | None = None) -> list[Reaped]:
        reaped = self._backend.reap(queue, replace(policy or ReapPolicy(), back_off=0.0))
        self._write(list(map(self._of_reaped, reaped)))
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

    def _of_reaped(self, one: Reaped) -> Line:
        answer, cause = "dead" if one.dead else "back", (one.cause or "")[:MAX_CAUSE_CHARS]
        return self._line("reaped", one.id, crashes=one.crashes, answer=answer, tag=cause)

    def _write_call(self, settlements: parts.Settlements, told: Sequence[tuple[str, str]], since: float) -> None:
        """Write a line for each settlement; `told`: event and answer of each."""
        pairs = zip(settlements, told, strict=True)
        self._write([self._of_call(event, *settlement, answer, since) for settlement, (event, answer) in pairs])

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
    """Return the backend under a witness, as the environment asks for it (`LEDGER`, `POOL_NAME`).

    Raises `ConfigurationError`: there is no ledger in the environment, or it cannot be opened.
    """
    path = environ.get(LEDGER)
    if not path:
        raise ConfigurationError(f"set {LEDGER} to the file that the witness writes")
    try:
        witness = Witness(backend, path, environ.get(POOL_NAME, ""))
    except OSError as error:
        raise ConfigurationError(f"the ledger {path} cannot be opened: {error.strerror}") from error
    return cast(QueueBackend, witness)
