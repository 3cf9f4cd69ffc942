"""What several consumers do at once, in processes of their own. Kept apart, so that those import little."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import ReapPolicy
from jobpool.message.guards import Begin, Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Move, Nack, Release, Settled, Settlement
from support.jobs import QUEUE, a_job

SOON = ReapPolicy(back_off=0.02)
"""What has crashed comes back while all are still at work on it, not when the others have gone idle."""


def drain(backend: QueueBackend, number: int) -> list[tuple[str, int, bool]]:
    """Lease and ack until nothing is left: id, deliveries and whether the ack was accepted, of each message."""
    seen: list[tuple[str, int, bool]] = []
    while True:
        leases = backend.fetch_many(QUEUE, limit=1 + number % 7, ttl=30.0)
        if not leases:
            return seen
        answers = backend.settle_many([(lease, Ack()) for lease in leases])
        seen += [(lease.id, lease.deliveries, bool(answer)) for lease, answer in zip(leases, answers, strict=True)]


def reap_and_settle(backend: QueueBackend, number: int) -> list[str]:
    """Half of the time ack late, and reap all the time: the ids acked here."""
    acked: list[str] = []
    idle = 0
    while idle < 20:
        leases = backend.fetch_many(QUEUE, limit=3, ttl=0.002 if number % 2 else 30.0)
        backend.reap(QUEUE, SOON)
        acked += [lease.id for lease in leases if backend.ack(lease)]
        idle = 0 if leases or backend.stats(QUEUE).pending else idle + 1
    return acked


# --- claims, pools and takers on one queue; times are Unix times ----------------------------------------------

TTLS = (0.02, 0.2)
"""Seconds: far below what the public methods take, so that claims and leases end while they are worked on."""


NEVER_DEAD = ReapPolicy(max_crashes=0, back_off=0.0)
"""A crash, or a kill, is not an end of a job, and no reason to wait."""


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


# --- guards; times are seconds on the clock that all processes of the machine share ------------------------------

Times = tuple[float, float]

PLACES = Guards(holds=(Hold("queue", 3),))
RATE = Rate("queue", 4, 0.4)
WORK = 0.003
"""Seconds that a place is used for."""


def hold_places(backend: QueueBackend, number: int) -> list[Times]:
    """Lease, take one of three places, use it, ack; until nothing is left: from when to when each was used."""
    del number
    spans: list[Times] = []
    while lease := _next(backend):
        if not _begin(backend, lease, PLACES):
            backend.release(lease, delay=0.002)
            continue
        start = time.monotonic()
        time.sleep(WORK)
        spans.append((start, time.monotonic()))
        assert backend.ack(lease.guarded(PLACES))
    return spans


def run_keys_once(backend: QueueBackend, number: int) -> list[str]:
    """Run what its key allows, and give half of it up at first: the keys that were acked here after a run."""
    ran: list[str] = []
    while lease := _next(backend):
        guards = Guards(key=lease.envelope.payload)
        [answer] = backend.keys.begin_many([(lease, guards)])
        if answer.answer is Begin.HELD:
            backend.release(lease, delay=0.002)
        elif answer.answer is Begin.DONE:
            assert backend.ack(lease)
        elif number % 2 and lease.attempts == 0:
            backend.nack(lease.guarded(guards))
        else:
            time.sleep(WORK)
            assert backend.ack(lease.guarded(guards))
            ran.append(lease.envelope.payload)
    return ran


def enqueue_the_same(backend: QueueBackend, number: int) -> list[str]:
    """Enqueue one unique job again and again: the ids that came back."""
    job = a_job(number, unique=True, idempotency_key="the-only-one")
    return [backend.enqueue(job) for _ in range(25)]


def start_within_the_rate(backend: QueueBackend, number: int) -> list[Times]:
    """Start what the rate allows, for a second and a half; half of the crowd without messages.

    Each start was counted between the two times of its pair.
    """
    spans: list[Times] = []
    give_up = time.monotonic() + 1.5
    while time.monotonic() < give_up:
        before = time.monotonic()
        if _start(backend, number):
            spans.append((before, time.monotonic()))
        else:
            time.sleep(0.002)
    return spans


def _start(backend: QueueBackend, number: int) -> bool:
    if number % 2:
        return backend.keys.take(QUEUE, RATE, secrets.token_hex(8)) == 0.0
    [lease] = backend.fetch_many(QUEUE, limit=1)
    guards = Guards(rates=(RATE,))
    started = _begin(backend, lease, guards)
    backend.release(lease.guarded(guards) if started else lease)
    return started


def _next(backend: QueueBackend) -> JobLease | None:
    """The next message, waited for while there are any."""
    while backend.stats(QUEUE).pending:
        lease = backend.fetch(QUEUE, wait=0.05)
        if lease is not None:
            return lease
    return None


def _begin(backend: QueueBackend, lease: JobLease, guards: Guards) -> bool:
    [answer] = backend.keys.begin_many([(lease, guards)])
    return bool(answer)


# --- members of batches, in processes that are killed ------------------------------------------------------------

QUEUES = ("reports", "mails")
KILLED_TTL = 1.0
"""Seconds: what a killed one held comes back soon."""


def settle_for_ever(opener: Callable[[], QueueBackend], number: int) -> None:
    """Settle some at a time, of any batches: by its payload one fails, moves, or brings one more member."""
    rng = random.Random(number)
    with closing(opener()) as backend:
        while True:
            queue = rng.choice(QUEUES)
            leases = backend.fetch_many(queue, limit=rng.randint(1, 9), ttl=KILLED_TTL, wait=0.02)
            backend.settle_many([(lease, settlement_of(lease)) for lease in leases])
            backend.reap(queue, NEVER_DEAD)


def settlement_of(lease: JobLease) -> Settlement:
    batch, kind = lease.envelope.payload
    there = QUEUES[lease.queue == QUEUES[0]]
    if kind == "fail":
        return Abandon("failed")
    if kind == "move" and lease.queue == QUEUES[0]:
        return Move(there)
    if kind == "bring":
        return Ack((a_job((batch, "plain"), identifier=f"{lease.id}+", queue=there, batch=batch),))
    return Ack()
