"""Any sequence of operations, on a backend and on `memory://` side by side: every answer must be the same.

Time moves by whole steps; where the backend has a clock of its own, leases and delays end between the steps, so that a
few milliseconds this way or that do not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, precondition, rule
from msgspec.structs import replace
from support.harness import Harness
from support.jobs import a_job, at
from support.side_by_side import Pair, SideBySide, compare

from jobpool.broker.backend import QueueBackend
from jobpool.broker.editing import edit, read_changes
from jobpool.broker.values import Edited, MessageFilter, ReapPolicy, State, Verb
from jobpool.message.guards import Guards, Hold, Rate
from jobpool.message.lease import JobLease
from jobpool.message.names import LONGEST_IDENTIFIER
from jobpool.message.settlement import Abandon, Ack, Move, Nack, Release, Settled, Settlement

QUEUES = ("reports", "mails")
AT_ONCE = ReapPolicy(max_crashes=2, window=40.0, back_off=0.0)

steps = st.integers(0, 5)
queues = st.sampled_from(QUEUES)
priorities = st.sampled_from([0, 5, 5, 9])
reasons = st.sampled_from(["hopeless", "failed"])
errors = st.sampled_from([None, "boom", "Zürich", "100 %\0"])
causes = st.sampled_from([None, "SIGKILL"])
given_ids = st.sampled_from(["a", "A:b/c@d=e~+1", "c" * 128])
filters = st.builds(
    MessageFilter,
    queue=st.none() | queues,
    states=st.lists(st.sampled_from(State), unique=True, max_size=3).map(tuple),
    reason=st.none() | st.sampled_from(["hopeless", "crash-limit"]),
    older_than=st.none() | st.sampled_from([1.5, 4.5]),
    text=st.none() | st.sampled_from(["ZÜRICH", "report", "sig", "%", "_"]),
)
names = st.sampled_from(["a", "ключ {}:*%"])
guards = st.builds(
    Guards,
    key=st.none() | names,
    keep=st.sampled_from([3.0, 50.0]),
    holds=st.lists(st.builds(Hold, names, st.integers(1, 2)), unique_by=lambda hold: hold.name, max_size=2).map(tuple),
    rates=st.lists(st.builds(Rate, names, st.just(2), st.just(5.0)), unique=True, max_size=2).map(tuple),
)


def _longer(first: str, ident: str) -> str:
    return f"{first}{ident}"[:LONGEST_IDENTIFIER]


class Comparison(SideBySide):
    """Messages, leases, and what is granted to leases."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.batches: list[list[tuple[Pair, Settlement]]] = []
        self.edited: set[str] = set()
        # A broker's own clock goes on by itself: let nothing happen at a whole step.
        self.slack = 0.0 if self.harness.tick < 0.001 else 0.5

    def both_with_keys(self, operation: Callable[[QueueBackend], Any]) -> None:
        """As `both`, where there is a key store."""
        if self.harness.capabilities.key_store:
            self.both(operation)

    def seconds(self, steps: int) -> float:
        return steps + self.slack if steps else 0.0

    # --- producing ---------------------------------------------------------------------------------

    @initialize(target=leases)
    def begin_with_some(self) -> Any:
        """Most rules need leases: a few that run out soon, and a few that last."""
        for queue in QUEUES * 3:
            self._enqueue_here(queue, 5, 0)
        return multiple(*self._take("reports", 2, 3), *self._take("mails", 1, 6))

    @rule(queue=queues, priority=priorities, delay=steps)
    def enqueue(self, queue: str, priority: int, delay: int) -> None:
        self._enqueue_here(queue, priority, delay)

    def _enqueue_here(self, queue: str, priority: int, delay: int) -> None:
        def job(now: float) -> Any:
            return a_job(queue=queue, priority=priority, scheduled_at=at(now + self.seconds(delay)) if delay else None)

        ident = self.ours.enqueue(job(self.harness.now()))
        message = self.model.pack(job(self.clock.wall()).with_identifier(ident))
        self.model._enqueue([replace(message, given=False)])  # the model cannot mint the same id

    @rule(ids=st.lists(given_ids, min_size=1, max_size=3), queue=queues)
    def enqueue_with_ids(self, ids: list[str], queue: str) -> None:
        self.both(lambda backend: backend.enqueue_many([a_job(ident, identifier=ident, queue=queue) for ident in ids]))

    @rule(keys=st.lists(names, min_size=1, max_size=3), queue=queues)
    def enqueue_unique(self, keys: list[str], queue: str) -> None:
        self.calls += 1
        jobs = [
            a_job(key, identifier=f"unique-{self.calls}-{place}", unique=True, idempotency_key=key, queue=queue)
            for place, key in enumerate(keys)
        ]
        self.both_with_keys(lambda backend: backend.enqueue_many(jobs))

    # --- consuming ---------------------------------------------------------------------------------

    @rule(target=leases, queue=queues, limit=st.integers(1, 3), ttl=st.integers(1, 6))
    def fetch(self, queue: str, limit: int, ttl: int) -> Any:
        return multiple(*self._take(queue, limit, ttl))

    @rule(target=leases, queue=queues, limit=st.integers(1, 3), ttl=st.integers(1, 6), wanted=guards)
    def deliver(self, queue: str, limit: int, ttl: int, wanted: Guards) -> Any:
        """As a pool does it: fetch, ask for all of them together, go on with what was granted."""
        self._enqueue_here(queue, 5, 0)
        taken = self._take(queue, limit, ttl)
        return multiple(*taken, *self._begin(taken, wanted))

    @rule(target=leases, queue=queues, number=st.integers(1, 5))
    def fetch_again(self, queue: str, number: int) -> Any:
        return multiple(*(self._fetch(queue, 2, 3, f"fetch-{number}") if number <= self.calls else ()))

    def _take(self, queue: str, limit: int, ttl: int) -> list[Pair]:
        self.calls += 1
        return self._fetch(queue, limit, ttl, f"fetch-{self.calls}")

    def _fetch(self, queue: str, limit: int, ttl: int, ident: str) -> list[Pair]:
        ours = self.ours.fetch_many(queue, limit=limit, ttl=self.seconds(ttl), fetch_id=ident)
        model = self.model.fetch_many(queue, limit=limit, ttl=self.seconds(ttl), fetch_id=ident)
        assert [self.face(lease) for lease in ours] == [self.face(lease) for lease in model]
        return [Pair(one, other) for one, other in zip(ours, model, strict=True)]

    def face(self, lease: JobLease) -> tuple[object, ...]:
        """What must be the same in two leases."""
        return lease.id, lease.queue, lease.body, lease.attempts, lease.crashes, lease.deliveries, lease.begun

    # --- settling ----------------------------------------------------------------------------------

    @rule(pair=leases)
    def ack(self, pair: Pair) -> None:
        self.settle(pair, lambda backend, lease: backend.ack(lease))

    @rule(pair=leases, delay=steps, error=errors, cause=causes)
    def nack(self, pair: Pair, delay: int, error: str | None, cause: str | None) -> None:
        self.settle_as(pair, Nack(self.seconds(delay), error, cause))

    @rule(pair=leases, reason=reasons, error=errors, cause=causes, followed=st.booleans())
    def abandon(self, pair: Pair, reason: str, error: str | None, cause: str | None, followed: bool) -> None:
        copies = (a_job("copy", queue="mails", identifier=_longer("copy-of-", pair.ours.id)),) if followed else ()
        self.settle_as(pair, Abandon(reason, error, cause, copies))

    @rule(pair=leases, attempts=st.integers(0, 1), crashes=st.integers(0, 1), error=errors, cause=causes)
    def move(self, pair: Pair, attempts: int, crashes: int, error: str | None, cause: str | None) -> None:
        there = "mails" if pair.ours.queue == "reports" else "reports"
        self.settle_as(pair, Move(there, attempts, crashes, error, cause))

    @rule(pair=leases, delay=steps)
    def release(self, pair: Pair, delay: int) -> None:
        self.settle(pair, lambda backend, lease: backend.release(lease, self.seconds(delay)))

    @rule(pair=leases)
    def forfeit(self, pair: Pair) -> None:
        if self.harness.capabilities.leases:
            self.settle(pair, lambda backend, lease: backend.forfeit(lease, "SIGSEGV"))

    @rule(pair=leases, delay=steps)
    def release_unbegun(self, pair: Pair, delay: int) -> None:
        self.settle_as(pair, Release(self.seconds(delay), begun=False))

    def settle_as(self, pair: Pair, settlement: Settlement) -> None:
        """Under an id that is the lease's and the verb's: the same settlement again is a repeat."""
        self.settle_all([(pair, settlement)], f"{settlement!r}:{pair.ours.owner_token}")

    def settle_all(self, batch: list[tuple[Pair, Settlement]], call: str) -> None:
        ours = self.ours.settle_many([(pair.ours, settlement) for pair, settlement in batch], call)
        model = self.model.settle_many([(pair.model, settlement) for pair, settlement in batch], call)
        for (pair, _), one, other in zip(batch, ours, model, strict=True):
            self.compare_answers(pair, one, other)

    def compare_answers(self, pair: Pair, ours: Settled, model: Settled) -> None:
        """How a lease from before an edit is refused, is the broker's."""
        assert ours is model or (not ours and not model and pair.ours.id in self.edited)

    def settle(self, pair: Pair, verb: Callable[[QueueBackend, JobLease], Settled]) -> None:
        self.compare_answers(pair, verb(self.ours, pair.ours), verb(self.model, pair.model))

    @rule(
        pairs=st.lists(leases, min_size=1, max_size=4),
        verbs=st.lists(
            st.sampled_from([Ack(), Nack(0.0, "boom"), Abandon("hopeless"), Release(), Release(0.0, False)]),
            min_size=4,
            max_size=4,
        ),
    )
    def settle_batch(self, pairs: list[Pair], verbs: list[Settlement]) -> None:
        self.batches.append(list(zip(pairs, verbs[: len(pairs)], strict=True)))
        self.settle_batch_again(len(self.batches) - 1)

    @precondition(lambda self: self.batches)
    @rule(number=st.integers(0, 3))
    def settle_batch_again(self, number: int) -> None:
        """The same batch under the same id, in which it is a repeat for a minute."""
        number %= len(self.batches)
        self.settle_all(self.batches[number], f"call-{number}")

    @rule(pair=leases, queue=queues)
    def ack_with_follow_up(self, pair: Pair, queue: str) -> None:
        follow_up = a_job("next", queue=queue, identifier=_longer("after-", pair.ours.id))
        self.settle_all([(pair, Ack((follow_up,)))], f"follow-{pair.ours.owner_token}")

    @rule(pair=leases, ttl=st.integers(1, 6))
    def renew(self, pair: Pair, ttl: int) -> None:
        [ours] = self.ours.renew_many([pair.ours], self.seconds(ttl))
        [model] = self.model.renew_many([pair.model], self.seconds(ttl))
        assert (ours is None) == (model is None)

    # --- keys, places and rates --------------------------------------------------------------------

    @rule(target=leases, pairs=st.lists(leases, min_size=1, max_size=4), wanted=guards)
    def begin(self, pairs: list[Pair], wanted: Guards) -> Any:
        return multiple(*self._begin(pairs, wanted))

    def _begin(self, pairs: list[Pair], wanted: Guards) -> list[Pair]:
        """What was granted, with its guards."""
        if not self.harness.capabilities.key_store:
            return []
        ours = self.ours.keys.begin_many([(pair.ours, wanted) for pair in pairs])
        model = self.model.keys.begin_many([(pair.model, wanted) for pair in pairs])
        assert [(answer.answer, answer.name) for answer in ours] == [(answer.answer, answer.name) for answer in model]
        assert [answer.after for answer in ours] == pytest.approx([answer.after for answer in model], abs=self.slack)
        granted = [pair for pair, answer in zip(pairs, ours, strict=True) if answer]
        return [Pair(pair.ours.guarded(wanted), pair.model.guarded(wanted)) for pair in granted]

    @rule(queue=queues, key=names, ttl=st.sampled_from([3.0, 50.0]))
    def run_first(self, queue: str, key: str, ttl: float) -> None:
        self.both_with_keys(lambda backend: backend.keys.first_run(queue, key, ttl))

    @rule(queue=queues, key=names)
    def forget(self, queue: str, key: str) -> None:
        self.both_with_keys(lambda backend: backend.keys.forget(queue, key))

    @rule(queue=queues, name=names, token=st.integers(0, 5))
    def take(self, queue: str, name: str, token: int) -> None:
        # Never repeated after more than half a minute: for how long a start is known for one, nobody has promised.
        ident = f"{token} of {self.clock.wall() // 30:.0f}"
        self.both_with_keys(lambda backend: round(backend.keys.take(queue, Rate(name, 2, 5.0), ident), 6))

    @rule(queue=queues, name=names.flatmap(lambda name: st.sampled_from([name, f"key:{name}"])))
    def ask_who_holds(self, queue: str, name: str) -> None:
        self.both_with_keys(lambda backend: backend.keys.holders(queue, name))

    # --- time, reaping, tending --------------------------------------------------------------------

    @rule(count=st.integers(1, 4) | st.sampled_from([60, 600]))
    def let_time_pass(self, count: int) -> None:
        self.advance(float(count))

    @rule(queue=queues)
    def reap(self, queue: str) -> None:
        self.both(lambda backend: sorted(backend.reap(queue, AT_ONCE), key=lambda reaped: reaped.id))

    @rule(queue=queues)
    def reap_by_age(self, queue: str) -> None:
        policy_free = [message for message in self.model.list_messages() if message.crashes]
        if not policy_free:  # later crashes draw a back-off, differently on each side
            self.both(lambda backend: backend.reap_expired(queue, visibility_timeout=self.seconds(2)))

    @rule(where=filters, verb=st.sampled_from(Verb), limit=st.integers(1, 3))
    def bulk(self, where: MessageFilter, verb: Verb, limit: int) -> None:
        self.both(lambda backend: backend.bulk(where, verb, limit=limit))

    @precondition(lambda self: "edits" not in self.harness.without)
    @rule(
        number=st.integers(0, 9),
        delay=st.none() | steps,
        priority=st.none() | priorities,
        queue=st.none() | queues,
    )
    def edit(self, number: int, delay: int | None, priority: int | None, queue: str | None) -> None:
        """Of one of the messages that there are."""
        known = [message.id for message in self.model.list_messages(limit=1000)]
        if not known or (delay, priority, queue) == (None, None, None):
            return
        ident = known[number % len(known)]
        self.edited.add(ident)

        def answer(backend: QueueBackend, now: float) -> Edited:
            when = None if delay is None else at(now + self.seconds(delay)) if delay else 0
            told = edit(backend, read_changes(backend, when, priority, queue), [ident])[ident]
            return Edited.EDITED if told is Edited.UNCHANGED else told  # the times of the two are not the very same

        assert answer(self.ours, self.harness.now()) is answer(self.model, self.clock.wall())

    @rule(where=filters, limit=st.integers(1, 3))
    def look(self, where: MessageFilter, limit: int) -> None:
        self.both(lambda backend: [message.id for message in backend.list_messages(where, limit=limit)])
        self.both(lambda backend: backend.count(where, cap=limit))

    @invariant()
    def the_whole_picture_is_the_same(self) -> None:
        if not self.is_time_to_look():
            return
        ours, model = self.ours.list_messages(limit=1000), self.model.list_messages(limit=1000)
        exact = not self.slack
        assert [self.portrait(message, exact) for message in ours] == [self.portrait(m, exact) for m in model]
        for queue in QUEUES:
            one, other = self.ours.stats(queue), self.model.stats(queue)
            assert (
                one == other
                if exact
                else dataclasses.replace(one, oldest=None) == dataclasses.replace(other, oldest=None)
            )
        assert self.ours.queues() == self.model.queues()

    def portrait(self, message: Any, exact: bool) -> Any:
        timeless = {} if exact else {"enqueued_at": 0.0, "available_at": 0.0, "died_at": None, "expires_at": None}
        return replace(message, cursor="", **timeless)


@pytest.mark.needs(
    "leases", "priorities", "idempotent_settle", "idempotent_fetch", "exact_crashes", "atomic_across_queues"
)
@pytest.mark.lacks("native_reap")
def test_it_answers_as_memory_does(harness_type: type[Harness]) -> None:
    compare(Comparison, harness_type, examples=60)
