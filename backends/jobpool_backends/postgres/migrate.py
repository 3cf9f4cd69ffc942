"""How an older schema becomes a current one: each of `schema.MIGRATIONS` once, all in one transaction under a lock.

A table of the schema holds the versions that it has been through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import psycopg

from jobpool.errors import ConfigurationError
from jobpool_backends.postgres.connection import Connection
from jobpool_backends.postgres.schema import MIGRATIONS, fill, quoted

VERSION = len(MIGRATIONS)

MIGRATION_TIMEOUT_S = 300.0
"""Seconds for a statement of a migration, or for another process that migrates: tables may be large."""

_VERSIONS = """
CREATE TABLE {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_READ = "SELECT coalesce(max(version), 0) FROM {schema}.migrations"
_NOTE = "INSERT INTO {schema}.migrations (version) VALUES ({version})"


def check_current(connection: Connection, schema: str) -> None:
    """Make sure that the schema is that of this code, and migrate it if it is older or not there.

    Raises `ConfigurationError`: it is newer, or another program's, or this user may not create it; or `psycopg.Error`.
    Blocks for one round trip when it is current; else up to `MIGRATION_TIMEOUT_S` for each step.
    """
    if _read_version(connection, schema) == VERSION:
        return
    usual = connection.answer_timeout
    connection.answer_timeout = MIGRATION_TIMEOUT_S
    try:
        _migrate(connection, schema)
    finally:
        connection.answer_timeout = usual


def _read_version(connection: Connection, schema: str) -> int:
    """Return the schema's version, 0 when it is not there."""
    try:
        version: int = _ask(connection, fill(_READ, schema))[0][0]
    except psycopg.errors.UndefinedTable:
        return 0
    if version > VERSION:
        raise ConfigurationError(
            f"schema {schema!r} has version {version}, and this jobpool knows {VERSION}: install the newer jobpool that"
            " migrated it, or name another schema in the URL"
        )
    return version


def _migrate(connection: Connection, schema: str) -> None:
    try:
        with connection.transaction():
            # One process at a time migrates, and sees what the one before has done. No other program of the database
            # may use the lock's number.
            digest = hashlib.sha256(f"jobpool schema {schema}".encode()).digest()
            _ask(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            _ask(connection, "SET LOCAL statement_timeout = 0")
            _ask(connection, "SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(digest[:8], "big", signed=True)])
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
        raise ConfigurationError(
            f"user {user!r} may not create or migrate schema {schema!r} ({_first_line(error)}): run `jobpool init` as"
            f' one who may, or let an administrator run CREATE SCHEMA {quoted(schema)} AUTHORIZATION "{user}"'
        ) from error


def _version_under_lock(connection: Connection, schema: str) -> int:
    """Return the version, locked against changes; create the schema if it is missing.

    CREATE SCHEMA IF NOT EXISTS would want rights on the database even if an administrator has created it.
    """
    if not _ask(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]):
        _ask(connection, f"CREATE SCHEMA {quoted(schema)}")
    there = _ask(connection, "SELECT to_regclass(%s) IS NOT NULL", [f"{quoted(schema)}.migrations"])[0][0]
    return _read_version(connection, schema) if there else 0


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0]


def _ask(connection: Connection, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql, parameters, prepare=False)
    return cursor.fetchall() if cursor.description else []
