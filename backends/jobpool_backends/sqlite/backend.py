"""`SqliteBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self
from urllib.parse import unquote

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.opening import redact
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, Existing, MessageFilter, NewMessage, Reaped, ReapPolicy, Ticket, Verb
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.inotify import ring
from jobpool_backends.options import DEAD_CAPS, read_options, seconds, split_query, take_caps
from jobpool_backends.shared import DeadCaps, micros
from jobpool_backends.sqlite import checks, intransaction, producing
from jobpool_backends.sqlite.calls import Sweeper
from jobpool_backends.sqlite.claims import SqliteClaims
from jobpool_backends.sqlite.database import PRAGMAS, Database
from jobpool_backends.sqlite.fetching import Fetcher
from jobpool_backends.sqlite.keys import SqliteKeys
from jobpool_backends.sqlite.looking import Looker
from jobpool_backends.sqlite.moment import this_boot
from jobpool_backends.sqlite.reaping import Reaper
from jobpool_backends.sqlite.settling import Settler
from jobpool_backends.sqlite.tally import Tally
from jobpool_backends.sqlite.tending import Tender
from jobpool_backends.sqlite.waiting import Waiter

DEFAULT_TIMEOUT = 5.0

OPTIONS = (seconds("timeout", DEFAULT_TIMEOUT), *DEAD_CAPS)


class SqliteBackend(QueueBackend):
    """Messages in one SQLite file, shared by any number of processes of one machine: `sqlite:///relative.db` or
    `sqlite:////absolute.db`.

    A call takes at most one write transaction and waits for its turn for at most `timeout` seconds; then it raises
    `BackendUnavailable`. When a call returns, its work is on the disk. `bulk` takes a transaction for each 500
    messages. `stats` counts delayed messages that fell due while nobody fetched up to 10,000.

    Args:
        path: Of the file; created when it is not there.
        timeout: Seconds, > 0.
        signer: Signs what is enqueued; None = unsigned.
        clock: Tells all times; None = the machine's.
        boot: Names the boot in which `clock.boot()` counts; None = this one.
        pragmas: Run on each connection.
        caps: Bounds on the dead letters of each queue.

    Raises:
        ConfigurationError: The path cannot be right, or the file is another program's or a newer jobpool's.
        BackendUnavailable: The file cannot be opened or prepared; the text says why and what to do.
    """

    scheme: ClassVar[str] = "sqlite"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True, transactions=True)

    def __init__(
        self,
        path: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        boot: int | None = None,
        pragmas: tuple[str, ...] = PRAGMAS,
        caps: DeadCaps | None = None,
    ) -> None:
        super().__init__(signer=signer, clock=clock)
        self._boot = boot = this_boot() if boot is None else boot
        caps = caps or DeadCaps()
        sweeper = Sweeper({"calls": "id", "ended": "id"})
        of_keys = Sweeper({"done": "queue, key", "starts": "queue, name, token", "records": "number"})
        self._database = Database(path, timeout=timeout, pragmas=pragmas)
        self._settler = Settler(self._database, self.clock, boot, sweeper, caps)
        self._reaper = Reaper(self._database, self.clock, boot, caps)
        self._keys = SqliteKeys(self._database, self.clock, boot, of_keys)
        self._claims = SqliteClaims(self._database, self.clock, boot, sweeper, caps, self._ring)
        self._inspector = inspector = Looker(self._database, self.clock)
        self._evicted = inspector.evicted
        self._mover = Tender(self._database, self.clock, inspector)
        waiter = Waiter(self._database, self.clock)
        self._fetch = Fetcher(self._database, self.clock, boot, sweeper, self.scheme).fetch
        self._renew = self._settler.renew
        self._wait_any = waiter.wait_any
        self._closers = (self._database.close, waiter.close)

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        path, found = _split(url)
        values = read_options(cls.scheme, found | options, OPTIONS)
        return cls(path, caps=take_caps(values), **values, **common)

    def diagnose(self) -> list[Finding]:
        """Check what the file's place and settings can lose."""
        return checks.diagnose(self._database)

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        with self._database.write() as connection:
            tally = Tally()
            existing = producing.add(connection, messages, micros(self.clock.wall()), tally)
            tally.write(connection)
        self._ring()
        return existing

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing:
        return intransaction.enqueue(connection, self._database.path, messages, self.clock)

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what a child needs to ack in its handler's own transaction, on an `sqlite3` connection to this
        file.
        """
        return intransaction.make_ticket(lease, self._database.path, self._boot)

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        answers, brings_work = self._settler.settle(settlements, brought, call_id)
        if brings_work:
            self._ring()
        return answers

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        reaped, brings_work = self._reaper.reap(queue, policy, visibility_timeout)
        if brings_work:
            self._ring()
        return reaped

    def _bulk(self, where: MessageFilter, verb: Verb, limit: int) -> int:
        changed = self._mover.bulk(where, verb, limit)
        if changed and verb is not Verb.DELETE:
            self._ring()
        return changed

    def _ring(self) -> None:
        ring(self._database.path)


def _split(url: str) -> tuple[str, dict[str, object]]:
    """Split a URL into the path and the options after its question mark."""
    address, options = split_query(url)
    path = unquote(address[len("sqlite:///") :]) if address.lower().startswith("sqlite:///") else ""
    if not path or path.startswith(":memory:"):
        raise ConfigurationError(
            f"{redact(url)!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db"
        )
    return path, options
