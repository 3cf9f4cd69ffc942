"""The tables, the functions, their versions, and how an older schema becomes a current one.

Each verb is one function in the schema: one statement, one round trip, one transaction. The session keeps its plans,
even if a pooler forbids prepared statements. They are in `sql/`, beside the tables. To change a table or a function
once a schema may have it, append a migration. It alters the tables, drops functions whose parameters have changed, and
replaces all functions in place of the migration before. Never change what a function takes or returns under the same
name, be it only a part of others. A pool that runs has plans of its callers, which expect the old types. Give it a new
name.

All times are whole microseconds of Unix time by the server's clock, which `moment()` tells; no statement reads another.
Numbers of states: 0 waiting, 1 delayed, 2 leased, 3 dead. A message in its first lease has 0, and a holder. Posted
messages have numbers of their own, so that the indexes of jobs do not grow with them. These are 4 free and never
claimed, 5 delayed, 6 claimed, 7 free again. A dead one is 3; its handler is ''.

`messages`: one row a message.

    id, queue, handler, priority, attempts, crashes, deliveries, enqueued_at, available_at, last_error: as they say
    seq                the enqueue sequence, kept for life; lists and cursors go by it
    given              its producer chose the id
    state, fresh       fresh: waiting since its enqueue, or in its first lease; false after it, and for what was delayed
    unique_key         under which `uniques` knows it; NULL for most
    body               the wire bytes; from about 2 KB on outside the row, so that no update copies them
    holder             leased, in a first lease too: first half of the owner token in hex; the second half is seq
    deadline, ttl      leased: when the lease ends; how long it was taken or renewed for
    first_until        when a first lease ends; its `deadline`, which an index has, is NULL
    forfeited          leased: the cause that was given when the lease was forfeited
    cause, last_crash  of the last crash, or of the last attempt that was killed; when that was
    reason, died_at    dead: why and when
    claim, claims      leased by it, or claimed: its id; how often it was claimed
    begun              a run of it was begun and given back, or it was raised: it does not expire any more
    batch              of which it is a member; NULL for most, and for the dead
    ends_at            of a posted message with a life; NULL for all others, and for the dead

Its indexes, each for one question, partial where only one state asks it:

    messages_pkey    (id)                                   law 8; inspect
    messages_listed  (queue, state, seq), unique            settle and renew (0, 2); lists, counts, oldest; claims
    messages_fresh   (queue, priority, seq), waiting fresh  fetch; the first leases of a fetch
    messages_again   (queue, priority, seq), other waiting  fetch: what came back from a lease, a delay, the dead
    messages_due     (queue, available_at), delayed         promotion; when the next one falls due
    messages_held    (queue, deadline), leased              reap, but for first leases
    messages_dead    (queue, died_at, seq), dead            eviction
    messages_posted  (queue, ends_at), posted, not dead     ends of lives; how many there are
    messages_later   (queue, available_at), posted delayed  when the next one falls due
    messages_batch   (batch, seq), members                  the members of a batch

The other tables are described where they are made, in `sql/tables*.sql`.

Any call sweeps what is past its `until`. Decisions about keys, places and rates take advisory locks first, see
`take_turns` in `sql/guards.sql`. A fetch waits a moment for that of its queue, and goes another way without it; see
`have_turn` in `sql/fetch.sql`.

`migrations` holds the versions that the schema has been through. Each of `MIGRATIONS` is done once, all in one
transaction under a lock.

Functions that are called from here have the settings of `_PLANNER`; the rest are their parts, and run under them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import psycopg

from jobpool.broker.claim_store import CLAIM_LIMIT, MOST_LIFE, POST_PRIORITY
from jobpool.broker.values import ENQUEUE_MEMORY, REMEMBER_CALLS
from jobpool.errors import ConfigurationError
from jobpool.message.batches import BATCH_MEMORY_S, MAX_FAILED_IDS
from jobpool.message.envelope import MAX_BODY_BYTES
from jobpool.message.guards import IDEMPOTENCY_TTL
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.in_transaction import BATCH_NOT_OPEN, HOME
from jobpool_backends.shared import MICRO, micros

WAITING, DELAYED, LEASED, DEAD = range(4)
POSTED, POSTED_LATER, POSTED_HELD, POSTED_AGAIN = range(4, 8)  # `messages.state`
TIDY_LIMIT = 1000
"""Messages of each kind that one call looks at and changes: of ended claims, ended posted ones, due ones, and those
claimed too often.
"""

PAGE_BYTES = 16 * 1024 * 1024  # of the bodies in one page of a list of free messages: then it is shorter

PROMOTE_LIMIT = 1000
"""Delayed messages that join the others in one fetch, so that a million due at once do not hold it for seconds. The
order holds among those that have joined.
"""

WINDOW = 20_000  # messages that one statement of a list, a count or a bulk verb looks at

WRONG_ISOLATION = "JP001"
"""The server's word for it, when what needs READ COMMITTED is asked for under another isolation level."""

