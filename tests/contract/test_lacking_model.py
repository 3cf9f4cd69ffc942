"""Any sequence of operations, on a broker that frees expired leases itself and on `memory://`: it does as promised.

Asked is only what such brokers promise: every fetch takes all that is there, in any order; a refusal is any refusal; a
lease lasts as long as the broker says, and delays are rounded up as it does. Memory's reaper runs before each of its
fetches, and after a forfeit, because that is when such a broker charges.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule
from support.harness import Harness
from support.jobs import a_job, at
from support.side_by_side import Pair, SideBySide, compare

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import Message, MessageFilter, ReapPolicy, State, Verb
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settlement

QUEUES = ("reports", "mails")
DEAD = (State.DEAD,)
ASKED = 5.0
"""Seconds, of every fetch and renewal; what comes of it is the broker's affair."""

queues = st.sampled_from(QUEUES)
priorities = st.sampled_from([0, 5, 9])
delays = st.sampled_from([0.0, 1.5, 3.0, 40.0])
errors = st.sampled_from([None, "boom", "Zürich"])
causes = st.sampled_from([None, "SIGKILL"])
dead_ones = st.builds(
    MessageFilter,
    queue=st.none() | queues,
    states=st.just(DEAD),
    reason=st.none() | st.sampled_from(["hopeless", "crash-limit"]),
    text=st.none() | st.sampled_from(["ZÜRICH", "report", "sig"]),
)
settlements = st.one_of(
    st.just(Ack()),
    st.builds(Nack, delays, errors, causes),
    st.builds(Abandon, st.just("hopeless"), errors, causes),
    st.builds(Release, delays),
    st.builds(Forfeit, st.just("SIGSEGV")),
    st.builds(Move, queues, st.integers(0, 1), st.integers(0, 1), errors, causes),
)


