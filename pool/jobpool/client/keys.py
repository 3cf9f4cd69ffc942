"""The broker's key store for what is not a job, or happens within one: `IdempotencyGuard` and `RateLimiter`."""

from __future__ import annotations

import secrets
import time
from collections import deque

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.client.jobs import Jobs
from jobpool.errors import BackendUnavailable, ConfigurationError, Unsupported, check_seconds
from jobpool.message import producer
from jobpool.message.guards import IDEMPOTENCY_TTL, RATE_WINDOW, Rate, check_keep
from jobpool.message.names import check_queue

MIN_NAP_S = 0.001  # seconds that `wait` sleeps at least between two questions


class _OfKeys:
    """An object of a key store, made before its `Jobs` opens if it stands at the top of a module."""

    _what: str  # its name in errors
    _instead: str  # the alternative for a job

    def __init__(self, backend: Jobs | QueueBackend, queue: str) -> None:
        self.queue = check_queue(queue)
        if not isinstance(backend, Jobs | QueueBackend):
            kind = type(backend).__name__
            raise ConfigurationError(f"{self._what} takes a jobpool.Jobs or an open backend, not {kind}")
        if isinstance(backend, QueueBackend):
            _ = backend.keys  # raises if it keeps none
        self._source = backend

    @property
    def _keys(self) -> KeyStore:
        if isinstance(self._source, QueueBackend):
            return self._source.keys
        if producer.process.of_child is not None:
            raise Unsupported(
                f"a job's process holds no connection to the broker for {self._what} of a Jobs: {self._instead}, or"
                " give it a backend that the handler opens itself"
            )
        return self._source.backend.keys

    @property
    def _place(self) -> str:
        return repr(self._source) if isinstance(self._source, Jobs) else f"a {self._source.scheme} backend"


class IdempotencyGuard(_OfKeys):
    """A guard that tells all processes of a broker whether a key was done before. Safe to share between threads.

    The keys are those of the jobs of its queue. A job that was acked with an `idempotency_key` counts as done here, and
    a job with a key marked here is skipped. A guard marks *before* the work; when the work fails, `forget` the key, or
    it stays undone until `ttl` has passed. A job has no such gap: its key is done together with its ack.

        guard = IdempotencyGuard(Jobs(), queue="mails")

        def receive(webhook):
            if guard.first_run(webhook.id):
                handle(webhook)

    Args:
        backend: A `Jobs`, opened at the first use, or an open backend, which stays its owner's.
        queue: Its keys are used; the same key in another queue is another key.
        ttl: Seconds, above 0 and at most a year, for which a key stays done when `first_run` says nothing else.

    Raises `InvalidJob`: the queue's name is invalid; `ConfigurationError`: `ttl` is out of bounds, or `backend` is
    neither of the two. `Unsupported`: the backend keeps no keys (`Capabilities.key_store`). With a `Jobs` this is
    raised by the first use, also in a pool's child, which holds no connection to the broker.
    """

    _what, _instead = "an IdempotencyGuard", "give the job an idempotency_key"

    def __init__(self, backend: Jobs | QueueBackend, queue: str = "default", ttl: float = IDEMPOTENCY_TTL) -> None:
        super().__init__(backend, queue)
        self.ttl = check_keep(ttl, "ttl")

    def first_run(self, key: str, ttl: float | None = None) -> bool:
        """Mark the key done, and tell whether it was not done before. Atomic: of any number of callers one gets True.

        A key that a running job holds counts as not done; the job's own ack then marks it anew.

        Args:
            key: 1 to 255 printable characters; spaces around it do not count, as in a job's `idempotency_key`.
            ttl: Seconds for which it stays done; None = the guard's. An earlier mark is not prolonged.

        Raises `InvalidJob` for a key, and `ConfigurationError` for a `ttl` that is out of bounds. After
        `BackendUnavailable` the key may be marked, and a call again would say False. Blocks for one round trip.
        """
        return self._keys.first_run(self.queue, _trimmed(key), self.ttl if ttl is None else ttl)

    def forget(self, key: str) -> bool:
        """Forget that a key is done; return whether it was. A key that a running job holds is left alone.

        Raises as `first_run`, and is safe to call again. Blocks for one round trip.
        """
        return self._keys.forget(self.queue, _trimmed(key))

    def __repr__(self) -> str:
        return f"<IdempotencyGuard of queue {self.queue!r} in {self._place}>"


def _trimmed(key: str) -> str:
    return key.strip() if isinstance(key, str) else key


class RateLimiter(_OfKeys):
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

    Raises as `IdempotencyGuard`: `ConfigurationError` also for a number or name that is out of bounds.
    """

    _what, _instead = "a RateLimiter", "limit the rate of its queue (rate_limits)"

    def __init__(
        self,
        backend: Jobs | QueueBackend,
        name: str,
        per_minute: int,
        queue: str = "default",
        window: float = RATE_WINDOW,
    ) -> None:
        super().__init__(backend, queue)
        self.rate = Rate(name, per_minute, window)
        self._unanswered: deque[str] = deque()

    def take(self) -> float:
        """Count a start and return 0.0; or, when that would exceed the rate, the seconds (> 0) until there is room.

        After `BackendUnavailable` it is safe to call again: a start that was counted is not counted twice. Blocks for
        one round trip.
        """
        try:
            token = self._unanswered.popleft()  # its start may have been counted, though the reply was lost
        except IndexError:
            token = secrets.token_hex(16)
        try:
            return self._keys.take(self.queue, self.rate, token)
        except BackendUnavailable:
            self._unanswered.append(token)
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Count a start, and wait for room when there is none: False when there is none within `timeout` seconds.

        None = forever. Sleeps until there may be room, and returns False as soon as it is clear that room comes too
        late. Waiters have no order.

        Raises as `take`, and `InvalidJob`: `timeout` is out of bounds. Blocks for it at most, plus one round trip.
        """
        give_up = None if timeout is None else time.monotonic() + check_seconds(timeout, "timeout")
        while after := self.take():
            if give_up is not None and time.monotonic() + after > give_up:
                return False
            time.sleep(max(after, MIN_NAP_S))
        return True

    def __repr__(self) -> str:
        rate = f"{self.rate.most} in {self.rate.window:g} s"
        return f"<RateLimiter {self.rate.name!r} of queue {self.queue!r}: {rate}, in {self._place}>"