# A plan is made once a session, often while the tables are empty, and must still be right when they are full. So every
# statement is written to leave one index that gives its order, and plans that are cheaper only for a few rows are off.
# Where such a plan cannot be avoided (a sort of a page), its high cost would make the server compile: `jit = off`.
_PLANNER = """
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
"""

_WANTED = """
    (wanted_handler IS NULL OR m.handler = wanted_handler) AND (wanted_reason IS NULL OR m.reason = wanted_reason)
    AND (older IS NULL OR coalesce(m.died_at, m.enqueued_at) <= now - older)
    AND (newer IS NULL OR coalesce(m.died_at, m.enqueued_at) >= now - newer)
    AND (m.ends_at IS NULL OR m.ends_at > now)
"""

_PROLONGED = f"""
    CASE WHEN m.ends_at IS NOT NULL THEN greatest(m.ends_at, least(now + length + new_grace, now + {micros(MOST_LIFE)}))
    END
"""
"""The end of a life, for one that is claimed now for `length`, with `new_grace` after it."""

_HELD = """
    ttl bigint, grace bigint, since bigint, seen_at bigint, seq bigint, id text, body bytea, handler text,
    priority smallint, enqueued_at bigint, claims integer, ends_at bigint
"""
"""Columns of a claim, in each row, and of one of its messages."""

_SHOWN = """
    id text, queue text, state smallint, handler text, priority smallint, attempts integer, crashes integer,
    deliveries bigint, enqueued_at bigint, available_at bigint, body bytea, reason text, last_error text, cause text,
    forfeited text, died_at bigint, deadline bigint, place text, claim text, claims integer, ends_at bigint
"""
_KIND = f"(CASE WHEN m.state = {WAITING} AND m.holder IS NOT NULL THEN {LEASED}::int2 ELSE m.state END)"
"""The state of a message, first leases counted among the leased."""

_DEADLINE = "coalesce(m.deadline, m.first_until)"
_FRESH = f"m.state = {WAITING} AND m.fresh"
_COMPUTED = {
    "state": f"(CASE WHEN m.state IN (1, 5) AND m.available_at <= now THEN m.state - 1 ELSE {_KIND} END)::int2",
    "body": "CASE WHEN bodies THEN m.body END",
    "deadline": _DEADLINE,
    "place": "m.ctid::text",
    "claim": "CASE WHEN m.deadline > now THEN m.claim END",
}
"""Columns of a message in a list; those that are not columns of the table."""

