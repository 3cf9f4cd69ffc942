"""What the server's settings can lose or slow down, in plain sentences: told once when a pool starts."""

from __future__ import annotations

from collections.abc import Iterator

from jobpool_backends.postgres.database import Database

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)b::text[])"

_ROLES = "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_replication)"

_TABLES = """
SELECT c.relname,
    EXISTS (SELECT FROM pg_options_to_table(c.reloptions)
            WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean),
    c.reltuples <= 0 AND c.relpages = 0 AND pg_relation_size(c.oid) > %(large)b
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)b AND c.relkind = 'r' ORDER BY c.relname
"""

_LARGE = 16 * 1024 * 1024
"""Bytes of a table that was never analysed, from which on the server's guesses about it hurt."""

_MISTAKES = {
    ("synchronous_commit", "off"): "a crash of the server forgets what it answered in its last second: jobs that were"
    " enqueued are lost, and acked ones run again. Set it to 'on' for this user or database",
    ("synchronous_commit", "local"): "a failover forgets what the standby had not received yet: jobs that were enqueued"
    " are lost, and acked ones run again. Set it to 'on' for this user or database",
    ("fsync", "off"): "a crash of the server's machine can destroy the whole database. Set it to 'on'",
    ("full_page_writes", "off"): "a crash of the server's machine can damage tables, unless its file system never"
    " tears a page. Set it to 'on'",
    ("autovacuum", "off"): "dead rows pile up, and fetching slows down within minutes under load. Set it to 'on'",
    ("track_counts", "off"): "autovacuum does nothing without it, and fetching slows down. Set it to 'on'",
    ("default_transaction_isolation", "serializable"): "jobpool's transactions collide and are tried again. Set it to"
    " 'read committed' for this user",
    ("default_transaction_isolation", "repeatable read"): "jobpool's transactions collide and are tried again. Set it"
    " to 'read committed' for this user",
    ("default_transaction_read_only", "on"): "nothing can be enqueued or fetched. Set it to 'off' for this user",
}
_STANDBY = (
    "the server is a standby: nothing can be enqueued or fetched. Name its primary in the URL, or all hosts with"
    " target_session_attrs=read-write"
)
_ASYNCHRONOUS = (
    "the server has standbys and waits for none of them (synchronous_standby_names is empty): a failover forgets the"
    " last moments, in which jobs were enqueued or acked. Name a synchronous standby if that is too much"
)
_POOLED = (
    "a pooler lends out the server's sessions, so LISTEN hears nothing, and an idle pool begins a job up to 0.25 s"
    " late. Nor can jobpool set limits for its sessions: set idle_in_transaction_session_timeout to 10s for this user,"
    " or connect to the server itself"
)


def cautions(database: Database) -> list[str]:
    """A sentence for each setting that can lose something or slow things down; empty when nothing is known.

    Raises BackendUnavailable. Blocks for a few round trips.
    """
    return [*_of_settings(database), *_of_tables(database), *([_POOLED] if database.pooled else [])]


def _of_settings(database: Database) -> Iterator[str]:
    names = {name for name, _ in _MISTAKES} | {"synchronous_standby_names"}
    settings = dict(database.run(_SETTINGS, {"names": sorted(names)}))
    [(standby, has_standbys)] = database.run(_ROLES)
    for (name, value), loses in _MISTAKES.items():
        if settings.get(name) == value and not (standby and name == "default_transaction_read_only"):
            yield f"{name} is {value!r}: {loses}"
    if standby:
        yield _STANDBY
    elif has_standbys and not settings.get("synchronous_standby_names"):
        yield _ASYNCHRONOUS


def _of_tables(database: Database) -> Iterator[str]:
    for name, unswept, unknown in database.run(_TABLES, {"schema": database.schema, "large": _LARGE}):
        table = f"{database.schema}.{name}"
        if unswept:
            yield (
                f"autovacuum is off for table {table}: dead rows pile up, and fetching slows down within minutes under"
                f" load. ALTER TABLE {table} RESET (autovacuum_enabled)"
            )
        if unknown:
            yield f"table {table} was never analysed, so the server guesses how to fetch. Run ANALYZE {table}"
