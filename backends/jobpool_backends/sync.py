"""`sync://`: runs each job inline, at `enqueue`, in the caller's own process and thread. For tests and command lines.

Nothing is kept, so nothing is ever leased: the verbs are accepted and do nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import ClassVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.opening import redact
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import (
    Capabilities,
    Leases,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError, Unsupported
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.options import read_options

Runner = Callable[[JobDefinition], object]


class SyncBackend(QueueBackend):
    """A backend that runs jobs at once.

    Args:
        runner: Called with each definition; what it raises, `enqueue` raises.
        signer: Signs the body whose bounds are checked; None = unsigned.
        clock: Tells whether a job's time lies in the future.
    """

    scheme: ClassVar[str] = "sync"
    capabilities: ClassVar[Capabilities] = Capabilities(leases=Leases.NONE, priorities=False)

    def __init__(
        self, runner: Runner | None = None, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._runner = runner
        self._closed = threading.Event()
        self._inspector = _Nothing()
        self._closers = (self._closed.set,)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        runner: Runner | None = None,
        **options: object,
    ) -> SyncBackend:
        """Return the backend for `sync://`.

        Raises:
            ConfigurationError: There is anything behind `sync://`, or an option.
        """
        if url.lower() != "sync://":
            raise ConfigurationError(f"{redact(url)!r} is refused: write sync:// and nothing behind it")
        options.pop("timeout", None)  # no call here waits for anything
        read_options(cls.scheme, options, ())
        return cls(runner, signer=signer, clock=clock)

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        """Run the jobs one after another; return an id each, `sync-` and 12 hex characters. Blocks until they are done.

        Raises:
            InvalidJob: A definition is out of bounds; nothing was run.
            Unsupported: One is due in the future, or asks for keys; nothing was run.
            ConfigurationError: There is no runner.
            Exception: A job raised it; those after it were not run.
        """
        checked = list(definitions)
        runner = self._require_runner()
        for definition in checked:
            self._check(definition)
        return [self._run(runner, definition) for definition in checked]

    def _check(self, definition: JobDefinition) -> None:
        self.pack(definition)
        due = definition.scheduled_at
        if due is not None and due > datetime.fromtimestamp(self.clock.wall(), UTC):
            raise Unsupported(
                f"sync:// runs job {definition.handler!r} at once and cannot hold it until {due.isoformat()}:"
                " leave the time out, or choose a backend that keeps messages"
            )

    def _require_runner(self) -> Runner:
        if self._runner is None:
            raise ConfigurationError(
                "sync:// has nothing to run jobs with: pass runner= to open_backend, or use Jobs('sync://')"
            )
        return self._runner

    @staticmethod
    def _run(runner: Runner, definition: JobDefinition) -> str:
        runner(definition)
        return f"sync-{secrets.token_hex(6)}"

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        raise Unsupported(
            f"sync:// keeps no messages, so not these {len(messages)}: enqueue definitions, which it runs"
        )

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        del queue, limit, ttl, fetch_id
        return []

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        del queues
        self._closed.wait(max(0.0, timeout))  # nothing can ever come: the wait is the whole of the answer
        return None

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        del brought, call_id
        return [Settled.OK] * len(settlements)

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        del ttl
        return list(leases)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        del queue, policy, visibility_timeout
        return []

    def _bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        del where, verb, limit
        return 0


class _Nothing:
    """An inspector of what is never kept."""

    def stats(self, queue: str) -> QueueStats:
        del queue
        return QueueStats()

    def queues(self) -> list[str]:
        return []

    def page(self, where: MessageFilter, after: int, limit: int) -> list[Message]:
        del where, after, limit
        return []

    def count(self, where: MessageFilter, cap: int) -> int:
        del where, cap
        return 0

    def inspect(self, ident: str) -> Message | None:
        del ident
        return None