_SQL_VALUES = {
    # Its length is known without reading it, where it lies outside the row.
    "{body}": f"CASE WHEN octet_length(m.body) <= {MAX_BODY_BYTES} THEN m.body END",
    "{planner}": " ".join(_PLANNER.split()),
    "{no_lease}": "fresh = false, first_until = NULL, holder = NULL, deadline = NULL, ttl = NULL, forfeited = NULL",
    "{kept_lease}": f"state = {LEASED}, fresh = false, first_until = NULL",  # a first lease becomes an ordinary one
    # The states that a leased message may have, one by one: for an array, a plan may read all entries of the queue.
    "{leased}": f"unnest('{{{WAITING}, {LEASED}}}'::smallint[]) AS k (state)",
    "{kind}": _KIND,
    "{deadline}": _DEADLINE,
    "{fresh}": f"{_FRESH} AND m.holder IS NULL",
    # Messages of a fetch from which on their index entries, three each, cost more than a row of `fetches`.
    "{first_leases_from}": "3",
    # Numbers between the lowest and the highest of them, at most: other messages there are passed over in each look.
    "{first_leases_range}": "20000",
    # The greatest counters that can be raised by one: a row that was changed by hand may hold any.
    "{max_bigint}": str(2**63 - 2),
    "{max_integer}": str(2**31 - 2),
    "{stays}": "(m.fresh AND m.priority = ANY (ARRAY(SELECT n.priority FROM noted n)))",
    # The end of a query for messages `m` in first leases that fetch `f` gave. No comparison of rows: a scan passes the
    # end of `(priority, seq) <= (...)`, and reads on over all that waits with this priority.
    # The order leaves one index.
    "{of_fetch}": f"m.queue = f.queue AND {_FRESH} AND m.priority = f.priority AND m.seq >= f.low AND m.seq <= f.high"
    " AND m.holder = f.holder ORDER BY m.priority, m.seq",
    # How long a fetch waits for its queue's turn. One that goes without it locks each row, and gives no first leases.
    # If none waits, 3 pools with no-op jobs cost the server a third more time a job, and 80 % more of its log.
    "{turn_timeout}": "25ms",
    # How long a settlement waits for messages of its own that another transaction has locked.
    "{row_lock_timeout}": "500 milliseconds",
    "{wanted}": " ".join(_WANTED.split()),
    "{shown}": ", ".join(_COMPUTED.get(name, f"m.{name}") for name in re.findall(r"(\w+) \w+", _SHOWN)),
    "{shown_columns}": " ".join(["seq bigint,", *_SHOWN.split()]),
    "{held_columns}": " ".join(_HELD.split()),
    "{when_held}": f"(CASE m.state WHEN {WAITING} THEN {LEASED} ELSE {POSTED_HELD} END)::int2",
    "{prolonged}": " ".join(_PROLONGED.split()),
    "{back_to_life}": f"CASE m.handler WHEN '' THEN {POSTED_AGAIN} ELSE {WAITING} END",
    "{post_priority}": str(POST_PRIORITY),
    "{claim_limit}": CLAIM_LIMIT,
    "{tidy_limit}": str(TIDY_LIMIT),
    "{worn_limit}": "200",  # messages among which one call looks for those claimed too often
    "{page_bytes}": str(PAGE_BYTES),
    "{unknown_cause}": "lease expired",
    "{promote_limit}": str(PROMOTE_LIMIT),
    "{window}": str(WINDOW),
    # Sequence numbers that a fetch may walk over in vain before the floor follows: some ten index pages.
    "{floor_step}": "1000",
    "{floor_reset}": str(60 * MICRO),
    "{remember_calls}": str(micros(REMEMBER_CALLS)),
    "{enqueue_memory}": str(micros(ENQUEUE_MEMORY)),
    "{unique_memory}": str(micros(IDEMPOTENCY_TTL)),
    # To give pages back to the disk (`vacuum_truncate`) takes a lock that stops everybody.
    "{keeps_many}": "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,"
    " autovacuum_vacuum_cost_limit = 2000, autovacuum_analyze_scale_factor = 0.2,"
    " autovacuum_analyze_threshold = 50000, vacuum_truncate = off",
    "{keeps_short}": "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,"
    " autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off",
    # Locks that stand for the names of all keys, places and rates; a power of 2. A server has some thousands for all.
    "{turns}": "256",
    "{wrong_isolation}": WRONG_ISOLATION,
    "{batch_not_open}": BATCH_NOT_OPEN,
    "{batch_memory}": str(micros(BATCH_MEMORY_S)),
    "{max_failed_ids}": str(MAX_FAILED_IDS),
    # After which a place whose lease goes on is looked at again, whether it can be forgotten.
    "{look_again}": str(60 * MICRO),
}

_FUNCTIONS = """
    common enqueue enqueue_keyed fetch settle reap inspect bulk guards places rates records posts claims_create
    claims_held claims_delete claims_list results edit batches
"""


def _read(name: str) -> str:
    """Return the statements of one file, with `{schema}` left to fill in."""
    text = files(__package__).joinpath("sql", f"{name}.sql").read_text("utf-8")
    for word, meaning in _SQL_VALUES.items():
        text = text.replace(word, meaning)
    return text.strip().removesuffix(";")


def quoted(schema: str) -> str:
    """Return the schema's name as it stands in SQL. It has been checked: there is no quote in it."""
    return f'"{schema}"'


def fill(sql: str, schema: str) -> str:
    """Fill in the quoted name of the schema for `{schema}`."""
    return sql.replace("{schema}", quoted(schema))


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (_read("tables_1"),),
    (_read("tables_2"),),
    (_read("tables_3"),),
    (),
    (_read("tables_5"),),
    (_read("tables_6"),),
    (_read("tables_7"),),
    (_read("tables_8"),),
    # Early builds of version 8 made it with another result.
    ("DROP FUNCTION IF EXISTS {schema}.forget_fetches(tid[], tid[])",),
    *[()] * 3,  # functions alone have changed
    tuple(map(_read, _FUNCTIONS.split())),
)
"""From each version to the next: statements, to be run in one transaction; `{schema}` is the quoted name.

The last one replaces all functions by those of today, so none before it needs any.
"""

