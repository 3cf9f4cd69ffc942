"""The tables, and how an older file becomes a current one.

All times are whole microseconds: Unix time, but `deadline` is on CLOCK_BOOTTIME of the boot that `boot` names.

`messages` holds what changes, in short rows; `bodies` what never changes, so that leasing a message of a megabyte does
not write a megabyte. `seq` is the enqueue sequence, kept for life and never used twice.

Each index serves one question. It is partial if only one state asks it, so that its cost does not grow with messages in
other states. They are ready (fetch), due (promotion, next due time), held (reap), listed (lists, counts, oldest),
unique (the holder of a unique key), dead (eviction). `queues` holds the counts, changed in the transaction of a move.

The tables of version 2 are the key store's, and are empty where nobody asks for keys. Rows that end by themselves have
a column `until`; a hold ends with the lease that it names.

Version 3 brings claims and posted messages. A posted message has no handler. While it is free or delayed it has a state
of its own, so that the indexes of jobs do not grow with it. Claimed and dead ones are like jobs. A claimed message is
leased, and names the claim, whose row holds the end. It has no boot and no deadline of its own, so that no reap of
leases meets it. Four more indexes: posts (claims), posts_due (promotion), claimed (messages of a claim), ending
(lives).

Version 5 brings results. Their ends have no index, which would double the cost of keeping one. A sweep goes round the
table, and looks at more rows than have come since the last. Version 6 brings batches, which their members name.
"""

from __future__ import annotations

import re
import sqlite3

from jobpool.errors import ConfigurationError

WAITING, DELAYED, LEASED, DEAD, POSTED, POST_DELAYED = range(6)
"""`messages.state`. In the SQL they stand as numbers: a partial index is not used for a parameter."""

EACH = "(SELECT value FROM json_each(?))"

NO_LEASE = "holder = NULL, boot = NULL, deadline = NULL, deadline_wall = NULL, ttl = NULL, forfeited = NULL"
"""Columns that a message loses with its lease, for an UPDATE."""

STATS_CAP = 10_000  # delayed messages counted one by one that fell due while nobody fetched


def living(now: str) -> str:
    """Return SQL that holds for messages without an end, or not yet at it."""
    return f"(ends_at IS NULL OR ends_at > {now})"


