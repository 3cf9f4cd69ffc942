"""`SqliteBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self
from urllib.parse import unquote

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.opening import redact
from jobpool.broker.values import Capabilities, Existing, NewMessage, Ticket
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.options import DEAD_CAPS, read_options, seconds, split_query, take_caps
from jobpool_backends.shared import DeadCaps
from jobpool_backends.sqlite import checks, in_transaction
from jobpool_backends.sqlite.batches import SqliteBatches
from jobpool_backends.sqlite.claims import SqliteClaims
from jobpool_backends.sqlite.database import PRAGMAS, Database, check_place
from jobpool_backends.sqlite.enqueue import add
from jobpool_backends.sqlite.fetch import Fetcher
from jobpool_backends.sqlite.inspect import Inspector
from jobpool_backends.sqlite.keys import SqliteKeys
from jobpool_backends.sqlite.reap import Reaper
from jobpool_backends.sqlite.results import Results
from jobpool_backends.sqlite.settle import Settler
from jobpool_backends.sqlite.step import Sweeper, this_boot
from jobpool_backends.sqlite.wait import Waiter

DEFAULT_TIMEOUT_S = 5.0
URL_OPTIONS = (seconds("timeout", DEFAULT_TIMEOUT_S), *DEAD_CAPS)


class SqliteBackend(QueueBackend):
    """Messages in one SQLite file, shared by any number of processes of one machine: `sqlite:///relative.db` or
    `sqlite:////absolute.db`.

    A call takes at most one write transaction and waits for its turn for at most `timeout` seconds; then it raises
    `BackendUnavailable`. When a call returns, its work is on the disk. `bulk` takes a transaction for each 500
    messages. `stats` counts delayed messages that fell due while nobody fetched up to 10,000.

    The file is created when it is not there. `clock` tells all times; `boot` names the boot in which `clock.boot()`
    counts, None = this one. `pragmas` run on each connection; `caps` bound the dead letters of each queue.

    Raises `ConfigurationError`: the path cannot be right, or the file is another program's or a newer jobpool's;
    `BackendUnavailable`: the file cannot be opened or prepared.
    """

    scheme: ClassVar[str] = "sqlite"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True, transactions=True)

    def __init__(
        self,
        path: str,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        boot: int | None = None,
        pragmas: tuple[str, ...] = PRAGMAS,
        caps: DeadCaps | None = None,
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._boot = boot = this_boot() if boot is None else boot
        caps = caps or DeadCaps()
        of_keys = Sweeper({"done": "queue, key", "starts": "queue, name, token", "records": "number"})
        self._database = Database(path, self.clock, boot, timeout=timeout, pragmas=pragmas)
        self._results = results = Results(self._database)
        self._batches = SqliteBatches(self._database)
        sweeper = Sweeper({"calls": "id", "ended": "id"}, results.sweep)
        settler = Settler(self._database, sweeper, caps, results)
        fetcher = Fetcher(self._database, sweeper, self.scheme)
        waiter = Waiter(self._database, fetcher.expect)
        self._fetch = fetcher.fetch
        self._wait_any = waiter.wait_any
        self._settle, self._renew = settler.settle, settler.renew
        self._reap = Reaper(self._database, caps).reap
        self._keys = SqliteKeys(self._database, of_keys)
        self._claims = SqliteClaims(self._database, sweeper, caps)
        self._inspector = inspector = Inspector(self._database, sweeper)
        self._bulk, self._edits, self._evicted = inspector.bulk, inspector.edit, inspector.evicted
        self._closers = (self._database.close, waiter.close, results.close)

    @classmethod
    def missing(cls, url: str) -> str:
        path = os.path.abspath(_path_in(url)[0])
        check_place(path)
        made = "`jobpool enqueue`, a producer or a pool makes it; if there should be one, correct `backend`"
        return "" if os.path.exists(path) else f"there is no database {path} yet: {made}"

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        path, found = _path_in(url)
        values = read_options(cls.scheme, found | options, URL_OPTIONS)
        return cls(path, caps=take_caps(values), **values, **common)

    def diagnose(self) -> list[Finding]:
        """Check what the file's place and settings can lose."""
        return checks.diagnose(self._database)

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        with self._database.write() as step:
            return add(step, messages)

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing:
        return in_transaction.enqueue(connection, self._database.path, messages, self.clock)

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what a child needs to ack in its handler's transaction, on an `sqlite3` connection to this file."""
        return in_transaction.make_ticket(lease, self._database.path, self._boot)


def _path_in(url: str) -> tuple[str, dict[str, object]]:
    """Return the path and the options. Raises `ConfigurationError`: there is no path."""
    address, found = split_query(url)
    path = unquote(address[len("sqlite:///") :]) if address.lower().startswith("sqlite:///") else ""
    if not path or path.startswith(":memory:"):
        what = f"{redact(url)!r} names no file"
        raise ConfigurationError(f"{what}: write sqlite:///relative.db or sqlite:////absolute.db")
    return path, found
