"""Many consumers at once, in processes of their own where the backend is shared by processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing.process import BaseProcess

import pytest
from support import crowd
from support.apart import context
from support.claims import post
from support.crowd import QUEUES, settle_for_ever
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, numbered
from support.waiting import wait_until

from jobpool.broker.backend import QueueBackend
from jobpool.message.batches import BatchCall
from jobpool.message.definition import JobDefinition

pytestmark = [pytest.mark.needs("leases"), pytest.mark.xdist_group("crowds")]  # their processes are made once a file


def test_eight_consumers_never_hold_a_message_twice(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    # Brokers that count by looking at each message take their time over 2,000.
    known = live.enqueue_many(numbered(2000 if harness.capabilities.exact_counts else 400))
    seen = [entry for part in harness.crowd(opener, crowd.drain, 8) for entry in part]
    assert sorted(ident for ident, _, _ in seen) == sorted(known)
    assert {deliveries for _, deliveries, _ in seen} == {1}
    assert all(accepted for _, _, accepted in seen)
    assert live.stats(QUEUE).pending == 0


@pytest.mark.needs("exact_crashes")
@pytest.mark.lacks("native_reap")
def test_four_reapers_charge_each_expiry_once_and_lose_nothing(
    harness: Harness, opener: Opener, live: QueueBackend
) -> None:
    known = live.enqueue_many(numbered(200))
    acked = Counter(ident for acks in harness.crowd(opener, crowd.reap_and_settle, 4) for ident in acks)
    dead = {message.id for message in live.list_messages(limit=1000)}
    assert acked.total() == len(acked)
    assert set(acked) | dead == set(known)
    assert not set(acked) & dead


def test_one_message_is_settled_by_one_of_its_consumers(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    ident = live.enqueue(numbered(1)[0])
    seen = [entry for part in harness.crowd(opener, crowd.drain, 4) for entry in part]
    assert seen == [(ident, 1, True)]
    assert live.stats(QUEUE).pending == 0


# --- claims, pools and takers at once on one queue, where claims and leases end in mid-work -------------------


def in_two_hands(spans: list[crowd.Span]) -> list[tuple[crowd.Span, crowd.Span]]:
    """Neighbours in time that held one message at one moment, and are not one holder."""
    real = sorted((span for span in spans if span.start < span.end), key=lambda span: (span.message, span.start))
    return [
        (one, other)
        for one, other in pairwise(real)
        if one.message == other.message and one.holder != other.holder and other.start < one.end
    ]


def test_a_message_in_two_hands_would_be_seen() -> None:
    one, other = crowd.Span("m", "one", 1.0, 3.0), crowd.Span("m", "other", 2.0, 4.0)
    assert in_two_hands([other, one]) == [(one, other)]
    assert in_two_hands([one, crowd.Span("m", "other", 3.0, 4.0), crowd.Span("n", "other", 2.0, 4.0)]) == []


@pytest.mark.spans
@pytest.mark.needs("claims")
@pytest.mark.lacks("native_reap")
def test_each_message_is_finished_once_and_never_in_two_hands(
    harness: Harness, opener: Opener, live: QueueBackend
) -> None:
    known = post(live, *(b"%d" % number for number in range(60))) + live.enqueue_many(numbered(60))
    parts = harness.crowd(opener, crowd.churn, 4)
    assert sorted(ident for part in parts for ident in part.finished) == sorted(known)
    assert in_two_hands([span for part in parts for span in part.spans]) == []
    assert (live.list_messages(), live.queues()) == ([], [])


# --- guards --------------------------------------------------------------------------------------------------

CROWD = 8


def most_at_once(spans: list[crowd.Times]) -> int:
    """How many of the spans share a moment, at the most."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    inside = most = 0
    for _, step in edges:
        inside += step
        most = max(most, inside)
    return most


