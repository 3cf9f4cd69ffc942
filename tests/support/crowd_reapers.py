"""Reapers and late consumers that race for the same leases, in processes of their own, and what each was answered."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import open_backend
from jobpool.broker.values import ReapPolicy
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Settlement
from jobpool.message.signing import EnvelopeSigner

POLICY = ReapPolicy(max_crashes=4, back_off=0.0)
"""Some messages end by their completion, some by the reaper."""

PATIENCE = 60.0
"""Seconds."""

ALONE = 4
"""Of what one fetch brings, completed in a call each."""


@dataclass(slots=True)
class Seen:
    """What one process was answered.

    Attributes:
        fetched: Id → the highest delivery that it was given.
        ended: Id, delivery and kind of each end that was accepted or made here; the reaper knows no delivery.
        asked: Completions that were sent.
        refused: Those of them that came too late.
    """

    fetched: dict[str, int] = field(default_factory=dict)
    ended: list[tuple[str, int, str]] = field(default_factory=list)
    asked: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Race:
    """`ttl`: seconds that each lease lasts; completions come `early` to `late` seconds after their fetch."""

    url: str
    queue: str
    ttl: float
    early: float
    late: float
    batch: int


def run(race: Race, number: int) -> Seen:
    """One reaper and one consumer, each with a client of its own, until nothing is left."""
    seen = Seen()
    over = threading.Event()
    reaper = threading.Thread(target=_reap, args=(race, seen, over))
    reaper.start()
    try:
        with closing(_open(race)) as backend:
            _consume(race, backend, random.Random(number), seen)
    finally:
        over.set()
        reaper.join()
    return seen


def _open(race: Race) -> QueueBackend:
    return open_backend(race.url, signer=EnvelopeSigner())


def _reap(race: Race, seen: Seen, over: threading.Event) -> None:
    with closing(_open(race)) as backend:
        while not over.wait(0.01):
            _take_back(race, backend, seen)


def _take_back(race: Race, backend: QueueBackend, seen: Seen) -> None:
    reaped = backend.reap(race.queue, POLICY)
    seen.ended += [(one.id, 0, "reaped") for one in reaped if one.dead]


def _consume(race: Race, backend: QueueBackend, rng: random.Random, seen: Seen) -> None:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        _take_back(
            race, backend, seen
        )  # where the broker frees leases itself, this client tells what its fetches charged
        asked_at = time.monotonic()
        leases = backend.fetch_many(race.queue, limit=race.batch, ttl=race.ttl)
        if leases:
            _complete(backend, leases, asked_at + rng.uniform(race.early, race.late), rng, seen)
        elif backend.stats(race.queue).pending == 0:
            _take_back(race, backend, seen)
            return
        else:
            time.sleep(0.005)


def _complete(backend: QueueBackend, leases: list[JobLease], at: float, rng: random.Random, seen: Seen) -> None:
    """Settle these about when their leases end, all but a few in one call."""
    for lease in leases:
        seen.fetched[lease.id] = max(lease.deliveries, seen.fetched.get(lease.id, 0))
    time.sleep(max(0.0, at - time.monotonic()))
    for part in (*([lease] for lease in leases[:ALONE]), leases[ALONE:]):
        pairs: list[tuple[JobLease, Settlement]] = [(lease, _completion(lease, rng)) for lease in part]
        for (lease, what), answer in zip(pairs, backend.settle_many(pairs), strict=True):
            seen.asked += 1
            if answer:
                seen.ended.append((lease.id, lease.deliveries, type(what).__name__.lower()))
            else:
                seen.refused += 1


def _completion(lease: JobLease, rng: random.Random) -> Settlement:
    """An end that names its delivery, so that one written over another is seen."""
    return Ack() if rng.random() < 0.5 else Abandon("failed", f"delivery {lease.deliveries}")
