"""The fetch thread's appetite: an idle pool asks the broker for nothing but a hint."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from running import Running
from support.jobs import QUEUE, a_job, numbered
from support.modest import OwnLeases
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.dispatch import MAX_FETCH
from jobpool.master.fetch_thread import FetchThread
from jobpool.message.lease import JobLease
from jobpool.message.signing import EnvelopeSigner
from jobpool.policy.inspection import LeaseInspector
from jobpool.policy.limits import Limits
from jobpool_backends.memory import MemoryBackend


def fetching(
    backend: MemoryBackend,
    want: int,
    *queues: str,
    limits: Limits = Limits(),  # noqa: B008
) -> Running[FetchThread]:
    """A fetch thread that wants so many; of one queue unless others are named."""
    weights, inspector = tuple((queue, 1.0) for queue in queues or (QUEUE,)), LeaseInspector(EnvelopeSigner(), {})
    running = Running(lambda inbox: FetchThread(backend, weights, 30.0, inspector, inbox, limits))
    running.thread.want(want)
    return running


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
    backend = CountedBackend()
    with fetching(backend, 2, QUEUE, "mails") as thread:
        wait_until(lambda: backend.waits > 20)
        assert backend.fetches == 2, "each queue once, before the first wait"
        backend.enqueue(a_job())
        wait_until(thread.told)
        assert backend.fetches in (3, 4)


@pytest.mark.parametrize(
    ("queues", "limits", "fetches"),
    [(1, Limits(), 1), (2, Limits(), 3), (1, Limits(concurrency={QUEUE: 9}), 2)],
    ids=["one", "two", "limited"],
)
def test_what_a_fetch_of_the_only_queue_did_not_bring_is_not_there(queues: int, limits: Limits, fetches: int) -> None:
    backend = CountedBackend()
    backend.enqueue_many([a_job(), a_job()])
    with fetching(backend, 3, *[QUEUE, "mails"][:queues], limits=limits) as thread:
        thread.until(ev.Leased)
        thread.thread.seen(2)
        thread.thread.want(1)
        wait_until(lambda: backend.waits > 3)
        assert backend.fetches == fetches


def test_of_many_queues_the_empty_ones_cost_no_fetch_each() -> None:
    backend, names = CountedBackend(), [f"q{number}" for number in range(500)]
    with fetching(backend, 2, *names) as thread:
        wait_until(lambda: backend.waits > 0)
        backend.fetches = 0
        backend.enqueue(a_job(queue="q400"))
        thread.until(ev.Leased)
        assert backend.fetches < 10


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
    backend = MemoryBackend()
    backend.enqueue_many(numbered(3000))

    def brought() -> list[int]:
        return [event.brought for event in thread.of(ev.Leased)]

    with fetching(backend, want, limits=limits) as thread:
        wait_until(lambda: sum(brought()) >= sum(unseen))
        thread.thread.want(want)  # a turn of the loop that has not seen them, and so counts none of them
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: sum(brought()) > sum(unseen), 0.2)
        assert brought() == unseen
        thread.thread.seen(sum(unseen))
        thread.thread.want(10)
        wait_until(lambda: sum(brought()) >= sum(unseen) + 10)
    assert sum(brought()) == sum(unseen) + 10


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
    backend = Sleepy(closed=closed)
    with fetching(backend, 2) as thread:
        assert backend.asleep.wait(10.0)
        assert thread.thread.is_leasing(), "a hint may come"
        thread.thread.stop()
        assert not thread.thread.is_leasing()
        assert thread.thread.is_alive()
        backend.enqueue(a_job())
        backend.woken.set()
    assert backend.fetches == 1, "the one before it slept"
    assert thread.told() == []


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
    backend = Slow()
    backend.enqueue(a_job())
    with fetching(backend, 2) as thread:
        assert backend.asked.wait(10.0)
        thread.thread.stop()
        assert thread.thread.is_leasing()
        backend.let_go.set()
        wait_until(lambda: not thread.thread.is_leasing())
        assert [len(event.leases) for event in thread.of(ev.Leased)] == [1]


@pytest.mark.parametrize(("backend", "lasts"), [(OwnLeases(3.0), 3.0), (MemoryBackend(), 0.0)], ids=["own", "chosen"])
def test_it_tells_how_long_leases_last_where_that_was_not_chosen(backend: MemoryBackend, lasts: float) -> None:
    backend.enqueue_many([a_job(), a_job()])
    with fetching(backend, 2) as thread:
        assert thread.until(ev.Leased)[0].lasts == pytest.approx(lasts, abs=0.1)
