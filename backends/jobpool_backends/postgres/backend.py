"""`PostgresBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jobpool.broker.backend import QueueBackend
from jobpool.broker.claim_store import ClaimStore
from jobpool.broker.finding import Finding
from jobpool.broker.key_store import KeyStore
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
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Abandon, Settled, Settlement
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.postgres import checks, in_transaction
from jobpool_backends.postgres.address import Address, read_address
from jobpool_backends.postgres.bulk import BulkChanges
from jobpool_backends.postgres.claims import PostgresClaims
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import Enqueuer
from jobpool_backends.postgres.fetch import Fetcher, holder_of
from jobpool_backends.postgres.inspect import Inspector
from jobpool_backends.postgres.keys import PostgresKeys
from jobpool_backends.postgres.reap import Reaper
from jobpool_backends.postgres.retention import Caps, Sweeper
from jobpool_backends.postgres.settle import Settler, to_be_done
from jobpool_backends.postgres.wait import Waiter
from jobpool_backends.shared import brought_by_each
from jobpool_backends.sql import number_of


class PostgresBackend(QueueBackend):
    """Messages in one schema of a Postgres database, shared by any number of processes of any number of machines.

    The server's clock tells all times; `clock` is used for the deadlines in leases, on this machine. A call is one
    statement, hence one transaction and one round trip, unless it says otherwise. It waits for `timeout` seconds, and
    as long again where it must connect first; then it raises `BackendUnavailable`. When a call returns, its work is on
    the server's disk, unless `synchronous_commit` says otherwise.

    Connects, and makes or migrates the schema, when it is first used.

    Args:
        address: Where the server is.
        signer: Signs what is enqueued; None = unsigned.
        clock: Tells this machine's boot time; None = the machine's.
    """

    scheme: ClassVar[str] = "postgresql"
    capabilities: ClassVar[Capabilities] = Capabilities(
        key_store=True, claims=True, enqueue_in_transaction=True, ack_in_transaction=True
    )

    def __init__(self, address: Address, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        super().__init__(signer=signer, clock=clock)
        if "password" not in address.parameters:
            self.credential_variables = ("PGPASSWORD",)
        self._database = Database(address)
        sweeper = Sweeper(self._database)
        self._enqueuer = Enqueuer(self._database)
        self._fetcher = Fetcher(self._database, self.clock, sweeper, self.scheme)
        self._settler = Settler(self._database, self.clock, sweeper, self._enqueuer)
        self._reaper = Reaper(self._database)
        self._caps = Caps(self._database)
        self._keys = PostgresKeys(self._database, sweeper)
        self._claims = PostgresClaims(self._database, sweeper)
        self._inspector = Inspector(self._database)
        self._bulk_changes = BulkChanges(self._database, self._inspector)
        self._waiter = Waiter(self._database, listen=address.listen)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        signer: EnvelopeSigner | None = None,
        clock: Clock | None = None,
        runner: object = None,
        **options: object,
    ) -> PostgresBackend:
        """Open `postgresql://user:password@host:port/database`; options there (`?schema=jobs`) or by keyword.

        Options: `timeout` (seconds to wait for an answer, 3), `schema` (of the tables, "jobpool"), and `listen`
        ("auto", or "no" for a server that must not be listened to). `dead_max` and `dead_max_age`: the dead letters
        that a queue keeps, and for how many seconds; 0 = all, forever. libpq's own options pass through:
        `connect_timeout`, `sslmode`, …

        Raises `ConfigurationError`: the URL cannot be read, or an option is unknown or out of range.
        """
        del runner  # only sync:// has a use for one
        return cls(read_address(url, options), signer=signer, clock=clock)

    def prepare(self) -> None:
        """Create the schema, or bring it up to date, or see that it is. Safe to call again, in several processes too.

        Raises:
            BackendUnavailable: The server does not answer.
            ConfigurationError: This user may not do that, or the schema is newer or another program's.
        """
        self._database.prepare()

    def diagnose(self) -> list[Finding]:
        """Check which of the server's settings can lose jobs or slow them down."""
        return checks.diagnose(self._database)

    def broker_time(self) -> float:
        """Return the server's clock."""
        return checks.server_time(self._database)

    def close(self) -> None:
        """Close all connections; threads that wait come back within half a second. Safe to call twice."""
        self._database.close()
        self._waiter.close()

    # --- the life of a message -----------------------------------------------------------------------

    def _enqueue(self, messages: Sequence[NewMessage]) -> Existing | None:
        return self._enqueuer.add(messages)

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing | None:
        self._database.ensure_current()
        return in_transaction.enqueue(connection, self._database.schema, messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        return self._fetcher.fetch(queue, limit, ttl, fetch_id)

    def _wait_any(self, queues: Sequence[str], timeout: float) -> str | None:
        return self._waiter.wait_any(queues, timeout)

    def _settle(self, settlements: Sequence[tuple[JobLease, Settlement]], call_id: str) -> list[Settled]:
        answers = self._settler.settle(settlements, brought_by_each(self, settlements), call_id)
        if self._caps.any:
            died = [lease for lease, settlement in settlements if type(settlement) is Abandon]
            self._caps.enforce({lease.queue for lease in died})
        guarded = [place for place, (lease, _) in enumerate(settlements) if lease.guards is not None]
        if guarded:
            self._keys.leave(settlements[place][0] for place in guarded if answers[place])
        return answers

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what `ctx.ack` needs to ack this message on a psycopg 3 connection to the queue's database."""
        key, keep = to_be_done(lease.guards)
        return in_transaction.make_ticket(
            self._database.schema,
            ident=lease.id,
            queue=lease.queue,
            seq=number_of(lease),
            holder=holder_of(lease),
            owner=lease.owner_token,
            key=key,
            keep=keep,
        )

    def _renew(self, leases: Sequence[JobLease], ttl: float) -> list[JobLease | None]:
        return self._settler.renew(leases, ttl)

    def _reap(self, queue: str, policy: ReapPolicy, visibility_timeout: float | None) -> list[Reaped]:
        reaped = self._reaper.reap(queue, policy, visibility_timeout)
        if self._caps.any:
            self._caps.enforce({queue})
        return reaped

    @property
    def keys(self) -> KeyStore:
        """Guards, records and logs, in tables of the same schema."""
        return self._keys

    @property
    def claims(self) -> ClaimStore:
        """Claims, and messages that are posted, in the same schema."""
        return self._claims

    # --- looking and tending -------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        """Return counts of one queue, each up to 10,000."""
        return self._inspector.stats(queue)

    def queues(self) -> list[str]:
        """Return the names of all queues that hold a message, sorted."""
        return self._inspector.queues()

    def list_messages(
        self, where: MessageFilter | None = None, *, after: str | None = None, limit: int = 50
    ) -> list[Message]:
        """Return one page in enqueue order; a statement for each 20,000 messages that are looked at in vain."""
        return self._inspector.page(where or MessageFilter(), after, limit)

    def count(self, where: MessageFilter, *, cap: int = 10_000) -> int:
        """Return how many messages match, up to `cap`."""
        return self._inspector.count(where, cap)

    def bulk(self, where: MessageFilter, verb: Verb, *, limit: int = 1000) -> int:
        """Do `verb` to up to `limit` matching messages, 500 a transaction."""
        return self._bulk_changes.bulk(where, verb, limit)

    def inspect(self, ident: str) -> Message | None:
        """Return the message with this id, live or dead."""
        return self._inspector.inspect(ident)

    def evicted(self, queue: str) -> int:
        """Return how many dead letters of the queue the caps `dead_max` and `dead_max_age` have removed, ever."""
        return self._caps.evicted(queue)
