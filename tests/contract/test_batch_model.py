"""Any sequence of operations on batches, on a backend and on `memory://` side by side: every count must be the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule
from support.harness import Harness
from support.jobs import a_job
from support.side_by_side import Pair, SideBySide, compare

from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, ReapPolicy, State, Verb
from jobpool.errors import InvalidJob
from jobpool.message.batches import BATCH_MEMORY_S, BatchCall
from jobpool.message.definition import JobDefinition
from jobpool.message.settlement import Abandon, Ack, Forfeit, Move, Nack, Release, Settlement

QUEUES = ("reports", "mails")
DONE = "done"
BATCHES = ("a", "b", "c", "d")
LONG = 10 * BATCH_MEMORY_S
"""Seconds of a lease that ends only if it is taken away."""

queues = st.sampled_from(QUEUES)
batches = st.sampled_from(BATCHES)
some_batch = st.none() | batches
settlements = st.sampled_from(
    [Ack(), Ack(), Nack(0.0, "boom"), Abandon("failed"), Abandon("cancelled"), Release(), Forfeit("SIGSEGV")]
)


def enqueued(backend: QueueBackend, jobs: list[JobDefinition]) -> list[str]:
    """Their ids; where they are refused, not for which of their batches."""
    try:
        return backend.enqueue_many(jobs)
    except InvalidJob:
        return []


class Comparison(SideBySide):
    """Batches within batches, their members in two queues, and what comes of these."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.told: list[list[str]] = [[], []]

    @initialize(target=leases, parent=st.sampled_from(BATCHES[:2]))
    def begin_with_some(self, parent: str) -> Any:
        self.open(BATCHES[0], None)
        self.open(BATCHES[2], parent)
        for batch in (BATCHES[0], BATCHES[2], None):
            self.enqueue("reports", batch, 2)
        return self.fetch("reports", 3)

    @rule(batch=batches, parent=some_batch)
    def open(self, batch: str, parent: str | None) -> None:
        self.calls += 1
        ids = [f"{batch}-{self.calls}-{kind}" for kind in ("success", "done")]

        def opened(backend: QueueBackend) -> None:
            both = [JobDefinition("told", queue=DONE, identifier=ident) for ident in ids]
            backend.call_batch(BatchCall("open", batch, parent, ("on_success", "on_done")), both)

        self.advance(0.001)  # nested batches are listed by the time of their opening, which no two share
        self.both(opened)

    @rule(batch=batches, stop=st.sampled_from([False, False, True]))
    def close(self, batch: str, stop: bool) -> None:
        self.both(lambda backend: backend.batches.close(batch, stop))

    @rule(queue=queues, batch=some_batch, count=st.integers(1, 3))
    def enqueue(self, queue: str, batch: str | None, count: int) -> None:
        self.calls += 1
        jobs = [a_job(queue=queue, batch=batch, identifier=f"job-{self.calls}-{place}") for place in range(count)]
        self.both(lambda backend: backend.enqueue_many(jobs))

    @rule(queue=queues, batches=st.lists(some_batch, min_size=2, max_size=3), keyed=st.booleans())
    def enqueue_mixed(self, queue: str, batches: list[str | None], keyed: bool) -> None:
        """In one step, of which one that is refused leaves nothing; or ids and keys that may be known."""
        self.calls += 1
        fields: dict[str, Any] = {"unique": True, "idempotency_key": "k"} if keyed else {}
        jobs = [
            a_job(queue=queue, batch=batch, identifier=f"mixed-{self.calls // 2}-{place}", **fields)
            for place, batch in enumerate(batches)
        ]
        self.both(lambda backend: enqueued(backend, jobs))

    @rule(target=leases, queue=queues, limit=st.integers(1, 4))
    def fetch(self, queue: str, limit: int) -> Any:
        self.calls += 1
        ours = self.ours.fetch_many(queue, limit=limit, ttl=LONG, fetch_id=str(self.calls))
        model = self.model.fetch_many(queue, limit=limit, ttl=LONG, fetch_id=str(self.calls))
        assert [lease.id for lease in ours] == [lease.id for lease in model]
        return multiple(*(Pair(one, other) for one, other in zip(ours, model, strict=True)))

    @rule(pairs=st.lists(leases, min_size=1, max_size=4), kinds=st.lists(settlements, min_size=4, max_size=4))
    def settle(self, pairs: list[Pair], kinds: list[Settlement]) -> None:
        self._settle(list(zip(pairs, kinds, strict=False)))

    @rule(pair=leases, queue=queues, batch=batches, dies=st.booleans())
    def bring(self, pair: Pair, queue: str, batch: str, dies: bool) -> None:
        self.calls += 1
        brought = (a_job(queue=queue, batch=batch, identifier=f"brought-{self.calls}"),)
        self._settle([(pair, Abandon("failed", follow_ups=brought) if dies else Ack(brought))])

    @rule(pair=leases)
    def move(self, pair: Pair) -> None:
        self._settle([(pair, Move(QUEUES[pair.ours.queue == QUEUES[0]]))])

    def _settle(self, work: list[tuple[Pair, Settlement]]) -> None:
        """Twice under one id: the second time is a repeat."""
        self.calls += 1
        for _ in range(2):
            ours = self.ours.settle_many([(pair.ours, kind) for pair, kind in work], f"call-{self.calls}")
            model = self.model.settle_many([(pair.model, kind) for pair, kind in work], f"call-{self.calls}")
            assert ours == model

    @rule(queue=queues)
    def reap(self, queue: str) -> None:
        policy = ReapPolicy(max_crashes=1, back_off=0.0)
        self.both(lambda backend: sorted((reaped.id, reaped.dead) for reaped in backend.reap(queue, policy)))

    @rule(queue=queues, verb=st.sampled_from(Verb), dead=st.booleans(), limit=st.integers(1, 3))
    def bulk(self, queue: str, verb: Verb, dead: bool, limit: int) -> None:
        states = (State.DEAD,) if dead else (State.WAITING, State.DELAYED)
        self.both(lambda backend: backend.bulk(MessageFilter(queue=queue, states=states), verb, limit=limit))

    @rule(queue=queues, limit=st.integers(1, 2), pops=st.booleans())
    def take(self, queue: str, limit: int, pops: bool) -> None:
        """Free jobs, for good, or by a claim that deletes them."""
        self.calls += 1
        claim = f"{self.calls:032x}"

        def taken(backend: QueueBackend) -> Any:
            if pops:
                return [message.id for message in backend.claims.pop(queue, limit)]
            held = backend.claims.claim(queue, limit=limit, ttl=60.0, grace=60.0, claim_id=claim)
            ids = [message.id for message in held.messages] if held else []
            return backend.claims.delete_many(queue, ids, claim) if held else ids

        self.both(taken)

    @rule(seconds=st.sampled_from([5.0, 5.0, BATCH_MEMORY_S + 5.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.advance(seconds)

    @invariant()
    def all_counts_are_the_same(self) -> None:
        if not self.is_time_to_look():
            return
        for batch in BATCHES:
            self.both(partial(portrait, batch=batch))
        # Of batches that end in one step, any may be told of first; but those of an earlier step stay before them.
        told = [done_told(self.ours), done_told(self.model)]
        assert sorted(told[0]) == sorted(told[1])
        assert [ids[: len(before)] for ids, before in zip(told, self.told, strict=True)] == self.told
        self.told = told

    def ask(self, operation: Callable[[QueueBackend], Any], backend: QueueBackend) -> Any:
        try:
            return operation(backend)
        except InvalidJob as error:
            return str(error)


def done_told(backend: QueueBackend) -> list[str]:
    return [message.id for message in backend.list_messages(MessageFilter(queue=DONE))]


def portrait(backend: QueueBackend, batch: str) -> Any:
    """What must be the same of a batch, whatever the broker's own clock says."""
    found = backend.batches.get(batch)
    if found is None:
        return None
    # Some brokers list one that is forgotten, and twice if its id was used again; the last place is that of today's.
    listed = dict.fromkeys(reversed(found.nested))
    nested = [name for name in listed if (one := backend.batches.get(name)) and one.parent == batch]
    same = {"created_at": 0.0, "ended_at": found.has_ended, "failed_ids": sorted(found.failed_ids), "nested": nested}
    return asdict(found) | same, sorted(backend.batches.members(batch, 100))


@pytest.mark.needs("leases", "key_store", "atomic_across_queues", "claims", "exact_crashes")
@pytest.mark.lacks("native_reap")
def test_it_counts_as_memory_does(harness_type: type[Harness]) -> None:
    compare(Comparison, harness_type, examples=60)
