"""Gets leases what they need before they may run, and waits out a broker that is silent. Runs in the lease thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag

from jobpool.broker.backend import QueueBackend
from jobpool.master.acquirer import Acquirer, Asked
from jobpool.master.broker_retry import OUTAGES, BrokerRetry
from jobpool.message.guards import Begin, Begun
from jobpool.message.lease import JobLease
from jobpool.message.outcome import NotRun
from jobpool.policy.inspection import Inspected
from jobpool.policy.local_limits import LocalLimits

LOST = Begun(Begin.LOST)

RENEW, BEGIN = "renew", "begin"
"""Kinds of calls, for `BrokerRetry`."""


class RetryingAcquirer:
    """Between inspection and the loop. `stop`: set when the pool stops."""

    def __init__(
        self, backend: QueueBackend, acquirer: Acquirer, gates: LocalLimits, ttl: float, outage: BrokerRetry, stop: Flag
    ) -> None:
        self._backend = backend
        self._acquirer = acquirer
        self._gates = gates
        self._ttl = ttl
        self._broker_retry = outage
        self._stop = stop

    def in_time(self, leases: list[JobLease]) -> list[JobLease]:
        """Those that may be begun. An answer that took as long as the leases last brings ended ones: no job starts on
        such a lease, unless the broker still knows it as ours and renews it."""
        now = self._backend.clock.boot()
        if all(lease.expires_at > now for lease in leases):
            return leases
        try:
            renewed = self._backend.renew_many(leases, self._ttl)
        except OUTAGES as error:
            self._broker_retry.failed(error, RENEW, holding=True)
            renewed = list(leases)
        now = self._backend.clock.boot()
        return [lease for lease in renewed if lease is not None and lease.expires_at > now]

    def admit(
        self, queue: str, found: list[Inspected], hand_over: Callable[[list[Inspected]], None]
    ) -> tuple[list[Inspected], int]:
        """Get those of `found` that need something what they need, or their outcomes.

        Returns what is to be told to the loop, and how many of `found` were not refused. Told is `found`; but without
        what `hand_over` was called with, because it needs nothing, and a silent broker may be long in answering for the
        others.
        """
        asked = self._acquirer.asks(queue, found)
        if not asked:
            return found, len(found)
        total = len(found)
        answers = self._begin(asked)
        if answers is None:
            needy = {id(inspected) for inspected, _ in asked}
            plain = [inspected for inspected in found if id(inspected) not in needy]
            if plain:
                hand_over(plain)
            found = [inspected for inspected, _ in asked]
            answers = self._begin_again(asked)
        if answers is not None:
            self._conclude(queue, asked, answers)
        return found, total - sum(inspected.outcome is not None for inspected, _ in asked)

    def _begin(self, asked: Asked) -> list[Begun] | None:
        """The key store's answers; None: it is silent."""
        try:
            answers = self._acquirer.begin([(inspected.lease, guards) for inspected, guards in asked])
        except OUTAGES as error:
            self._broker_retry.failed(error, BEGIN, holding=True)
            return None
        self._broker_retry.over(BEGIN)
        return answers

    def _begin_again(self, asked: Asked) -> list[Begun] | None:
        """Ask until there is an answer, or every lease has ended; None: the pool stops. Asking twice does no harm."""
        while not self._stop.is_set():
            live = self._still_ours(asked)
            answers = self._begin(live) if live else []
            if answers is not None:
                told = {id(inspected): begun for (inspected, _), begun in zip(live, answers, strict=True)}
                return [told.get(id(inspected), LOST) for inspected, _ in asked]
        for inspected, guards in asked:  # it may have been granted: what was counted is given back with the lease
            inspected.lease = inspected.lease.guarded(guards)
            inspected.outcome = NotRun()
        return None

    def _still_ours(self, asked: Asked) -> Asked:
        """Those whose leases may be begun; a lease that has ended is renewed, if it can be."""
        held = {lease.owner_token: lease for lease in self.in_time([inspected.lease for inspected, _ in asked])}
        live = [(inspected, guards) for inspected, guards in asked if inspected.lease.owner_token in held]
        for inspected, _ in live:
            inspected.lease = held[inspected.lease.owner_token]
        return live

    def _conclude(self, queue: str, asked: Asked, answers: list[Begun]) -> None:
        """Note every answer, and for the queue's gate how many may start."""
        refused = None
        for (inspected, guards), begun in zip(asked, answers, strict=True):
            if not self._acquirer.conclude(inspected, guards, begun):
                refused = refused or begun
        granted = sum(inspected.outcome is None for inspected, _ in asked)
        self._gates.begun(queue, granted, refused, self._backend.clock.mono())