class Comparison(SideBySide):
    """Messages and leases of brokers that copy what they settle."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        can = self.harness.capabilities
        self.clients = self.clients[:1] * 2  # a lease is its client's
        self.exact = can.exact_counts
        # Where an expiry may be charged or not, a limit would make dead letters of some and not of others.
        self.policy = ReapPolicy(max_crashes=2 if self.exact else 0, window=1e7, back_off=0.0)
        self.both(lambda backend: [backend.reap(queue, self.policy) for queue in QUEUES])
        self.calls = 0
        self.bodies: dict[tuple[str, str], bytes] = {}
        # No delay and no lease ends at a moment that both sides reach by different sums.
        self.slack = 0.25

    # --- producing and consuming -------------------------------------------------------------------

    @initialize(target=leases)
    def begin_with_some(self) -> Any:
        """Most rules need leases."""
        for queue in QUEUES * 2:
            self.enqueue(queue, 5, 0.0)
        return multiple(*self._take("reports"), *self._take("mails"))

    @rule(queue=queues, priority=priorities, delay=delays)
    def enqueue(self, queue: str, priority: int, delay: float) -> None:
        self.calls += 1
        ident = f"job-{self.calls}"
        self._enqueue(self.ours, a_job(ident, identifier=ident, queue=queue, priority=priority), delay)
        self._enqueue(
            self.model,
            a_job(ident, identifier=ident, queue=queue, priority=priority),
            self.harness.delayed(delay) if delay else 0.0,
        )

    def _enqueue(self, backend: QueueBackend, definition: Any, delay: float) -> None:
        now = self.harness.now() if backend is not self.model else self.clock.wall()
        backend.enqueue(definition.with_scheduled_at(at(now + delay)) if delay else definition)

    @rule(target=leases, queue=queues)
    def fetch(self, queue: str) -> Any:
        return multiple(*self._take(queue))

    def _take(self, queue: str) -> list[Pair]:
        """All that is there."""
        ours = self.ours.fetch_many(queue, limit=100, ttl=ASKED)
        self.model.reap(queue, self.policy)
        model = self.model.fetch_many(queue, limit=100, ttl=self.harness.lasts(ASKED))
        assert Counter(map(self.face, ours)) == Counter(map(self.face, model))
        for lease in ours:
            assert self.bodies.setdefault((lease.id, queue), lease.body) == lease.body
            assert lease.expires_at == pytest.approx(self.ours.clock.boot() + self.harness.lasts(ASKED), abs=0.5)
        self.charged_no_more(ours, model)
        by_id = {lease.id: lease for lease in model}
        return [Pair(lease, by_id[lease.id]) for lease in ours]

    def face(self, lease: JobLease) -> tuple[object, ...]:
        """What must be the same in two leases."""
        crashes = lease.crashes if self.exact else None
        return lease.id, lease.queue, lease.envelope.payload, lease.attempts, crashes, lease.deliveries

    @staticmethod
    def charged_no_more(ours: list[JobLease], model: list[JobLease]) -> None:
        exactly = {lease.id: lease.crashes for lease in model}
        assert all(lease.crashes <= exactly[lease.id] for lease in ours)

    # --- settling ----------------------------------------------------------------------------------

    @rule(pair=leases, settlement=settlements)
    def settle(self, pair: Pair, settlement: Settlement) -> None:
        self._settle([(pair, settlement)])

    @rule(batch=st.lists(st.tuples(leases, settlements), min_size=2, max_size=4))
    def settle_batch(self, batch: list[tuple[Pair, Settlement]]) -> None:
        self._settle(batch)

    def _settle(self, batch: list[tuple[Pair, Settlement]]) -> None:
        """Every call is a new one: what has been settled is refused the second time."""
        ours = self.ours.settle_many([(pair.ours, settlement) for pair, settlement in batch])
        model = [self.settle_model(pair.model, settlement) for pair, settlement in batch]
        assert list(map(bool, ours)) == model

    def settle_model(self, lease: JobLease, settlement: Settlement) -> bool:
        if isinstance(settlement, Nack | Release):
            delay = self.harness.delayed(settlement.delay) if settlement.delay else 0.0
            settlement = (
                Nack(delay, settlement.error, settlement.cause) if isinstance(settlement, Nack) else Release(delay)
            )
        [answer] = self.model.settle_many([(lease, settlement)])
        if answer and isinstance(settlement, Forfeit):
            self.model.reap(lease.queue, self.policy)
        return bool(answer)

    @rule(pairs=st.lists(leases, min_size=1, max_size=3))
    def renew(self, pairs: list[Pair]) -> None:
        ours = self.ours.renew_many([pair.ours for pair in pairs], ASKED)
        model = self.model.renew_many([pair.model for pair in pairs], self.harness.lasts(ASKED))
        assert [lease is not None for lease in ours] == [lease is not None for lease in model]

    # --- time and tending --------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 2.0, 10.0, 29.0, 61.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.advance(seconds + self.slack)

    @rule(where=dead_ones, verb=st.sampled_from([Verb.DELETE, Verb.RETRY, Verb.RESUME]))  # no job that waits is found
    def bulk(self, where: MessageFilter, verb: Verb) -> None:
        self._charge()
        self.both(lambda backend: backend.bulk(where, verb))

    @rule(where=dead_ones)
    def look(self, where: MessageFilter) -> None:
        self._charge()
        self.both(lambda backend: Counter(map(self.portrait, backend.list_messages(where, limit=1000))))
        self.both(lambda backend: backend.count(where))

    def _charge(self) -> None:
        """Have both sides see to what has expired: what dies of it dies at the next fetch."""
        for queue in QUEUES:
            self.settle_all(self._take(queue), Release())

    def settle_all(self, pairs: list[Pair], settlement: Settlement) -> None:
        self._settle([(pair, settlement) for pair in pairs])

    def portrait(self, message: Message) -> tuple[object, ...]:
        """What must be the same in two dead letters."""
        return (
            message.id,
            message.queue,
            message.handler,
            message.attempts,
            message.crashes if self.exact else None,
            message.deliveries,
            message.reason,
            message.last_error,
            message.cause if self.exact else None,
            message.priority if self.harness.capabilities.priorities else None,
        )

    @invariant()
    def no_message_is_lost_or_made(self) -> None:
        def total(backend: QueueBackend) -> list[int]:
            counted = [backend.stats(queue) for queue in QUEUES]
            return [stats.pending + stats.dead for stats in counted]

        self.both(total)


@pytest.mark.needs("leases", "native_reap")
def test_it_does_what_it_promises_as_memory_does(harness_type: type[Harness]) -> None:
    compare(Comparison, harness_type, examples=45 if harness_type.capabilities.exact_counts else 18)
