"""The fetch thread's appetite: an idle pool asks the broker for nothing but a hint."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from support.jobs import QUEUE, a_job, numbered
from support.modest import OwnLeases
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.dispatch import MAX_FETCH
from jobpool.master.fetch_thread import FetchThread
from jobpool.master.inbox import Inbox
from jobpool.message.lease import JobLease
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import Inspector
from jobpool.policy.limits import Limits
from jobpool_backends.memory import MemoryBackend


class CountedBackend(MemoryBackend):
    """Counts its fetches, and the waits that ended without a hint."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0
        self.waits = 0

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.fetches += 1
        return super()._fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        found = super()._wait_any(queues, min(timeout, 0.01))
        self.waits += found is None
        return found


def test_without_a_hint_nothing_is_fetched_and_with_one_it_is() -> None:
    backend, inbox = CountedBackend(), Inbox()
    fetch_thread = FetchThread(backend, ((QUEUE, 1.0), ("mails", 1.0)), 30.0, Inspector(EnvelopeSigner(), {}), inbox)
    fetch_thread.want(2)
    fetch_thread.start()
    try:
        wait_until(lambda: backend.waits > 20)
        assert backend.fetches == 2, "each queue once, before the first wait"
        backend.enqueue(a_job())
        wait_until(lambda: bool(inbox.take()))
        assert backend.fetches in (3, 4)
    finally:
        fetch_thread.stop()
        fetch_thread.join(10.0)
        inbox.close()
    assert not fetch_thread.is_alive()


@pytest.mark.parametrize(
    ("limits", "want", "unseen"),
    [
        (Limits(), 1200, [MAX_FETCH, MAX_FETCH]),  # what is left of it is not worth a fetch before these are seen
        (Limits(), 300, [300]),
        (Limits(concurrency={QUEUE: 10_000}), 1200, [MAX_FETCH]),
    ],
    ids=["much", "little", "limited"],
)
def test_while_much_is_wanted_it_fetches_on_before_the_loop_has_seen_what_came(
    limits: Limits, want: int, unseen: list[int]
) -> None:
    backend, inbox, came = MemoryBackend(), Inbox(), []
    backend.enqueue_many(numbered(3000))
    inspector = Inspector(EnvelopeSigner(), {})
    fetch_thread = FetchThread(backend, ((QUEUE, 1.0),), 30.0, inspector, inbox, limits)

    def brought(messages: int) -> bool:
        came.extend(event for event in inbox.take() if isinstance(event, ev.Leased))
        return sum(event.brought for event in came) >= messages

    fetch_thread.want(want)
    fetch_thread.start()
    try:
        wait_until(lambda: brought(sum(unseen)))
        fetch_thread.want(want)  # a turn of the loop that has not seen them, and so counts none of them
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: brought(sum(unseen) + 1), 0.2)
        assert [event.brought for event in came] == unseen
        fetch_thread.seen(sum(unseen))
        fetch_thread.want(10)
        wait_until(lambda: brought(sum(unseen) + 10))
    finally:
        fetch_thread.stop()
        fetch_thread.join(10.0)
        inbox.close()
    assert sum(event.brought for event in came) == sum(unseen) + 10


class Sleepy(MemoryBackend):
    """Sleeps until it is woken, and then hints at a message, or says that it was closed meanwhile."""

    def __init__(self, *, closed: bool) -> None:
        super().__init__()
        self.asleep, self.woken, self.fetches = threading.Event(), threading.Event(), 0
        self._closed = closed

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.fetches += 1
        return super()._fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        del timeout
        self.asleep.set()
        assert self.woken.wait(30.0)
        if self._closed:
            raise BackendUnavailable("closed")
        return queues[0]


@pytest.mark.parametrize("closed", [False, True], ids=["hint", "closed"])
def test_stopped_while_it_sleeps_in_the_backend_it_is_waited_for_no_more_and_only_ends(closed: bool) -> None:
    backend, inbox = Sleepy(closed=closed), Inbox()
    fetch_thread = FetchThread(backend, ((QUEUE, 1.0),), 30.0, Inspector(EnvelopeSigner(), {}), inbox)
    fetch_thread.want(2)
    fetch_thread.start()
    assert backend.asleep.wait(10.0)
    assert fetch_thread.is_leasing(), "a hint may come"
    fetch_thread.stop()
    assert not fetch_thread.is_leasing()
    assert fetch_thread.is_alive()
    backend.enqueue(a_job())
    backend.woken.set()
    fetch_thread.join(10.0)
    assert not fetch_thread.is_alive()
    assert backend.fetches == 1, "the one before it slept"
    assert inbox.take() == []
    inbox.close()


class Slow(MemoryBackend):
    """Its fetch takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let_go = threading.Event(), threading.Event()

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        self.asked.set()
        assert self.let_go.wait(30.0)
        return super()._fetch(queue, limit, ttl, fetch_id)


def test_stopped_while_it_fetches_it_is_waited_for_and_brings_what_it_gets() -> None:
    backend, inbox = Slow(), Inbox()
    backend.enqueue(a_job())
    fetch_thread = FetchThread(backend, ((QUEUE, 1.0),), 30.0, Inspector(EnvelopeSigner(), {}), inbox)
    fetch_thread.want(2)
    fetch_thread.start()
    assert backend.asked.wait(10.0)
    fetch_thread.stop()
    assert fetch_thread.is_leasing()
    backend.let_go.set()
    wait_until(lambda: not fetch_thread.is_leasing())
    assert [len(event.leases) for event in inbox.take() if isinstance(event, ev.Leased)] == [1]
    fetch_thread.join(10.0)
    inbox.close()


@pytest.mark.parametrize(("backend", "lasts"), [(OwnLeases(3.0), 3.0), (MemoryBackend(), 0.0)], ids=["own", "chosen"])
def test_it_tells_how_long_leases_last_where_that_was_not_chosen(backend: MemoryBackend, lasts: float) -> None:
    inbox = Inbox()
    fetch_thread = FetchThread(backend, ((QUEUE, 1.0),), 30.0, Inspector(EnvelopeSigner(), {}), inbox)
    backend.enqueue_many([a_job(), a_job()])
    fetch_thread.want(2)
    fetch_thread.start()
    try:
        [leased] = wait_until(inbox.take)
    finally:
        fetch_thread.stop()
        fetch_thread.join(10.0)
        inbox.close()
    assert isinstance(leased, ev.Leased)
    assert leased.lasts == pytest.approx(lasts, abs=0.1)
