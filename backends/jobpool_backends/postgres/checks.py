"""Checks of the server's settings and clock, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from jobpool.broker.finding import Finding, Level
from jobpool_backends.postgres.database import Database

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY (%(names)b::text[])"

_LIMITS = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"

_ROLES = "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_replication)"

_TABLES = """
SELECT quote_ident(n.nspname) || '.' || c.relname,
    EXISTS (SELECT FROM pg_options_to_table(c.reloptions)
            WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean),
    c.reltuples <= 0 AND c.relpages = 0 AND pg_relation_size(c.oid) > %(large)b,
    c.relpersistence = 'u', row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)b AND c.relkind = 'r' ORDER BY c.relname
"""

_RIGHTS = """
SELECT current_user::text, quote_ident(current_user), quote_ident(%(schema)b::text),
    kind, lacked, array_agg(name::text ORDER BY name)
FROM (
    SELECT 'TABLE' AS kind, c.relname AS name, array_to_string(ARRAY(
        SELECT wanted FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS wanted
        WHERE (wanted = 'SELECT' OR c.relname <> 'migrations') AND NOT has_table_privilege(c.oid, wanted)
    ), ', ') AS lacked
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)b AND c.relkind = 'r'
    UNION ALL
    SELECT 'FUNCTION', p.proname, CASE WHEN has_function_privilege(p.oid, 'EXECUTE') THEN '' ELSE 'EXECUTE' END
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %(schema)b
) AS rights WHERE lacked <> '' GROUP BY kind, lacked ORDER BY kind DESC, lacked
"""

_LARGE_TABLE_BYTES = 16 * 1024 * 1024  # of one never analysed, from which on the server's guesses about it hurt

_HOLDERS = """
SELECT holder, state, extract(epoch FROM clock_timestamp() - since)::float8, mend FROM (
    SELECT xact_start, format('session %%s of user %%s has had a transaction', pid, coalesce(usename, '?')), state,
        format('SELECT pg_terminate_backend(%%s), and set idle_in_transaction_session_timeout', pid)
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared, format('user %%s has had transaction %%L', owner, gid), 'prepared',
        format('ROLLBACK PREPARED %%L, or COMMIT PREPARED', gid)
    FROM pg_prepared_xacts WHERE database = current_database()
) AS held (since, holder, state, mend)
WHERE since < clock_timestamp() - make_interval(secs => %(seconds)s::float8) ORDER BY since LIMIT 10
"""

MAX_NAMES = 3  # of tables or functions, that a finding names
LONG_TRANSACTION_S = 300.0  # for which somebody's transaction may be open before it is told

_UNSWEPT = "dead rows pile up, and fetching slows down within minutes under load"
_LOST = "jobs that were enqueued are lost, and acked ones run again"
_UNWRITABLE = "nothing can be enqueued or fetched"
_UNUSABLE = "a pool cannot start, or cannot settle what it runs"
_AWAITED = ("on", "remote_apply", "remote_write")  # values of synchronous_commit that wait for standbys
_COLLIDE = "jobpool's transactions collide and are tried again"
_MISTAKES = {
    ("synchronous_commit", "off"): (
        f"a crash of the server forgets what it answered in its last second: {_LOST}",
        "set it to 'on' for this user or database",
    ),
    ("synchronous_commit", "local"): (
        f"a failover forgets what the standby had not received yet: {_LOST}",
        "set it to 'on' for this user or database",
    ),
    ("fsync", "off"): ("a crash of the server's machine can destroy the whole database", "set it to 'on'"),
    ("full_page_writes", "off"): (
        "a crash of the server's machine can damage tables, unless its file system never tears a page",
        "set it to 'on'",
    ),
    ("autovacuum", "off"): (_UNSWEPT, "set it to 'on'"),
    ("track_counts", "off"): ("autovacuum does nothing without it, and fetching slows down", "set it to 'on'"),
    ("default_transaction_isolation", "serializable"): (_COLLIDE, "set it to 'read committed' for this user"),
    ("default_transaction_isolation", "repeatable read"): (_COLLIDE, "set it to 'read committed' for this user"),
    ("array_nulls", "off"): (_UNUSABLE, "set it to 'on' for this user"),
    ("default_transaction_read_only", "on"): (_UNWRITABLE, "set it to 'off' for this user"),
}
"""Wrong values of settings, each with its consequence and mend."""

_NAMES = tuple(dict.fromkeys(name for name, _ in _MISTAKES))


def diagnose(database: Database, *, long_transaction: float = LONG_TRANSACTION_S) -> list[Finding]:
    """Return the findings, check by check; open transactions that are older than `long_transaction` seconds are told.

    Raises BackendUnavailable. Blocks for a few round trips.
    """
    return [
        *_of_settings(database),
        *_of_tables(database),
        *_of_rights(database),
        *_of_transactions(database, long_transaction),
        _of_pooler(database),
    ]


def server_time(database: Database) -> float:
    """Return Unix time on the server's clock. Raises as `Database.run`."""
    [(moment,)] = database.run("SELECT extract(epoch FROM clock_timestamp())::float8")
    return float(moment)


