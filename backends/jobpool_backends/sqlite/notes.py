"""Records that end by themselves, and logs of the newest lines; within a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

MAX_LISTED_LOGS = 10_000
"""Names in one list of logs."""

_PUT = """
INSERT INTO records (space, key, until, value) VALUES (?, ?, ?, ?)
ON CONFLICT (space, key) DO UPDATE SET until = excluded.until, value = excluded.value
"""
_GET = "SELECT value FROM records WHERE space = ? AND key = ? AND until > ?"
_LAST_CHARACTER = "\U0010ffff"
"""Behind every character that a key can have."""
_LIST = """
SELECT key, value FROM records INDEXED BY records_by_key
WHERE space = :space AND key > :after AND key < :end AND until > :now ORDER BY key LIMIT :limit
"""
_LIST_FROM = _LIST.replace("key > :after", "key >= :after")
_DELETE = "DELETE FROM records WHERE space = ? AND key IN (SELECT value FROM json_each(?))"
_LAST = "(SELECT max(place) FROM logs WHERE space = :space AND name = :name)"
_APPEND = f"INSERT INTO logs (space, name, place, line) VALUES (:space, :name, coalesce({_LAST}, 0) + 1, :line)"
_TRIM = f"DELETE FROM logs WHERE space = :space AND name = :name AND place <= {_LAST} - :keep"
_READ = "SELECT line FROM logs WHERE space = ? AND name = ? ORDER BY place DESC LIMIT ?"
# One search a name, however many lines it has.
_LOGS = f"""
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM logs WHERE space = :space
    UNION ALL
    SELECT (SELECT min(name) FROM logs WHERE space = :space AND name > names.name)
    FROM names WHERE names.name IS NOT NULL LIMIT {MAX_LISTED_LOGS + 1}
)
SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_LISTED_LOGS}
"""


def put(connection: sqlite3.Connection, space: str, records: Mapping[str, bytes], until: int) -> None:
    connection.executemany(_PUT, [(space, key, until, value) for key, value in records.items()])


def get(connection: sqlite3.Connection, space: str, key: str, now: int) -> bytes | None:
    row = connection.execute(_GET, (space, key, now)).fetchone()
    return row[0] if row else None


def page(
    connection: sqlite3.Connection, space: str, prefix: str, after: str, limit: int, now: int
) -> list[tuple[str, bytes]]:
    """Return records in the order of their keys: those with the prefix, after `after`."""
    sql, first = (_LIST, after) if after >= prefix else (_LIST_FROM, prefix)
    asked = {"space": space, "after": first, "end": prefix + _LAST_CHARACTER, "now": now, "limit": limit}
    return connection.execute(sql, asked).fetchall()


def delete(connection: sqlite3.Connection, space: str, keys: Sequence[str]) -> None:
    connection.execute(_DELETE, (space, json.dumps(keys)))


def append(connection: sqlite3.Connection, space: str, lines: Iterable[tuple[str, bytes]], keep: int) -> None:
    rows = [{"space": space, "name": name, "line": line} for name, line in lines]
    connection.executemany(_APPEND, rows)
    names = dict.fromkeys(row["name"] for row in rows)
    connection.executemany(_TRIM, [{"space": space, "name": name, "keep": keep} for name in names])


def read(connection: sqlite3.Connection, space: str, name: str, limit: int) -> list[bytes]:
    return [line for (line,) in connection.execute(_READ, (space, name, limit))]


def logs(connection: sqlite3.Connection, space: str) -> list[str]:
    return [name for (name,) in connection.execute(_LOGS, {"space": space})]
