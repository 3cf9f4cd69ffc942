"""`SqliteBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import unquote

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.opening import redact
from jobpool.broker.values import (
    Capabilities,
    Existing,
    Message,
    MessageFilter,
    NewMessage,
    QueueStats,
    Reaped,
    ReapPolicy,
    Ticket,
    Verb,
)
from jobpool.clock import Clock
from jobpool.errors import ConfigurationError
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.shared import DeadCaps, brought_by_each, read_caps, refuse_options, split_query
from jobpool_backends.sqlite import checks, in_transaction
from jobpool_backends.sqlite.bulk import BulkChanges
from jobpool_backends.sqlite.claims import SqliteClaims
from jobpool_backends.sqlite.database import PRAGMAS, Database
from jobpool_backends.sqlite.enqueue import add
from jobpool_backends.sqlite.fetch import Fetcher
from jobpool_backends.sqlite.inspect import Inspector
from jobpool_backends.sqlite.keys import SqliteKeys
from jobpool_backends.sqlite.reap import Reaper
from jobpool_backends.sqlite.retention import Sweeper
from jobpool_backends.sqlite.settle import Settler
from jobpool_backends.sqlite.step import this_boot
from jobpool_backends.sqlite.wait import Waiter

DEFAULT_TIMEOUT_S = 5.0


class SqliteBackend(QueueBackend):
    """Messages in one SQLite file, shared by any number of processes of one machine.

    A call takes at most one write transaction, and waits for its turn for at most `timeout` seconds; then it raises
    `BackendUnavailable`. When a call returns, its work is on the disk.

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
    capabilities: ClassVar[Capabilities] = Capabilities(
        key_store=True, claims=True, enqueue_in_transaction=True, ack_in_transaction=True
    )

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
        sweeper = Sweeper({"calls": "id", "ended": "id"})
        of_keys = Sweeper({"done": "queue, key", "starts": "queue, name, token", "records": "number"})
        self._database = Database(path, self.clock, boot, timeout=timeout, pragmas=pragmas)
        self._fetcher = Fetcher(self._database, sweeper, self.scheme)
        self._settler = Settler(self._database, sweeper, caps)
        self._reaper = Reaper(self._database, caps)
        self._keys = SqliteKeys(self._database, of_keys)
        self._claims = SqliteClaims(self._database, sweeper, caps)
        self._inspector = Inspector(self._database)
        self._bulk_changes = BulkChanges(self._database, self._inspector)
        self._waiter = Waiter(self._database)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        runner: object = None,
        **options: object,
    ) -> SqliteBackend:
        """Open `sqlite:///relative.db` or `sqlite:////absolute.db`; options there (`?timeout=10`) or by keyword.

        `timeout` is above; `dead_max` is how many dead letters a queue keeps, `dead_max_age` for how many seconds; 0 =
        all, forever. They are applied when a message of the queue dies or is reaped.

        Raises:
            ConfigurationError: The URL names no file, or an option is unknown or out of range.
            BackendUnavailable: The file cannot be opened.
        """
        del runner  # only sync:// has a use for one
        path, found = _split(url)
        options = found | options
        timeout = _read_timeout(options.pop("timeout", DEFAULT_TIMEOUT_S))
        caps = read_caps(cls.scheme, options)
        refuse_options(cls.scheme, options)
        return cls(path, timeout=timeout, signer=signer, clock=clock, caps=caps)

    def diagnose(self) -> list[Finding]:
        """Check what the file's place and settings can lose."""
        return checks.diagnose(self._database)

    def close(self) -> None:
        """Close files and listeners; threads that wait come back within half a second. Safe to call twice."""
        self._database.close()
        self._waiter.close()

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing:
        with self._database.write() as step:
            existing = add(step, messages)
        self._database.wake()
        return existing

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing:
        return in_transaction.enqueue(connection, self._database.path, messages, self.clock)

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what a child needs to ack in its handler's own transaction, on an `sqlite3` connection to this
        file.
        """
        return in_transaction.make_ticket(lease, self._database.path, self._boot)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        return self._fetcher.fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        brought = brought_by_each(self, settlements)
        answers, brings_work = self._settler.settle(settlements, brought, call_id)
        if brings_work:
            self._database.wake()
        return answers

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        return self._settler.renew(leases, ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        reaped, brings_work = self._reaper.reap(queue, policy, visibility_timeout)
        if brings_work:
            self._database.wake()
        return reaped

    @property
    def keys(self) -> SqliteKeys:
        """The key store, in the same file."""
        return self._keys

    @property
    def claims(self) -> SqliteClaims:
        """Claims and posted messages, in the same file."""
        return self._claims

    # --- looking and tending -------------------------------------------------------------------------

    def evicted(self, queue: str) -> int:
        """Return how many dead letters of a queue the caps have removed, ever."""
        return self._inspector.evicted(queue)

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue, O(1); delayed messages that fell due while nobody fetched are counted to
        10,000.
        """
        return self._inspector.stats(queue)

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        return self._inspector.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page in enqueue order."""
        return self._inspector.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, up to `cap`."""
        return self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, 500 a transaction."""
        changed = self._bulk_changes.bulk(where, verb, limit)
        if changed and verb is not Verb.DELETE:
            self._database.wake()
        return changed

    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead."""
        return self._inspector.inspect(ident)


def _split(url: str) -> tuple[str, dict[str, object]]:
    """Split a URL into the path and the options after its question mark."""
    address, options = split_query(url)
    path = unquote(address[len("sqlite:///") :]) if address.lower().startswith("sqlite:///") else ""
    if not path or path.startswith(":memory:"):
        raise ConfigurationError(
            f"{redact(url)!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db"
        )
    return path, options


def _read_timeout(value: object) -> float:
    try:
        timeout = float(str(value))
    except ValueError:
        timeout = 0.0
    if not 0 < timeout <= 3600:
        raise ConfigurationError(
            f"sqlite:// option timeout must be more than 0 and at most 3600 seconds, not {value!r}"
        )
    return timeout
