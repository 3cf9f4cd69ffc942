"""The settle thread's looks at the counts: what first tells that a broker is back."""

from __future__ import annotations

from running import Settling, held
from support.jobs import QUEUE, a_job

from jobpool.broker.values import QueueStats, Reaped, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
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
    with Settling(backend) as thread:
        thread.until(ev.Counted)
    assert [type(event) for event in thread.told()[:2]] == [ev.BrokerSilent, ev.Counted]
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
    with Settling(SilentReaps(), ttl=3600.0) as thread:
        thread.until(ev.BrokerAnswered)
    assert [type(event) for event in thread.told()] == [ev.BrokerSilent, ev.Counted, ev.BrokerAnswered]


def test_until_empty_the_counts_are_looked_at_as_soon_as_all_that_the_last_look_saw_is_settled() -> None:
    backend = MemoryBackend()
    deliveries = [held(backend) for _ in range(2)]
    with Settling(backend, until_empty=True) as thread:
        assert pending(thread) == [2]
        for delivery in deliveries:
            thread.settle((delivery, Ack()))
            thread.until_answered(delivery)
        thread.until(ev.Counted, 2)
        assert pending(thread) == [2, 0]
        # Told before the counts: the pool holds nothing when it hears of them.
        assert type(thread.told()[-2]) is ev.Answered


def test_any_other_pool_waits_for_the_next_turn_to_count() -> None:
    backend = MemoryBackend()
    deliveries = [held(backend) for _ in range(3)]
    with Settling(backend) as thread:
        for delivery in deliveries:
            thread.settle((delivery, Ack()))
            thread.until_answered(delivery)
        assert pending(thread) == [3]


def pending(thread: Settling) -> list[int]:
    """What was found by each look at the counts, of which there was one at least."""
    return [event.stats[QUEUE].pending for event in thread.until(ev.Counted)]
