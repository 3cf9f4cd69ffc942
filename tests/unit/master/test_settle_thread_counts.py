"""The settle thread's looks at the counts: what first tells that a broker is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.values import QueueStats, Reaped, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread
from jobpool.master.slots import Delivery
from jobpool.message.settlement import Ack
from jobpool_backends.memory import MemoryBackend


class SilentThrice(MemoryBackend):
    silent = 3

    def stats(self, queue: str) -> QueueStats:
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")
        return super().stats(queue)


def test_a_count_that_was_not_answered_is_made_again_after_a_pause_and_not_at_its_next_turn() -> None:
    backend = SilentThrice()
    backend.enqueue(a_job())
    seen = _events_until(ev.Counted, backend, ttl=30.0)
    assert [type(event) for event in seen[:2]] == [ev.BrokerSilent, ev.Counted]
    assert backend.silent == 0


class SilentReaps(MemoryBackend):
    """Two calls are not answered: a reap, and the count after it."""

    silent = 2

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        self._answer()
        return super()._reap(queue, policy, visibility_timeout)

    def stats(self, queue: str) -> QueueStats:
        self._answer()
        return super().stats(queue)

    def _answer(self) -> None:
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")


def test_an_outage_is_over_soon_after_a_count_is_answered_and_not_at_the_next_turn_to_reap() -> None:
    seen = _events_until(ev.BrokerAnswered, SilentReaps(), ttl=3600.0)
    assert [type(event) for event in seen] == [ev.BrokerSilent, ev.Counted, ev.BrokerAnswered]


def _events_until(kind: type[ev.Event], backend: MemoryBackend, ttl: float) -> list[ev.Event]:
    """Run a thread whose turn to count comes but once, until there is an event of this kind; all events so far."""
    inbox = Inbox()
    settle_thread = SettleThread(backend, (QUEUE,), ttl, ReapPolicy(), inbox, 3600.0)
    settle_thread.start()
    seen: list[ev.Event] = []
    try:
        wait_until(lambda: seen.extend(inbox.take()) or any(isinstance(event, kind) for event in seen))
    finally:
        settle_thread.stop()
        settle_thread.join(10.0)
        inbox.close()
    return seen


def test_until_empty_the_counts_are_looked_at_as_soon_as_all_that_the_last_look_saw_is_settled() -> None:
    with _settling(jobs=2, until_empty=True) as (settle_one, seen):
        settle_one()
        settle_one()
        wait_until(lambda: len(_pending(seen())) == 2)
        assert _pending(seen()) == [2, 0]
        assert type(seen()[-2]) is ev.Answered  # told before the counts: the pool holds nothing when it hears of them


def test_any_other_pool_waits_for_the_next_turn_to_count() -> None:
    with _settling(jobs=3, until_empty=False) as (settle_one, seen):
        for _ in range(3):
            settle_one()
        assert _pending(seen()) == [3]


@contextmanager
def _settling(jobs: int, *, until_empty: bool) -> Iterator[tuple[Callable[[], None], Callable[[], list[ev.Event]]]]:
    """Run a thread whose turn to count comes but once; yield what settles a job of these, and the events so far."""
    backend, inbox = MemoryBackend(), Inbox()
    for _ in range(jobs):
        backend.enqueue(a_job())
    settle_thread = SettleThread(backend, (QUEUE,), 30.0, ReapPolicy(), inbox, 3600.0, until_empty=until_empty)
    events: list[ev.Event] = []

    def seen() -> list[ev.Event]:
        events.extend(inbox.take())
        return events

    def settle_one() -> None:
        [lease] = backend.fetch_many(QUEUE, limit=1)
        before = sum(isinstance(event, ev.Answered) for event in seen())
        settle_thread.settle([(Delivery(lease, lease.deliveries, 0.0, "", 0.0), Ack())])
        wait_until(lambda: sum(isinstance(event, ev.Answered) for event in seen()) > before)

    settle_thread.start()
    try:
        wait_until(lambda: _pending(seen()) != [])
        yield settle_one, seen
    finally:
        settle_thread.stop()
        settle_thread.join(10.0)
        inbox.close()


def _pending(events: list[ev.Event]) -> list[int]:
    return [event.stats[QUEUE].pending for event in events if isinstance(event, ev.Counted)]
