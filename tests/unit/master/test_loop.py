"""The loop's own turns, with the real backend and settle thread, and stand-ins for what has processes."""

from __future__ import annotations

from contextlib import closing

from stage import HANDLERS
from support.jobs import a_job

from jobpool.backend import ReapPolicy, State
from jobpool.master import events as ev
from jobpool.master.apply import apply
from jobpool.master.inbox import Inbox
from jobpool.master.loop import Master
from jobpool.master.plan import Planner
from jobpool.master.pool import Pool
from jobpool.master.settings import PoolSettings
from jobpool.master.settler import Settler
from jobpool.opening import open_backend
from jobpool.policy.retry import RetryPolicy


class NoCrew:
    """No child, no fork server: only the inbox is watched."""

    def watch(self, _fd: int, reader: object) -> None:
        self.take = reader

    def poll(self, _timeout: float) -> list[ev.Event]:
        return self.take()  # type: ignore[operator,no-any-return]

    def close(self) -> None:
        pass


class Silent:
    """Publishes nothing."""

    def publish(self, *args: object, **more: object) -> None:
        pass

    def log_notes(self, pool: Pool) -> None:
        pool.notes.clear()


class LastLease:
    """A lease thread whose last fetch comes in between two looks at it."""

    answered_at = 0.0

    def __init__(self, inbox: Inbox, event: ev.Event) -> None:
        self._inbox = inbox
        self._left = [event]

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def seen(self) -> None:
        pass

    def is_alive(self) -> bool:
        if self._left:
            self._inbox.put(self._left.pop())
        return False


def test_what_the_lease_thread_brings_at_the_very_end_of_a_stop_is_given_back() -> None:
    settings = PoolSettings(queues=(("reports", 1.0),), backend="memory://")
    with closing(open_backend("memory://")) as backend:
        backend.enqueue(a_job())
        [lease] = backend.fetch_many("reports", limit=1)
        pool, inbox = Pool(settings, now=backend.clock.mono()), Inbox()
        apply(pool, ev.AppLoaded(1, HANDLERS, True, [], 0.1), pool.now)
        pool.stop("stopping")
        master = Master(
            pool=pool,
            planner=Planner(RetryPolicy(), backend.pack),
            backend=backend,
            crew=NoCrew(),  # type: ignore[arg-type]
            inbox=inbox,
            lessor=LastLease(inbox, ev.Leased([ev.Inspected(lease, None)])),  # type: ignore[arg-type]
            settler=Settler(backend, ("reports",), 30.0, ReapPolicy(), inbox, 2.0),
            publisher=Silent(),  # type: ignore[arg-type]
        )
        assert master.run() == 0
        inbox.close()
        message = backend.inspect(lease.id)
        assert message is not None
        assert message.state is State.WAITING
