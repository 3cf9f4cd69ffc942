"""Any sequence of posts, claims and a pool's own verbs, on a backend and on `memory://` side by side: the same answers.

All times are whole numbers of seconds out of a few, so that ends of claims, lives, delays and leases often meet. Who
has noticed the end of a claim may differ, so both sides are tidied before a pool, or an administrator, comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import a_job, at
from support.side_by_side import Pair, SideBySide, compare

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import CLAIM_LIMIT, HeldClaim, NewPost, QueueMessage
from jobpool.broker.values import Message, MessageFilter, ReapPolicy, State, Verb
from jobpool.errors import ClaimNotFound
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Nack, Release, Settlement

QUEUES = ("reports", "mails")
AT_ONCE = ReapPolicy(max_crashes=2, window=400.0, back_off=0.0)

queues = st.sampled_from(QUEUES)
limits = st.integers(1, 3)
claim_ttls = st.sampled_from([60.0, 61.0, 90.0, 120.0])
graces = st.sampled_from([60.0, 90.0])
lives = st.sampled_from([None, 60.0, 61.0, 90.0, 150.0])
delays = st.sampled_from([0.0, 0.0, 1.0, 30.0, 60.0, 90.0])
lease_ttls = st.sampled_from([30.0, 60.0, 90.0])
most_claims = st.sampled_from([0, 0, 1, 1, 2])
priorities = st.sampled_from([4, 5, 5, 6])
places = st.lists(st.integers(0, 7), min_size=1, max_size=3)
verdicts = st.sampled_from([Ack(), Nack(0.0, "boom"), Nack(30.0), Abandon("hopeless"), Release(), Release(60.0)])
filters = st.builds(
    MessageFilter,
    queue=queues,
    handler=st.sampled_from([None, None, "", "report"]),
    states=st.lists(st.sampled_from(State), unique=True, max_size=2).map(tuple),
    reason=st.sampled_from([None, None, "hopeless", CLAIM_LIMIT]),
)


@dataclass(frozen=True)
class Held:
    """A claim that was made, live or not; both sides know it by one id."""

    queue: str
    id: str


class Claims(SideBySide):
    """Posts, claims, and a pool on the same queues."""

    leases = Bundle("leases")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.known: list[str] = []

    def ask(self, operation: Callable[[QueueBackend], Any], backend: QueueBackend) -> Any:
        """What came of it, a refusal too, without what each backend has of its own."""
        try:
            return portrait(operation(backend))
        except ClaimNotFound as error:
            return type(error)

    def tidy(self) -> None:
        """What ended claims held is free on both sides, and what has ended is gone."""
        for queue in QUEUES:
            self.both(lambda backend: backend.claims.stats(queue))  # noqa: B023 - called at once

    def fresh(self, letter: str) -> str:
        self.number += 1
        self.known.append(f"{letter}{self.number}")
        return self.known[-1]

    def pick(self, queue: str, chosen: list[int]) -> list[str]:
        """Ids of messages of a queue, whatever their states, and now and then of one that is gone or elsewhere."""
        there = [message.id for message in self.model.list_messages(MessageFilter(queue=queue), limit=12)]
        return [there[place] if place < len(there) else self.known[place % len(self.known)] for place in chosen]

    # --- producing ---------------------------------------------------------------------------------

    @initialize(target=claims)
    def begin_with_some(self) -> Any:
        """Most rules need messages, and some a claim."""
        for queue in QUEUES:
            self.post(queue, [None, 90.0], 0.0)
            self.enqueue(queue, 5, 0.0)
        return self.claim("reports", 2, 60.0, 60.0, 0)

    @rule(queue=queues, life=st.lists(lives, min_size=1, max_size=3), delay=delays)
    def post(self, queue: str, life: list[float | None], delay: float) -> None:
        posts = [NewPost(ident, False, ident.encode(), one, delay) for one in life for ident in [self.fresh("p")]]
        self.both(lambda backend: backend.claims.post(queue, posts))

    @rule(queue=queues, names=st.lists(st.sampled_from("ab"), min_size=1, max_size=2), life=lives)
    def post_with_ids(self, queue: str, names: list[str], life: float | None) -> None:
        posts = [NewPost(f"{queue}-{name}", True, b"given", life) for name in names]
        self.both(lambda backend: backend.claims.post(queue, posts))

    @rule(queue=queues, name=st.sampled_from("ab"))
    def enqueue_with_id(self, queue: str, name: str) -> None:
        self.tidy()
        self.both(lambda backend: backend.enqueue(a_job(queue=queue, identifier=f"{queue}-{name}")))

    @rule(queue=queues, priority=priorities, delay=delays)
    def enqueue(self, queue: str, priority: int, delay: float) -> None:
        due = at(self.clock.wall() + delay) if delay else None
        job = a_job(queue=queue, priority=priority, scheduled_at=due, identifier=self.fresh("j"))
        self.both(lambda backend: backend.enqueue(job))

    # --- claims ------------------------------------------------------------------------------------

    @rule(target=claims, queue=queues, limit=limits, ttl=claim_ttls, grace=graces, most=most_claims)
    def claim(self, queue: str, limit: int, ttl: float, grace: float, most: int) -> Any:
        self.number += 1
        held = Held(queue, f"{self.number:032x}")
        return held if self._claim(held, limit, ttl, grace, most) else multiple()

    @rule(held=claims, limit=limits, ttl=claim_ttls)
    def claim_again(self, held: Held, limit: int, ttl: float) -> None:
        """The same claim while it lives, a new one after that."""
        self._claim(held, limit, ttl, 60.0, 0)

    def _claim(self, held: Held, limit: int, ttl: float, grace: float, most: int) -> Any:
        return self.both(
            lambda backend: backend.claims.claim(
                held.queue, limit=limit, ttl=ttl, grace=grace, max_claims=most, claim_id=held.id
            )
        )

    @rule(held=claims)
    def get(self, held: Held) -> None:
        self.both(lambda backend: backend.claims.get(held.queue, held.id))

    @rule(held=claims, ttl=claim_ttls, grace=st.none() | graces)
    def renew_claim(self, held: Held, ttl: float, grace: float | None) -> None:
        self.both(lambda backend: backend.claims.renew(held.queue, held.id, ttl=ttl, grace=grace))

    @rule(held=claims)
    def release_claim(self, held: Held) -> None:
        self.both(lambda backend: backend.claims.release(held.queue, held.id))

    @rule(queue=queues, limit=limits, most=most_claims)
    def claim_and_release(self, queue: str, limit: int, most: int) -> None:
        """So that messages meet their limits."""
        self.number += 1
        held = Held(queue, f"{self.number:032x}")
        self._claim(held, limit, 60.0, 60.0, most)
        self.release_claim(held)

    @rule(held=claims)
    def delete_what_it_holds(self, held: Held) -> None:
        claim = self.both(lambda backend: backend.claims.get(held.queue, held.id))
        if isinstance(claim, HeldClaim) and claim.messages:
            idents = [claim.messages[0].id]
            self.both(lambda backend: backend.claims.delete_many(held.queue, idents, held.id))

    @rule(held=claims, chosen=places)
    def delete_with_a_claim(self, held: Held, chosen: list[int]) -> None:
        idents = self.pick(held.queue, chosen)
        self.both(lambda backend: backend.claims.delete_many(held.queue, idents, held.id))

    @rule(queue=queues, chosen=places)
    def delete_without(self, queue: str, chosen: list[int]) -> None:
        idents = self.pick(queue, chosen)
        self.both(lambda backend: backend.claims.delete_many(queue, idents))

    @rule(queue=queues, limit=st.integers(1, 2))
    def pop(self, queue: str, limit: int) -> None:
        self.both(lambda backend: backend.claims.pop(queue, limit))

    @rule(queue=queues, claimed=st.booleans(), limit=st.sampled_from([1, 50]))
    def list_free(self, queue: str, claimed: bool, limit: int) -> None:
        self.both(lambda backend: backend.claims.list_free(queue, claimed=claimed, limit=limit))

    @rule(queue=queues)
    def list_claims(self, queue: str) -> None:
        for held in self.both(lambda backend: backend.claims.list_claims(queue, limit=1)):
            self.both(lambda backend: backend.claims.list_claims(queue, after=held.id))  # noqa: B023 - called at once

    @rule(queue=queues)
    def count_claims(self, queue: str) -> None:
        self.both(lambda backend: backend.claims.stats(queue))

    # --- a pool on the same queues -----------------------------------------------------------------

    @rule(target=leases, queue=queues, limit=limits, ttl=lease_ttls)
    def fetch(self, queue: str, limit: int, ttl: float) -> Any:
        self.number += 1
        return self._fetch(queue, limit, ttl, self.number)

    @rule(target=leases, queue=queues, back=st.integers(0, 9))
    def fetch_again(self, queue: str, back: int) -> Any:
        """Where the number is a fetch's: what is still held under it."""
        return self._fetch(queue, 1, 30.0, max(self.number - back, 0))

    def _fetch(self, queue: str, limit: int, ttl: float, number: int) -> Any:
        self.tidy()
        ours = self.ours.fetch_many(queue, limit=limit, ttl=ttl, fetch_id=f"fetch-{number}")
        model = self.model.fetch_many(queue, limit=limit, ttl=ttl, fetch_id=f"fetch-{number}")
        assert [face(lease) for lease in ours] == [face(lease) for lease in model]
        return multiple(*(Pair(one, other) for one, other in zip(ours, model, strict=True)))

    @rule(pair=leases, verdict=verdicts)
    def settle(self, pair: Pair, verdict: Settlement) -> None:
        self.tidy()
        call = f"{verdict!r}:{pair.ours.owner_token}"
        assert self.ours.settle_many([(pair.ours, verdict)], call) == self.model.settle_many(
            [(pair.model, verdict)], call
        )

    @rule(pair=leases, ttl=lease_ttls)
    def renew_lease(self, pair: Pair, ttl: float) -> None:
        self.tidy()
        [ours], [model] = self.ours.renew_many([pair.ours], ttl), self.model.renew_many([pair.model], ttl)
        assert (ours is None) == (model is None)

    @rule(queue=queues)
    def reap(self, queue: str) -> None:
        self.both(lambda backend: sorted(backend.reap(queue, AT_ONCE), key=lambda reaped: reaped.id))

    # --- time, and an administrator ----------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 29.5, 30.0, 60.0, 60.0, 540.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.advance(seconds)

    @rule(where=filters, verb=st.sampled_from(Verb), limit=limits)
    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> None:
        self.tidy()
        self.both(lambda backend: backend.bulk(where, verb, limit=limit))

    @rule()
    def look_at_everything(self) -> None:
        self.tidy()
        for queue in QUEUES:
            where = MessageFilter(queue=queue)
            self.both(lambda backend: backend.list_messages(where, limit=1000))  # noqa: B023 - called at once
            self.both(lambda backend: backend.stats(queue))  # noqa: B023
        self.both(lambda backend: backend.queues())

    @invariant()
    def what_nobody_needs_to_notice_is_the_same(self) -> None:
        if self.is_time_to_look():
            self.both(facts)


