"""Where `IdempotencyGuard` and `RateLimiter` find their key store: behind a `Jobs`, or in an open backend.

What is given is looked at when they are made; a `Jobs` is not opened before it is used, because both are often made at
the top of a module, which the children of a pool import too.
"""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, Unsupported
from jobpool.message import producer


class KeySource:
    """Answers for a key store that may not be open yet.

    Args:
        source: A `Jobs`, or an open backend, which stays its owner's.
        what: Who asks, for the texts of errors.
        instead: What a job can do in its place.

    Raises:
        ConfigurationError: `source` is neither.
        Unsupported: The backend keeps no keys (`Capabilities.key_store`).
    """

    def __init__(self, source: Jobs | QueueBackend, what: str, instead: str) -> None:
        if not isinstance(source, Jobs | QueueBackend):
            raise ConfigurationError(f"{what} takes a jobpool.Jobs or an open backend, not {type(source).__name__}")
        if isinstance(source, QueueBackend):
            _ = source.keys
        self._source = source
        self._what = what
        self._instead = instead

    @property
    def keys(self) -> KeyStore:
        """The key store. Raises as `Jobs.backend` and `QueueBackend.keys`; may block to open the backend."""
        if isinstance(self._source, QueueBackend):
            return self._source.keys
        if producer.in_child():
            raise Unsupported(
                f"a job's process holds no connection to the broker for {self._what} of a Jobs: {self._instead}, or"
                " give it a backend that the handler opens itself"
            )
        return self._source.backend.keys

    def __repr__(self) -> str:
        return repr(self._source) if isinstance(self._source, Jobs) else f"a {self._source.scheme} backend"
