"""`IdempotencyGuard`: do something once for a key, outside of jobs; jobs have their `idempotency_key`."""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.client.jobs import Jobs
from jobpool.client.key_source import KeySource
from jobpool.message.guards import IDEMPOTENCY_TTL, check_keep
from jobpool.message.names import check_queue


class IdempotencyGuard:
    """A guard that tells whether a key was done before, to all processes that share the broker. Safe to share between
    threads.

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

    Raises:
        InvalidJob: The queue's name is invalid.
        ConfigurationError: `ttl` is out of bounds, or `backend` is neither of the two.
        Unsupported: The backend keeps no keys (`Capabilities.key_store`). With a `Jobs` this is raised by the first
            use, also in a pool's child, which holds no connection to the broker.
    """

    def __init__(self, backend: Jobs | QueueBackend, queue: str = "default", ttl: float = IDEMPOTENCY_TTL) -> None:
        self.queue = check_queue(queue)
        self.ttl = check_keep(ttl, "ttl")
        self._source = KeySource(backend, "an IdempotencyGuard", "give the job an idempotency_key")

    def first_run(self, key: str, ttl: float | None = None) -> bool:
        """Mark the key done, and tell whether it was not done before. Atomic: of any number of callers one gets True.

        A key that a running job holds counts as not done; the job's own ack then marks it anew.

        Args:
            key: 1 to 255 printable characters; spaces around it do not count, as in a job's `idempotency_key`.
            ttl: Seconds for which it stays done; None = the guard's. An earlier mark is not prolonged.

        Raises:
            InvalidJob: The key is out of bounds.
            ConfigurationError: `ttl` is.
            Unsupported: See the class.
            BackendUnavailable: Nothing is known; the key may be marked, and a call again would then say False.

        Blocks for one round trip.
        """
        return self._source.keys.first_run(self.queue, _trimmed(key), self.ttl if ttl is None else ttl)

    def forget(self, key: str) -> bool:
        """Forget that a key is done; return whether it was. A key that a running job holds is left alone.

        Raises as `first_run`, and is safe to call again. Blocks for one round trip.
        """
        return self._source.keys.forget(self.queue, _trimmed(key))

    def __repr__(self) -> str:
        return f"<IdempotencyGuard of queue {self.queue!r} in {self._source!r}>"


def _trimmed(key: str) -> str:
    return key.strip() if isinstance(key, str) else key