def portrait(answer: Any) -> Any:
    """Without cursors, and without the moment since which a message has been free: nobody says which that is."""
    match answer:
        case list() | tuple():
            return type(answer)(portrait(one) for one in answer)
        case HeldClaim():
            return replace(answer, messages=portrait(answer.messages))
        case QueueMessage():
            return replace(answer, cursor="")
        case Message():
            return replace(
                answer, cursor="", available_at=answer.available_at if answer.state is State.DELAYED else 0.0
            )
        case _:
            return answer


def facts(backend: QueueBackend) -> list[tuple[object, ...]]:
    """Of all messages by id, whoever has noticed that a claim has ended."""
    counts = [
        (queue, stats.pending, stats.delayed, stats.posted, stats.dead)
        for queue in QUEUES
        for stats in [backend.stats(queue)]
    ]
    listed = [
        (one.id, one.state is State.DEAD, one.deliveries, one.crashes, one.claims, one.ends_at, one.reason)
        for one in backend.list_messages(limit=1000)
    ]
    return [*counts, *sorted(listed, key=lambda fact: fact[0])]


def face(lease: JobLease) -> tuple[object, ...]:
    """What must be the same in two leases."""
    return lease.id, lease.queue, lease.body, lease.attempts, lease.crashes, lease.deliveries


@pytest.mark.spans
@pytest.mark.needs("leases", "claims", "priorities", "idempotent_settle", "exact_crashes")
@pytest.mark.lacks("native_reap")
def test_claims_answer_as_those_of_memory_do(harness_type: type[Harness]) -> None:
    compare(Claims, harness_type, examples=50)
