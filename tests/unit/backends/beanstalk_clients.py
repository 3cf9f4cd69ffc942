"""What the tests of the beanstalkd backend share: tubes of their own, any number of clients, and a bare connection."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import greenstalk
from support.jobs import QUEUE
from support.servers import BeanstalkServer, fresh_name, shared_beanstalk

from jobpool.broker.values import ReapPolicy
from jobpool.clock import ManualClock
from jobpool.message.lease import JobLease
from jobpool_backends.beanstalk import BeanstalkBackend

AT_ONCE = ReapPolicy(back_off=0.0)


class Clients:
    """A context manager that closes everything.

    Args:
        server: The one to use; None = that of the test process.
        turned: Its clock stands still, and so does the clients', until `advance`.

    Attributes:
        raw: A connection of the test's own, to the tube of `QUEUE`.
    """

    def __init__(self, server: BeanstalkServer | None = None, *, turned: bool = False) -> None:
        self.server = server or shared_beanstalk(turned=turned)
        self.prefix = f"{fresh_name()}."
        self.clock = ManualClock() if turned else None
        if self.clock:
            self.server.turn_to(self.clock.wall())
        self.raw = self.server.client(self.prefix + QUEUE)
        self._opened: list[BeanstalkBackend] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for backend in self._opened:
            backend.close()
        self.raw.close()

    def open(self, url: str = "", **options: Any) -> BeanstalkBackend:
        """A client; closed at the end."""
        options = {"tube_prefix": self.prefix, **options}
        self._opened.append(BeanstalkBackend.from_url(url or self.server.url, clock=self.clock, **options))
        return self._opened[-1]

    def advance(self, seconds: float) -> None:
        """Turn both clocks, the server's a microsecond further: at a deadline itself it forgets the lease."""
        assert self.clock
        self.clock.advance(seconds)
        self.server.turn_to(self.clock.wall() + 1e-5)

    def counts(self) -> tuple[int, int, int, int]:
        """Ready, delayed, reserved and buried jobs of the queue."""
        told = self.raw.stats_tube(self.prefix + QUEUE)
        return (
            told["current-jobs-ready"],
            told["current-jobs-delayed"],
            told["current-jobs-reserved"],
            told["current-jobs-buried"],
        )

    def about(self, lease: JobLease) -> greenstalk.StatsJob:
        """What the server tells of the job of a lease."""
        assert isinstance(lease.token, int)
        return self.raw.stats_job(lease.token)


def one(backend: BeanstalkBackend) -> JobLease:
    """The one message that is ready."""
    [lease] = backend.fetch_many(QUEUE, limit=9)
    return lease
