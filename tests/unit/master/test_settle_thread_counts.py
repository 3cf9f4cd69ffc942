"""The settle thread's looks at the counts: what first tells that a broker is back."""

from __future__ import annotations

from support.jobs import QUEUE, a_job
from support.waiting import wait_until

from jobpool.broker.values import QueueStats, ReapPolicy
from jobpool.errors import BackendUnavailable
from jobpool.master import events as ev
from jobpool.master.inbox import Inbox
from jobpool.master.settle_thread import SettleThread
from jobpool_backends.memory import MemoryBackend


class SilentThrice(MemoryBackend):
    silent = 3

    def stats(self, queue: str) -> QueueStats:
        if self.silent:
            self.silent -= 1
            raise BackendUnavailable("silent")
        return super().stats(queue)


def test_a_count_that_was_not_answered_is_made_again_after_a_pause_and_not_at_its_next_turn() -> None:
    backend, inbox = SilentThrice(), Inbox()
    backend.enqueue(a_job())
    settle_thread = SettleThread(backend, (QUEUE,), 30.0, ReapPolicy(), inbox, 3600.0)
    settle_thread.start()
    seen: list[ev.Event] = []
    try:
        wait_until(lambda: seen.extend(inbox.take()) or any(isinstance(event, ev.Counted) for event in seen))
    finally:
        settle_thread.stop()
        settle_thread.join(10.0)
        inbox.close()
    assert [type(event) for event in seen[:2]] == [ev.BrokerSilent, ev.Counted]
    assert backend.silent == 0
