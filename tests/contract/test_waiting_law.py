"""Waiting for a message: soon woken, never for long in error, and cheap (on the machine's own clock)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import Harness
from support.jobs import QUEUE, a_job, at

pytestmark = pytest.mark.needs("leases")


def test_it_gives_up_after_its_time(harness: Harness) -> None:
    backend = harness.open_live()
    started = time.monotonic()
    assert backend.wait_any([QUEUE], 0.2) is None
    assert 0.19 <= time.monotonic() - started < 2.0


def test_what_is_there_is_found_at_once(harness: Harness) -> None:
    backend = harness.open_live()
    backend.enqueue(a_job(queue="mails"))
    assert backend.wait_any([QUEUE, "mails"], 5.0) == "mails"


def test_an_enqueue_wakes_whoever_waits(harness: Harness) -> None:
    opener = harness.opener()
    waiting, producing = harness.keep(opener()), harness.keep(opener())
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, ["mails", QUEUE], 30.0)
        assert not found.done()
        producing.enqueue(a_job())
        assert found.result(10.0) == QUEUE


def test_a_fetch_that_waits_returns_the_message(harness: Harness) -> None:
    opener = harness.opener()
    waiting, producing = harness.keep(opener()), harness.keep(opener())
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.fetch, QUEUE, ttl=30.0, wait=30.0)
        ident = producing.enqueue(a_job())
        lease = found.result(10.0)
    assert lease is not None
    assert lease.id == ident


def test_a_delay_that_falls_due_is_not_missed(harness: Harness) -> None:
    backend = harness.open_live()
    backend.enqueue(a_job(scheduled_at=at(time.time() + 0.3)))
    started = time.monotonic()
    assert backend.wait_any([QUEUE], 30.0) == QUEUE
    assert time.monotonic() - started < 2.0
    assert len(backend.fetch_many(QUEUE, limit=1)) == 1


def test_a_release_wakes_whoever_waits(harness: Harness) -> None:
    opener = harness.opener()
    waiting, other = harness.keep(opener()), harness.keep(opener())
    other.enqueue(a_job())
    [lease] = other.fetch_many(QUEUE, limit=1)
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(waiting.wait_any, [QUEUE], 30.0)
        other.release(lease)
        assert found.result(10.0) == QUEUE


def test_waiting_costs_next_to_nothing(harness: Harness) -> None:
    backend = harness.open_live()
    backend.enqueue(a_job(queue="mails"))
    before = time.thread_time()
    assert backend.wait_any([QUEUE], 1.0) is None
    assert time.thread_time() - before < 0.05