def whole(columns: str) -> str:
    """Return SQL for these columns, with -1 where another program has put neither a whole number nor NULL."""
    return re.sub(r"\w+", r"CASE WHEN typeof(\g<0>) IN ('integer', 'null') THEN \g<0> ELSE -1 END", columns)


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE messages (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL,
            given INTEGER NOT NULL,             -- 1: its producer chose the id
            queue TEXT NOT NULL, handler TEXT NOT NULL, priority INTEGER NOT NULL,
            state INTEGER NOT NULL,             -- 0 waiting, 1 delayed, 2 leased, 3 dead
            attempts INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
            deliveries INTEGER NOT NULL DEFAULT 0,
            enqueued_at INTEGER NOT NULL, available_at INTEGER NOT NULL,
            holder TEXT,                        -- first half of the owner token; the second is seq in hex
            boot INTEGER, deadline INTEGER,     -- `boot` names the boot in which `deadline` counts
            deadline_wall INTEGER,              -- the same, as Unix time, for after a reboot
            ttl INTEGER,                        -- so that deadline - ttl is when it was taken or renewed
            forfeited TEXT,                     -- the cause, when the lease was forfeited
            cause TEXT, reason TEXT,            -- of the last crash; of a dead letter
            last_error TEXT, died_at INTEGER, last_crash INTEGER,
            CHECK ((state = 2) = (holder IS NOT NULL)),
            CHECK ((state = 3) = (died_at IS NOT NULL))
        )
        """,
        "CREATE UNIQUE INDEX messages_by_id ON messages (id)",
        "CREATE INDEX messages_ready ON messages (queue, priority, seq) WHERE state = 0",
        "CREATE INDEX messages_due ON messages (queue, available_at) WHERE state = 1",
        "CREATE INDEX messages_held ON messages (queue, boot, deadline) WHERE state = 2",
        "CREATE INDEX messages_listed ON messages (queue, state, seq)",
        "CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        """
        CREATE TABLE queues (
            name TEXT PRIMARY KEY,
            waiting INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
            leased INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0
        ) WITHOUT ROWID
        """,
        "CREATE TABLE calls (id TEXT PRIMARY KEY, until INTEGER NOT NULL, answer TEXT NOT NULL) WITHOUT ROWID",
        "CREATE INDEX calls_until ON calls (until)",
        "CREATE TABLE ended (id TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX ended_until ON ended (until)",
    ),
    (
        "ALTER TABLE messages ADD COLUMN unique_key TEXT",
        "ALTER TABLE queues ADD COLUMN evicted INTEGER NOT NULL DEFAULT 0",
        "CREATE UNIQUE INDEX messages_unique ON messages (queue, unique_key) WHERE unique_key IS NOT NULL",
        "CREATE INDEX messages_dead ON messages (queue, died_at, seq) WHERE state = 3",
        """
        CREATE TABLE spent (                    -- unique keys of messages that were acked
            queue TEXT NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (queue, key)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX spent_until ON spent (until)",
        """
        CREATE TABLE done (                     -- idempotency keys
            queue TEXT NOT NULL, key TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (queue, key)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX done_until ON done (until)",
        """
        CREATE TABLE holds (
            seq INTEGER NOT NULL,               -- of the message that holds the place
            name TEXT NOT NULL, queue TEXT NOT NULL,
            holder TEXT NOT NULL,               -- by the lease that has this holder
            PRIMARY KEY (seq, name)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX holds_by_name ON holds (queue, name)",
        """
        CREATE TABLE starts (
            queue TEXT NOT NULL, name TEXT NOT NULL, token TEXT NOT NULL,
            at INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (queue, name, token)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX starts_by_time ON starts (queue, name, at)",
        "CREATE INDEX starts_until ON starts (until)",
        """
        CREATE TABLE records (
            number INTEGER PRIMARY KEY, space TEXT NOT NULL, key TEXT NOT NULL,
            until INTEGER NOT NULL, value BLOB NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX records_by_key ON records (space, key)",
        "CREATE INDEX records_until ON records (until)",
        """
        CREATE TABLE logs (
            number INTEGER PRIMARY KEY, space TEXT NOT NULL, name TEXT NOT NULL,
            place INTEGER NOT NULL,             -- 1, 2, 3, … without a gap, within a log
            line BLOB NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX logs_by_place ON logs (space, name, place)",
    ),
    (
        "ALTER TABLE messages ADD COLUMN claim TEXT",  # the claim that holds it
        "ALTER TABLE messages ADD COLUMN claims INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE messages ADD COLUMN ends_at INTEGER",  # the end of its life; of a posted one that is not dead
        "CREATE INDEX messages_posts ON messages (queue, priority, seq) WHERE state = 4",
        "CREATE INDEX messages_posts_due ON messages (queue, available_at) WHERE state = 5",
        "CREATE INDEX messages_claimed ON messages (queue, claim, priority, seq) WHERE claim IS NOT NULL",
        "CREATE INDEX messages_ending ON messages (queue, ends_at) WHERE ends_at IS NOT NULL",
        "ALTER TABLE queues ADD COLUMN posts INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE queues ADD COLUMN posts_delayed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE queues ADD COLUMN posts_claimed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE queues ADD COLUMN expired INTEGER NOT NULL DEFAULT 0",
        """
        CREATE TABLE claims (
            queue TEXT NOT NULL, id TEXT NOT NULL, ttl INTEGER NOT NULL, grace INTEGER NOT NULL,
            empty INTEGER NOT NULL,             -- 1: all that it held was deleted
            boot INTEGER NOT NULL, deadline INTEGER NOT NULL,
            deadline_wall INTEGER NOT NULL,     -- the same, as Unix time, for after a reboot
            PRIMARY KEY (queue, id)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX claims_by_end ON claims (queue, empty, boot, deadline)",
        "CREATE INDEX claims_by_end_wall ON claims (queue, empty, boot, deadline_wall)",
    ),
    # 1: a run of it was begun and given back, or it was raised from the dead letters
    ("ALTER TABLE messages ADD COLUMN begun INTEGER NOT NULL DEFAULT 0",),
    (
        """
        CREATE TABLE results (                  -- of acked messages, by their ids
            id TEXT PRIMARY KEY, until INTEGER NOT NULL, record BLOB NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        "ALTER TABLE messages ADD COLUMN batch TEXT",  # of which it is a member; NULL once it is dead
        "CREATE INDEX messages_of_batch ON messages (batch) WHERE batch IS NOT NULL",
        """
        CREATE TABLE batches (
            id TEXT PRIMARY KEY, open INTEGER NOT NULL DEFAULT 1,
            total INTEGER NOT NULL DEFAULT 0,   -- members so far; a batch may be one
            succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
            cancelled INTEGER NOT NULL DEFAULT 0,
            failed_ids TEXT NOT NULL DEFAULT '[]', nested TEXT NOT NULL DEFAULT '[]',  -- JSON
            stopped INTEGER NOT NULL DEFAULT 0, -- cancelled as a whole
            parent TEXT, created_at INTEGER NOT NULL, ended_at INTEGER, until INTEGER,
            callbacks TEXT NOT NULL             -- JSON: the messages that its end adds
        ) WITHOUT ROWID
        """,
        "CREATE INDEX batches_until ON batches (until) WHERE until IS NOT NULL",
    ),
)

VERSION = len(MIGRATIONS)


def is_current(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether the tables are this code's. Raises `ConfigurationError`: they are newer, or another program's."""
    version = _version(connection)
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        version = _version(connection)  # another process may have made the tables between the two looks
        if version == 0:
            raise ConfigurationError(f"database {path} holds tables of another program: give jobpool a file of its own")
    if version > VERSION:
        raise ConfigurationError(
            f"database {path} has schema version {version}, and this jobpool knows {VERSION}:"
            " install the newer jobpool that wrote it, or name another file"
        )
    return version == VERSION and not _lacks_stopped(connection)


def _lacks_stopped(connection: sqlite3.Connection) -> bool:
    """Return whether the file's version 6 is of a build before the release, without this column of `batches`."""
    return not connection.execute("SELECT 1 FROM pragma_table_info('batches') WHERE name = 'stopped'").fetchone()


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the tables up to date. Call it inside a write transaction: another process may have done so meanwhile."""
    if is_current(connection, path):
        return
    for statements in MIGRATIONS[_version(connection) :]:
        for statement in statements:
            connection.execute(statement)
    if _lacks_stopped(connection):
        connection.execute("ALTER TABLE batches ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0")
    connection.execute(f"PRAGMA user_version = {VERSION}")