VERSION = len(MIGRATIONS)

MIGRATION_TIMEOUT_S = 300.0
"""Seconds for a statement of a migration, or for another process that migrates: tables may be large."""
LOCK_TIMEOUT_S = 5
"""Seconds that a migration waits for a lock on a table: calls take up to `timeout`, 3 s."""

_VERSIONS = """
CREATE TABLE {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_READ = f"SELECT max(version), {HOME} FROM {{schema}}.migrations"
_NOTE = "INSERT INTO {schema}.migrations (version) VALUES ({version})"


def check_current(connection: Connection, schema: str) -> str:
    """Make sure that the schema is that of this code, and migrate it if it is older or not there; return its `HOME`.

    Raises `ConfigurationError`: it is newer, or another program's, or this user may not create it; or `psycopg.Error`.
    Blocks for one round trip when it is current; else up to `MIGRATION_TIMEOUT_S` for each step.
    """
    version, home = _read_version(connection, schema)
    if version == VERSION:
        return home
    usual = connection.answer_timeout
    connection.answer_timeout = MIGRATION_TIMEOUT_S
    try:
        _migrate(connection, schema)
    finally:
        connection.answer_timeout = usual
    return _read_version(connection, schema)[1]


def _read_version(connection: Connection, schema: str) -> tuple[int, str]:
    """Return the schema's version and `HOME`; 0 and no text when it is not there."""
    try:
        found: tuple[int, str] = _ask(connection, fill(_READ, schema))[0]
    except psycopg.errors.UndefinedTable:
        return 0, ""
    if found[0] is None:  # it is made together with its first row
        raise ConfigurationError(
            f"table migrations of schema {schema!r} shows this user no row: turn off row level security for the"
            " schema's tables, or restore them"
        )
    if found[0] > VERSION:
        raise ConfigurationError(
            f"schema {schema!r} has version {found[0]}, and this jobpool knows {VERSION}: install the newer jobpool"
            " that migrated it, or name another schema in the URL"
        )
    return found


def _migrate(connection: Connection, schema: str) -> None:
    version = 0
    try:
        with connection.transaction():
            # One process at a time migrates, and sees what the one before has done. No other program of the database
            # may use the lock's number.
            digest = hashlib.sha256(f"jobpool schema {schema}".encode()).digest()
            _ask(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            _ask(connection, "SET LOCAL statement_timeout = 0")
            _ask(connection, "SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(digest[:8], "big", signed=True)])
            # Behind a dump, say, a table's lock would wait, and stop everybody who asks after it.
            _ask(connection, f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
            version = _version_under_lock(connection, schema)
            statements = [] if version else [_VERSIONS]
            for number, migration in enumerate(MIGRATIONS[version:], start=version + 1):
                statements += [*migration, _NOTE.replace("{version}", str(number))]
            for statement in statements:
                _ask(connection, fill(statement, schema))
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateFunction) as error:
        raise ConfigurationError(
            f"schema {schema!r} holds tables of another program ({_first_line(error)}): name another in the URL,"
            " such as ?schema=jobpool2"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        told = f"schema {schema!r} is at version {version}, and this jobpool needs {VERSION}"
        mend = "run `jobpool init --broker-only` as its owner"
        if not version:
            told = f"user {user!r} may not create schema {schema!r}"
            sql = f'CREATE SCHEMA {quoted(schema)} AUTHORIZATION "{user}"'
            mend = f"run `jobpool init --broker-only` as one who may, or let an administrator run {sql}"
        raise ConfigurationError(f"{told} ({_first_line(error)}): {mend}") from error


def _version_under_lock(connection: Connection, schema: str) -> int:
    """Return the version, locked against changes; create the schema if it is missing.

    CREATE SCHEMA IF NOT EXISTS would want rights on the database even if an administrator has created it.
    """
    if not _ask(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]):
        _ask(connection, f"CREATE SCHEMA {quoted(schema)}")
    there = _ask(connection, "SELECT to_regclass(%s) IS NOT NULL", [f"{quoted(schema)}.migrations"])[0][0]
    return _read_version(connection, schema)[0] if there else 0


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0]


def _ask(connection: Connection, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql, parameters, prepare=False)
    return cursor.fetchall() if cursor.description else []