@pytest.mark.needs("key_store")
def test_places_are_never_exceeded(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    live.enqueue_many(numbered(120))
    spans = [span for part in harness.crowd(opener, crowd.hold_places, CROWD) for span in part]
    assert len(spans) == 120
    assert most_at_once(spans) <= 3
    assert live.keys.holders(QUEUE, "queue") == []


@pytest.mark.needs("key_store")
def test_a_key_runs_to_its_end_once(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    keys = [f"order-{number}" for number in range(20)]
    live.enqueue_many([a_job(key) for _ in range(6) for key in keys])
    ran = Counter(key for part in harness.crowd(opener, crowd.run_keys_once, CROWD) for key in part)
    assert ran == Counter(keys)
    assert live.stats(QUEUE).pending == 0


@pytest.mark.spans
@pytest.mark.needs("key_store")
def test_a_unique_job_of_a_crowd_is_one_message_with_one_id(
    harness: Harness, opener: Opener, live: QueueBackend
) -> None:
    ids = {ident for part in harness.crowd(opener, crowd.enqueue_the_same, CROWD) for ident in part}
    assert len(ids) == 1
    assert [message.id for message in live.list_messages()] == list(ids)


@pytest.mark.needs("key_store")
def test_a_rate_is_exceeded_in_no_window(harness: Harness, opener: Opener, live: QueueBackend) -> None:
    live.enqueue_many(numbered(CROWD))
    parts = harness.crowd(opener, crowd.start_within_the_rate, CROWD)
    spans = sorted((span for part in parts for span in part), key=lambda span: span[1])
    most, window = crowd.RATE.most, crowd.RATE.window
    assert len(spans) > most, "the rate never had room again"
    for first in range(len(spans) - most):
        together = spans[first : first + most + 1]
        # However late a start was counted and however early the first: so many never fit in one window.
        assert max(after for _, after in together) - min(before for before, _ in together) >= window - 0.001


TOGETHER, KILLS = 4, 8
BATCHES = [f"batch-{number}" for number in range(2 * KILLS)]
KINDS = {"plain": 24, "move": 8, "bring": 8, "fail": 2}
MEMBERS = KINDS["plain"] + KINDS["move"] + 2 * KINDS["bring"]
"""Of a batch in which none fails."""

DONE = "done"


@pytest.mark.needs("key_store", "atomic_across_queues")
@pytest.mark.parametrize("harness", ["sqlite", "postgres", "redis"], indirect=True)  # that processes share
def test_batches_end_once_though_those_who_settle_their_members_are_killed(opener: Opener, live: QueueBackend) -> None:
    called: Counter[str] = Counter()
    with settlers(opener) as processes:
        for kill in range(KILLS):
            before = left(live)
            open_with_members(live, BATCHES[2 * kill], fails=False)
            open_with_members(live, BATCHES[2 * kill + 1], fails=True)
            wait_until(partial(lambda most: left(live) < most, before + MEMBERS), 60.0, "half of them have ended")
            processes[kill % TOGETHER].kill()
            processes[kill % TOGETHER] = started(opener, TOGETHER + kill)
        wait_until(lambda: hear(live, called) and all_have_ended(live), 90.0, "all have ended")
    hear(live, called)
    success = [batch for number, batch in enumerate(BATCHES) if number % 2 == 0]
    assert called == Counter([f"done {batch}" for batch in BATCHES] + [f"success {batch}" for batch in success])
    for number, batch in enumerate(BATCHES):
        found = live.batches.get(batch)
        assert found is not None
        failed = KINDS["fail"] * (number % 2)
        assert (found.total, found.succeeded, found.failed) == (MEMBERS + failed, MEMBERS, failed)
        assert live.batches.members(batch, 10) == []
    assert sum(live.stats(queue).pending for queue in QUEUES) == 0


def open_with_members(backend: QueueBackend, batch: str, fails: bool) -> None:
    """Its callbacks have minted ids, which no broker remembers: one that is added twice is seen."""
    both = [JobDefinition("told", f"{name} {batch}", queue=DONE) for name in ("done", "success")]
    backend.call_batch(BatchCall("open", batch, None, ("on_done", "on_success")), both)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count) if fails or kind != "fail"]
    backend.enqueue_many([a_job((batch, kind), queue=QUEUES[n % 2], batch=batch) for n, kind in enumerate(kinds)])
    backend.batches.close(batch)


def left(backend: QueueBackend) -> int:
    return sum(found.left for found in map(backend.batches.get, BATCHES) if found)


def all_have_ended(backend: QueueBackend) -> bool:
    return all(found and found.has_ended for found in map(backend.batches.get, BATCHES))


def hear(backend: QueueBackend, called: Counter[str]) -> bool:
    """Take the callbacks that have come."""
    for lease in backend.fetch_many(DONE, limit=100, ttl=60.0):
        called[lease.envelope.payload] += 1
        backend.ack(lease)
    return True


@contextmanager
def settlers(opener: Callable[[], QueueBackend]) -> Iterator[list[BaseProcess]]:
    processes = [started(opener, number) for number in range(TOGETHER)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def started(opener: Callable[[], QueueBackend], number: int) -> BaseProcess:
    process = context().Process(target=settle_for_ever, args=(opener, number), daemon=True)
    process.start()
    return process
