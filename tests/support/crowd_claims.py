"""What several claimers and pools do at once on one queue, in processes of their own. Imports little."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass, field, replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import ReapPolicy
from jobpool.message.settlement import Ack, Nack, Release, Settled
from support.jobs import QUEUE

TTLS = (0.02, 0.2)
"""Seconds: far below what the public methods take, so that claims and leases end while they are worked on."""


NEVER_DEAD = ReapPolicy(max_crashes=0, back_off=0.0)


@dataclass(frozen=True)
class Span:
    """From when to when somebody certainly held a message: Unix times on the clock of the machine."""

    message: str
    holder: str
    start: float
    end: float


@dataclass
class Done:
    """What one of a crowd held, and what it finished."""

    spans: list[Span] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def hold(self, messages: list[str], holder: str, end: float) -> None:
        """These are held since the answer, until `end` at least."""
        now = time.time()
        self.spans += [Span(message, holder, now, end) for message in messages]

    def let_go(self, messages: list[str], holder: str) -> None:
        """Whatever comes of the call that follows, these may be somebody else's from here on."""
        now = time.time()
        self.spans = [
            replace(span, end=min(span.end, now)) if span.holder == holder and span.message in messages else span
            for span in self.spans
        ]


def empty(backend: QueueBackend, number: int) -> list[str]:
    """Take and finish until nothing is left, each in another way: the ids that were finished here."""
    work = (_claim, _pop, _claim, _fetch)[number % 4]
    seen: list[str] = []
    idle = 0
    while idle < 3:
        taken = work(backend, 1 + number % 7)
        idle = 0 if taken else idle + 1
        seen += taken
    return seen


def _claim(backend: QueueBackend, limit: int) -> list[str]:
    held = backend.claims.claim(QUEUE, limit=limit + 1, ttl=60.0, grace=60.0)
    if held is None:
        return []
    idents = [message.id for message in held.messages]
    # The last one goes back, for somebody else or for this one's next claim.
    done = idents[:-1] or idents
    assert set(backend.claims.delete_many(QUEUE, done, held.id)) == {Deleted.DONE}
    assert backend.claims.release(QUEUE, held.id) == len(idents) - len(done)
    return done


def _pop(backend: QueueBackend, limit: int) -> list[str]:
    return [message.id for message in backend.claims.pop(QUEUE, limit)]


def _fetch(backend: QueueBackend, limit: int) -> list[str]:
    leases = backend.fetch_many(QUEUE, limit=limit, ttl=30.0)
    return [lease.id for lease in leases if backend.ack(lease)]


def churn(backend: QueueBackend, number: int) -> Done:
    """Hold messages for moments and finish them, lose them or leave them, until nothing is left."""
    done = Done()
    chance = random.Random(number)
    late = time.monotonic() + 60.0
    while backend.claims.stats(QUEUE).total:
        assert time.monotonic() < late, "something is left that nobody can have"
        chance.choice((_work_on_a_claim, _work_on_a_claim, _work_on_leases, _pop_one))(backend, chance, done)
        backend.reap(QUEUE, NEVER_DEAD)
    return done


def _work_on_a_claim(backend: QueueBackend, chance: random.Random, done: Done) -> None:
    """It may end before its messages are deleted; what is left is released, or waits for the end."""
    store, ident, ttl = backend.claims, secrets.token_hex(16), chance.choice(TTLS)
    begun = time.time()
    held = store._claim(QUEUE, ident, chance.randint(1, 6), ttl, 60.0, 0)
    if held is None:
        return
    idents = [message.id for message in held.messages]
    done.hold(idents, ident, begun + ttl)
    time.sleep(chance.uniform(0.0, 0.03))
    if chance.random() < 0.3:
        begun = time.time()
        if renewed := store._renew(QUEUE, ident, ttl, None):
            assert [message.id for message in renewed.messages] == idents
            done.hold(idents, ident, begun + ttl)
    finished = idents[: chance.randint(0, len(idents))]
    done.let_go(finished, ident)
    if answers := store._delete(QUEUE, finished, ident):
        assert set(answers) == {Deleted.DONE}
        done.finished += finished
    if chance.random() < 0.5:
        done.let_go(idents, ident)
        assert store._release(QUEUE, ident) in (0, len(idents) - len(finished))


def _work_on_leases(backend: QueueBackend, chance: random.Random, done: Done) -> None:
    begun = time.time()
    leases = backend.fetch_many(QUEUE, limit=chance.randint(1, 4), ttl=TTLS[0])
    for lease in leases:
        done.hold([lease.id], lease.owner_token, begun + TTLS[0])
    time.sleep(chance.uniform(0.0, 0.03))
    for lease in leases:
        done.let_go([lease.id], lease.owner_token)
        settlement = chance.choice((Ack(), Ack(), Nack(0.0, "boom"), Release(0.01), None))
        if settlement and backend.settle_many([(lease, settlement)]) == [Settled.OK] and settlement == Ack():
            done.finished.append(lease.id)


def _pop_one(backend: QueueBackend, chance: random.Random, done: Done) -> None:
    del chance
    done.finished += [message.id for message in backend.claims.pop(QUEUE, 1)]
