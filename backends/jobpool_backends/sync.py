"""`sync://`: runs each job inline, at `enqueue`, in the caller's own process and thread. For tests and command lines.

Nothing is kept, so nothing is ever leased: settlements and renewals are accepted and do nothing. An empty `memory://`
answers all that looks, waits or fetches.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.key_store import KeyStore
from jobpool.broker.opening import redact
from jobpool.broker.parts import Settlements
from jobpool.broker.values import Capabilities, Leases, NewMessage
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError, ResultNotKept, Unsupported
from jobpool.message.definition import JobDefinition
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.memory import MemoryBackend
from jobpool_backends.options import read_options

Runner = Callable[[JobDefinition], object]


class SyncBackend(QueueBackend):
    """A backend that runs jobs at once: `runner` is called with each definition, and `enqueue` raises its errors."""

    scheme: ClassVar[str] = "sync"
    capabilities: ClassVar[Capabilities] = Capabilities(leases=Leases.NONE, priorities=False)

    def __init__(
        self, runner: Runner | None = None, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._runner = runner
        empty = MemoryBackend(clock=self.clock)
        self._inspector, self._wait_any, self._fetch = empty._inspector, empty._wait_any, empty._fetch
        self._reap, self._bulk = empty._reap, empty._bulk
        self._closers = (empty.close,)

    @classmethod
    def from_url(
        cls, url: str, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None, **options: Any
    ) -> Self:
        """Return the backend for `sync://`. Raises `ConfigurationError`: there is more behind that, or an option."""
        runner = options.pop("runner", None)
        if url.lower() != "sync://":
            raise ConfigurationError(f"{redact(url)!r} is refused: write sync:// and nothing behind it")
        options.pop("timeout", None)  # no call here waits for anything
        read_options(cls.scheme, options, ())
        return cls(runner, signer=signer, clock=clock)

    def enqueue_many(self, definitions: Iterable[JobDefinition]) -> list[str]:
        """Run the jobs one after another; return their ids, `sync-` and 12 hex characters. Blocks until they are done.

        With nothing run it raises `InvalidJob` (a definition is out of bounds) or `Unsupported` (one is due in the
        future, or asks for keys). Without a runner it raises `ConfigurationError`. A job's own error ends the call.
        """
        checked = list(definitions)
        if self._runner is None:
            raise ConfigurationError(
                "sync:// has nothing to run jobs with: call Jobs('sync://'), give a runner=, or use `jobpool run-one`"
            )
        for definition in checked:
            self._check(definition)
        idents = []
        for definition in checked:
            idents.append(definition.identifier or f"sync-{secrets.token_hex(6)}")
            self._runner(replace(definition, identifier=idents[-1]))  # which the handler finds in `ctx.id`
        return idents

    def result(self, ident: str, timeout: float | None = None) -> Any:
        """Raise `ResultNotKept`."""
        del timeout
        raise ResultNotKept(
            f"sync:// ran job {ident} at its enqueue and keeps no result, whatever its result_ttl: call the handler"
            " itself for what it returns, or test with jobpool.testing.VirtualPool"
        )

    @property
    def control_keys(self) -> KeyStore:
        """Raises `Unsupported`."""
        raise Unsupported(
            "sync:// runs each job before its enqueue returns, and has no pools: nothing is there to cancel, pause or"
            " list; choose a backend that keeps messages"
        )

    def _check(self, definition: JobDefinition) -> None:
        self.pack(definition)
        due = definition.scheduled_at
        if due is not None and due > datetime.fromtimestamp(self.clock.wall(), UTC):
            raise Unsupported(
                f"sync:// runs job {definition.handler!r} at once and cannot hold it until {due.isoformat()}:"
                " leave the time out, or choose a backend that keeps messages"
            )

    def _enqueue(self, messages: Sequence[NewMessage]) -> None:
        kept = f"sync:// keeps no messages, so not these {len(messages)}"
        raise Unsupported(f"{kept}: enqueue definitions, which it runs")

    def _settle(self, settlements: Settlements, *_: object) -> list[Settled]:
        return [Settled.OK] * len(settlements)

    def _renew(self, leases: Sequence[JobLease], _: float) -> list[JobLease | None]:
        return list(leases)
