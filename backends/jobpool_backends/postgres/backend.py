"""`PostgresBackend`: the contract, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from jobpool.broker.backend import QueueBackend
from jobpool.broker.finding import Finding
from jobpool.broker.parts import Brought, Settlements
from jobpool.broker.values import Capabilities, Existing, NewMessage, Ticket
from jobpool.clock import Clock
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool.message.signing import EnvelopeSigner
from jobpool_backends.postgres import checks, in_transaction
from jobpool_backends.postgres.batches import PostgresBatches
from jobpool_backends.postgres.claims import PostgresClaims
from jobpool_backends.postgres.connection import Address, read_address
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.enqueue import Enqueuer
from jobpool_backends.postgres.inspect import Inspector
from jobpool_backends.postgres.keys import PostgresKeys
from jobpool_backends.postgres.leases import Leases, holder_of, to_be_done
from jobpool_backends.postgres.wait import Waiter
from jobpool_backends.sql import number_of


class PostgresBackend(QueueBackend):
    """Messages in one schema of a Postgres database, shared by any number of processes of any number of machines.

    The server's clock tells all times; `clock` is used for the deadlines in leases, on this machine. A call is one
    statement, hence one transaction and one round trip, unless it says otherwise. It waits for `timeout` seconds, and
    as long again where it must connect first; then it raises `BackendUnavailable`. When a call returns, its work is on
    the server's disk, unless `synchronous_commit` says otherwise. `stats` counts each state up to 10,000. A page is a
    statement for each 20,000 messages that are looked at in vain; `bulk` is one for each 500 messages.

    Connects, and makes or migrates the schema, when it is first used. `signer` signs what is enqueued; None = unsigned.
    """

    scheme: ClassVar[str] = "postgresql"
    capabilities: ClassVar[Capabilities] = Capabilities(key_store=True, transactions=True)

    def __init__(self, address: Address, *, signer: EnvelopeSigner | None = None, clock: Clock | None = None) -> None:
        super().__init__(signer=signer, clock=clock)
        if "password" not in address.parameters:
            self.credential_variables = ("PGPASSWORD",)
        self._database = database = Database(address)
        enqueuer = Enqueuer(database)
        self._leases = leases = Leases(database, self.clock, enqueuer, self.scheme)
        self._keys = self._key_store = PostgresKeys(database)
        self._claims = PostgresClaims(database)
        self._inspector = inspector = Inspector(database)
        self._results = self._waiter = Waiter(database)
        self._batches = PostgresBatches(database)
        self._enqueue = enqueuer.add
        self._renew = leases.renew
        self._reap = leases.reap
        self._wait_any = self._waiter.wait_any
        self._bulk, self._edits, self._evicted = inspector.bulk, inspector.edit, inspector.evicted
        self._closers = (database.close, self._waiter.close)

    @classmethod
    def _open(cls, url: str, options: dict[str, object], **common: Any) -> Self:
        return cls(read_address(url, options), **common)

    def prepare(self) -> None:
        """Create the schema, or bring it up to date, or see that it is. Safe to call again, in several processes too.

        Raises `BackendUnavailable`: the server does not answer; `ConfigurationError`: this user may not do that, or the
        schema is newer or another program's.
        """
        self._database.prepare()

    def diagnose(self) -> list[Finding]:
        """Check which of the server's settings can lose jobs or slow them down."""
        return checks.diagnose(self._database)

    def broker_time(self) -> float:
        return checks.server_time(self._database)

    def _enqueue_in(self, connection: object, messages: Sequence[NewMessage]) -> Existing | None:
        database = self._database
        database.ensure_current()
        try:
            return in_transaction.enqueue(connection, database.schema, database.home, messages)
        except in_transaction.OtherDatabase:  # or the schema was made anew since
            database.prepare()
            return in_transaction.enqueue(connection, database.schema, database.home, messages)

    def _fetch(self, queue: str, limit: int, ttl: float, fetch_id: str) -> list[JobLease]:
        leases = self._leases.fetch(queue, limit, ttl, fetch_id)
        if leases:
            self._waiter.trust()
        return leases

    def _settle(self, settlements: Settlements, brought: Brought, call_id: str) -> list[Settled]:
        answers = self._leases.settle(settlements, brought, call_id)
        self._key_store.leave(lease for (lease, _), answer in zip(settlements, answers, strict=True) if answer)
        return answers

    def ticket(self, lease: JobLease) -> Ticket:
        """Return what `ctx.ack` needs to ack this message on a psycopg 3 connection to the queue's database."""
        key, keep = to_be_done(lease.guards)
        guards: dict[str, str | int | None] = {"key": key, "keep": keep}
        return {name: value for name, value in guards.items() if value is not None} | {
            "ack": f"{in_transaction.__name__}:{in_transaction.ack.__name__}",
            "schema": self._database.schema,
            "home": self._database.home,
            "id": lease.id,
            "queue": lease.queue,
            "seq": number_of(lease),
            "holder": holder_of(lease),
            "owner": lease.owner_token,
        }
