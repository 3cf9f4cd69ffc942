"""The key store of `IdempotencyGuard` and `RateLimiter`: from a `Jobs`, or from an open backend.

The argument is checked when they are made. A `Jobs` is not opened before it is used: both are often made at the top of
a module, which children of a pool import.
"""

from __future__ import annotations

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.client.jobs import Jobs
from jobpool.errors import ConfigurationError, Unsupported
from jobpool.message import producer


class KeySource:
    """The source of a key store that may not be open yet.

    Args:
        source: A `Jobs`, or an open backend, which stays its owner's.
        what: The caller's name, for the texts of errors.
        instead: The alternative for a job.

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
