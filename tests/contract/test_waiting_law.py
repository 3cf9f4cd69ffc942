"""Waiting for a message: soon woken, never for long in error, and cheap (on the machine's own clock)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType

import pytest
from support.claims import AT_ONCE
from support.harness import Harness
from support.harnesses.base import Opener
from support.jobs import QUEUE, a_job, at, new_lease
from support.stalls import Stopwatch

import jobpool_backends
from jobpool.broker.backend import QueueBackend
from jobpool.broker.values import MessageFilter, State, Verb
from jobpool.errors import BackendUnavailable
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Ack, Forfeit, Nack, Release, Settled, Settlement

pytestmark = pytest.mark.needs("leases")


def test_it_gives_up_after_its_time(live: QueueBackend) -> None:
    started = Stopwatch()
    assert live.wait_any([QUEUE], 0.2) is None
    assert started.elapsed() >= 0.19
    assert started.seconds() < 2.0


def test_without_a_queue_it_waits_out_its_time(backend: QueueBackend) -> None:
    began = time.monotonic()
    assert backend.wait_any([], 0.2) is None
    assert time.monotonic() - began >= 0.2


@pytest.mark.spans
def test_what_is_there_is_found_at_once(live: QueueBackend) -> None:
    live.enqueue(a_job(queue="mails"))
    assert live.wait_any([QUEUE, "mails"], 5.0) == "mails"


@pytest.mark.spans
@pytest.mark.needs("chosen_ttl")
def test_without_time_to_wait_it_names_the_first_that_has_something(live: QueueBackend) -> None:
    names = [f"q{number}" for number in range(20)]
    live.enqueue_many([a_job(queue=name) for name in ("q17", "q4", "q9")])
    assert live.wait_any(names, 0.0) == "q4"
    assert live.wait_any(names[::-1], 0.0) == "q17"
    assert live.wait_any(names[:4], 0.0) is None


@pytest.mark.spans
def test_an_enqueue_wakes_whoever_waits(harness: Harness, opener: Opener) -> None:
    waiting, producing = harness.keep(opener()), harness.keep(opener())
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, ["mails", QUEUE], 30.0)
        for _ in range(20):
            producing.enqueue(a_job(queue="third"))
        assert not found.done(), "traffic of other queues wakes nobody"
        producing.enqueue(a_job())
        assert found.result(10.0) == QUEUE


def test_a_fetch_that_waits_returns_the_message(harness: Harness, opener: Opener) -> None:
    waiting, producing = harness.keep(opener()), harness.keep(opener())
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.fetch, QUEUE, ttl=30.0, wait=30.0)
        ident = producing.enqueue(a_job())
        lease = found.result(10.0)
    assert lease is not None
    assert (lease.id, lease.attempts, lease.crashes, lease.deliveries) == (ident, 0, 0, 1)


@pytest.mark.spans
def test_who_holds_a_lease_waits_for_more_as_well(harness: Harness, opener: Opener) -> None:
    waiting, producing = harness.keep(opener()), harness.keep(opener())
    producing.enqueue(a_job("held"))
    [held] = waiting.fetch_many(QUEUE, limit=1)
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, [QUEUE, "mails"], 30.0)
        producing.enqueue(a_job("more", queue="mails"))
        assert found.result(10.0) == "mails"
    [more] = waiting.fetch_many("mails", limit=2)
    assert more.envelope.payload == "more"
    assert waiting.settle_many([(held, Ack()), (more, Ack())]) == [Settled.OK, Settled.OK]


def test_what_one_was_told_of_another_may_fetch(harness: Harness, opener: Opener) -> None:
    """A hint is not a lease: who does not come for the message harms nobody."""
    told, other = harness.keep(opener()), harness.keep(opener())
    ident = other.enqueue(a_job())
    assert told.wait_any([QUEUE], 10.0) == QUEUE
    [lease] = other.fetch_many(QUEUE, limit=1, ttl=30.0, wait=20.0)
    assert (lease.id, lease.attempts, lease.crashes) == (ident, 0, 0)
    assert told.fetch(QUEUE) is None
    assert other.ack(lease) is Settled.OK


def test_a_delay_that_falls_due_is_not_missed(harness: Harness, live: QueueBackend) -> None:
    live.enqueue(a_job(scheduled_at=at(time.time() + 0.3)))
    started = Stopwatch()
    assert live.wait_any([QUEUE], 30.0) == QUEUE
    assert started.seconds() < 1.7 + harness.delayed(0.3)
    assert len(live.fetch_many(QUEUE, limit=1)) == 1


@pytest.mark.parametrize("verb", [Release(), Nack(), Ack((a_job("next"),)), Forfeit("SIGSEGV"), Abandon("by mistake")])
def test_whatever_makes_a_message_fetchable_wakes_whoever_waits(
    harness: Harness, opener: Opener, verb: Settlement
) -> None:
    waiting, other = harness.keep(opener()), harness.keep(opener())
    lease = new_lease(other)
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, [QUEUE], 30.0)
        assert other.settle_many([(lease, verb)]) == [Settled.OK]
        if isinstance(verb, Forfeit):
            other.reap(QUEUE, AT_ONCE)
        if isinstance(verb, Abandon):
            assert other.bulk(MessageFilter(states=(State.DEAD,)), Verb.RETRY) == 1
        assert found.result(10.0) == QUEUE


@pytest.mark.spans
def test_waiting_costs_next_to_nothing(live: QueueBackend) -> None:
    live.enqueue(a_job(queue="mails"))
    before = time.thread_time()
    assert live.wait_any([QUEUE], 1.0) is None
    assert time.thread_time() - before < 0.05


def test_whoever_waits_comes_back_when_the_backend_is_closed(live: QueueBackend) -> None:
    with ThreadPoolExecutor(3) as executor:
        waits = [executor.submit(live.wait_any, [QUEUE], 30.0) for _ in range(3)]
        live.close()
        assert [wait.result(10.0) for wait in waits] == [None] * 3


def test_a_fetch_that_waits_ends_when_the_backend_is_closed(
    live: QueueBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_any, waits = live._wait_any, threading.Event()

    def wait_then_tell(queues: Sequence[str], timeout: float) -> str | None:
        waits.set()
        return wait_any(queues, timeout)

    monkeypatch.setattr(live, "_wait_any", wait_then_tell)

    def fetch() -> JobLease | None:
        with suppress(BackendUnavailable):
            return live.fetch(QUEUE, wait=30.0)
        return None

    with ThreadPoolExecutor(1) as executor:
        fetched = executor.submit(fetch)
        assert waits.wait(10.0)
        live.close()
        assert fetched.result(10.0) is None


@pytest.mark.spans
def test_closed_between_any_two_steps_it_is_no_error(harness: Harness, opener: Opener) -> None:
    for step in (1, 2, 3, 5, 8, 13, 21, 34):
        backend = harness.keep(opener())
        backend.enqueue(a_job(queue="mails"))  # it has connected, as whoever waits in a pool has
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(wait_closed_at, step, backend).result(10.0) is None, step


def wait_closed_at(step: int, backend: QueueBackend) -> str | None:
    """What `wait_any` answers when another thread closes the backend as the so manieth of its functions begins."""
    [home] = jobpool_backends.__path__
    closer = threading.Thread(target=backend.close)
    begun = 0

    def close_in_time(frame: FrameType, event: str, arg: object) -> None:
        nonlocal begun
        del event, arg
        begun += frame.f_code.co_filename.startswith(home)
        if begun == step and closer.ident is None:
            closer.start()
            closer.join(0.05)  # by then it has closed, or waits for a lock that is held here

    sys.settrace(close_in_time)
    try:
        return backend.wait_any([QUEUE], 0.1)
    finally:
        sys.settrace(None)
        if closer.ident is not None:
            closer.join()
