"""`RateLimiter`: a rate that all processes of a broker share, for what is not a job or happens within one."""

from __future__ import annotations

import secrets
import time
from collections import deque

from jobpool.broker.backend import QueueBackend
from jobpool.client.jobs import Jobs
from jobpool.client.key_source import KeySource
from jobpool.errors import BackendUnavailable
from jobpool.message.definition import check_seconds
from jobpool.message.guards import RATE_WINDOW, Rate
from jobpool.message.names import check_queue

SHORTEST_NAP = 0.001
"""Seconds that `wait` sleeps at least between two questions."""


class RateLimiter:
    """A limit on starts in any window of time, counted by the broker. Safe to share between threads.

    The window slides: there is no edge at which twice as many get through. Under the names `queue` and
    `concurrency:<key>` the starts are counted together with those of the queue's jobs, if a pool limits these
    (`rate_limits`, `rate_per_key`). Under any other name they are counted for all limiters of that name.

        mails = RateLimiter(Jobs(), "smtp", per_minute=300)

        def send(mail):
            if mails.wait(timeout=30):
                smtp.send(mail)

    Args:
        backend: A `Jobs`, opened at the first use, or an open backend, which stays its owner's.
        name: The counter's name, 1 to 300 printable characters.
        per_minute: Starts, 1 to 1,000,000, in any `window`.
        queue: Scopes the name.
        window: Seconds, above 0 and at most 86,400; 60 makes it a rate a minute.

    Raises:
        ConfigurationError: A number or the name is out of bounds, or `backend` is neither of the two.
        InvalidJob: The queue's name is invalid.
        Unsupported: The backend keeps no keys (`Capabilities.key_store`). With a `Jobs` this is raised by the first
            use, also in a pool's child, which holds no connection to the broker.
    """

    def __init__(
        self,
        backend: Jobs | QueueBackend,
        name: str,
        per_minute: int,
        queue: str = "default",
        window: float = RATE_WINDOW,
    ) -> None:
        self.rate = Rate(name, per_minute, window)
        self.queue = check_queue(queue)
        self._source = KeySource(backend, "a RateLimiter", "limit the rate of its queue (rate_limits)")
        self._unanswered: deque[str] = deque()

    def take(self) -> float:
        """Count a start and return 0.0; or, when that would exceed the rate, the seconds (> 0) until there is room.

        Raises:
            Unsupported: See the class.
            BackendUnavailable: Nothing is known. Safe to call again: a start that was counted is not counted twice.

        Blocks for one round trip.
        """
        token = self._token()
        try:
            return self._source.keys.take(self.queue, self.rate, token)
        except BackendUnavailable:
            self._unanswered.append(token)
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Count a start, and wait for room when there is none: False when there is none within `timeout` seconds.

        Sleeps until there may be room, and returns False as soon as it is clear that room comes too late. Waiters have
        no order.

        Args:
            timeout: Seconds, >= 0; None = forever.

        Raises:
            InvalidJob: `timeout` is out of bounds.
            Unsupported, BackendUnavailable: As `take`.

        Blocks for `timeout` seconds at most, plus one round trip.
        """
        give_up = None if timeout is None else time.monotonic() + check_seconds(timeout, "timeout")
        while after := self.take():
            if give_up is not None and time.monotonic() + after > give_up:
                return False
            time.sleep(max(after, SHORTEST_NAP))
        return True

    def _token(self) -> str:
        """Return a new token, or one whose start may have been counted though the reply was lost."""
        try:
            return self._unanswered.popleft()
        except IndexError:
            return secrets.token_hex(16)

    def __repr__(self) -> str:
        rate = f"{self.rate.most} in {self.rate.window:g} s"
        return f"<RateLimiter {self.rate.name!r} of queue {self.queue!r}: {rate}, in {self._source!r}>"