def _of_settings(database: Database) -> Iterator[Finding]:
    settings = dict(database.run(_SETTINGS, {"names": [*_NAMES, "synchronous_standby_names"]}))
    [(standby, has_standbys)] = database.run(_ROLES)
    for name in _NAMES:
        value = settings.get(name)
        why, mend = _MISTAKES.get((name, value or ""), ("", ""))
        level = Level.OK if not why else Level.WARNING if why is _COLLIDE else Level.PROBLEM
        if value is None:
            yield Finding(f"postgres.{name}", Level.NOTE, f"{name} is not known to this server")
        elif not (standby and name == "default_transaction_read_only"):
            yield Finding(f"postgres.{name}", level, f"{name} is {value!r}", why, mend)
    check = "postgres.standby"
    if standby:
        why, mend = _UNWRITABLE, "name its primary in the URL, or all hosts with target_session_attrs=read-write"
        yield Finding(check, Level.PROBLEM, "the server is a standby", why, mend)
    elif settings["synchronous_standby_names"] and not has_standbys and settings["synchronous_commit"] in _AWAITED:
        found = "synchronous_standby_names names standbys, and none is connected"
        mend = "connect one, or empty that setting"
        yield Finding(check, Level.PROBLEM, found, f"each commit waits for one: {_UNWRITABLE}", mend)
    elif has_standbys and not settings["synchronous_standby_names"]:
        found = "the server has standbys and waits for none of them (synchronous_standby_names is empty)"
        why = "a failover forgets the last moments, in which jobs were enqueued or acked"
        yield Finding(check, Level.WARNING, found, why, "name a synchronous standby if that is too much")


def _of_pooler(database: Database) -> Finding:
    check = "postgres.pooler"
    if not database.pooled:
        return Finding(check, Level.OK, "no pooler in between")
    found, why = "a pooler lends out the server's sessions", "LISTEN hears nothing, so jobs begin up to 0.25 s late"
    if all(limit != "0" for limit in database.run(_LIMITS)[0]):
        return Finding(check, Level.NOTE, found, why)
    why += "; nor can jobpool set limits for its sessions"
    mend = "set statement_timeout (3s) and idle_in_transaction_session_timeout (10s) for this user, or leave it out"
    return Finding(check, Level.WARNING, found, why, mend)


def _of_tables(database: Database) -> Iterator[Finding]:
    found = []
    tables = database.run(_TABLES, {"schema": database.schema, "large": _LARGE_TABLE_BYTES})
    for table, unswept, unknown, unlogged, _ in tables:
        if unlogged:
            told, mend = f"table {table} is unlogged", f"run ALTER TABLE {table} SET LOGGED"
            found.append(Finding("postgres.tables", Level.PROBLEM, told, "a crash of the server empties it", mend))
        if unswept:
            told, mend = f"autovacuum is off for table {table}", f"run ALTER TABLE {table} RESET (autovacuum_enabled)"
            found.append(Finding("postgres.tables", Level.PROBLEM, told, _UNSWEPT, mend))
        if unknown:
            told, why = f"table {table} was never analysed", "the server guesses how to fetch"
            found.append(Finding("postgres.tables", Level.WARNING, told, why, f"run ANALYZE {table}"))
    if names := [table for table, *_, filtered in tables if filtered]:
        told = f"row level security may hide rows of {_shown(names)} from this user"
        mend = "run ALTER TABLE … DISABLE ROW LEVEL SECURITY for each"
        found.append(Finding("postgres.tables", Level.WARNING, told, "jobs that are hidden never run", mend))
    yield from found or [Finding("postgres.tables", Level.OK, f"the tables of schema {database.schema} are swept")]


def _shown(names: list[str]) -> str:
    return f"{', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''}"


def _of_rights(database: Database) -> Iterator[Finding]:
    check, schema = "postgres.rights", database.schema
    found = database.run(_RIGHTS, {"schema": schema})
    for user, role, place, kind, lacked, names in found:
        which = f"{len(names)} of the {kind.lower()}s of schema {schema} ({_shown(names)})"
        told = f"user {user!r} lacks {lacked} on {which}"
        mend = f"GRANT {lacked} ON ALL {kind}S IN SCHEMA {place} TO {role}"
        yield Finding(check, Level.PROBLEM, told, _UNUSABLE, mend)
    if not found:
        yield Finding(check, Level.OK, f"the user may use the tables and functions of schema {schema}")


def _of_transactions(database: Database, seconds: float) -> Iterator[Finding]:
    check, found = "postgres.transactions", database.run(_HOLDERS, {"seconds": seconds})
    for holder, state, age, mend in found:
        told = f"{holder} open for {age:.0f} s ({state})"
        why = "nothing that died since can be swept, and fetching slows down"
        yield Finding(check, Level.PROBLEM, told, why, f"end it: {mend}")
    if not found:
        yield Finding(check, Level.OK, f"this user sees no transaction open for more than {seconds:g} s")
