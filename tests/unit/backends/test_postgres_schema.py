"""The schema: what its docstring tells is what is there, and what the rest stands on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_rig import Rig
from psycopg import errors

from jobpool_backends.postgres import inspect, schema

_COLUMNS = """
SELECT table_name, column_name, data_type FROM information_schema.columns
WHERE table_schema = %s AND table_name <> 'migrations'
"""
_FUNCTIONS = "SELECT proname, coalesce(proconfig::text, '') FROM pg_proc WHERE pronamespace = %s::regnamespace"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.open().prepare()
        yield rig


@pytest.fixture(scope="module")
def told() -> str:
    assert schema.__doc__
    return schema.__doc__


def test_the_docstring_tells_of_the_columns_and_states_of_messages_and_of_every_index(rig: Rig, told: str) -> None:
    columns = {name for table, name, _ in rig.ask(_COLUMNS, rig.schema) if table == "messages"}
    section = told.partition("`messages`: ")[2].partition("Its indexes")[0]
    assert not [name for name in columns if not re.search(rf"\b{name}\b", section)]
    sql = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = 'messages'"
    indexes: dict[str, str] = dict(rig.ask(sql, rig.schema))
    listed = dict(re.findall(r"^    (messages_\w+)\s+\((.*?)\)", told, flags=re.MULTILINE))
    assert listed == {name: re.search(r"USING btree \((.*?)\)", sql)[1] for name, sql in indexes.items()}  # type: ignore[index]
    numbers = (schema.WAITING, schema.DELAYED, schema.LEASED, schema.DEAD)
    assert "{} waiting, {} delayed, {} leased, {} dead".format(*numbers) in told


def test_every_function_that_the_package_calls_has_the_settings_that_keep_its_plans(rig: Rig) -> None:
    """But for those that have nothing to plan; a function without them runs under the settings of its caller."""
    functions: dict[str, Any] = dict(rig.ask(_FUNCTIONS, rig.schema))
    source = "".join(module.read_text() for module in Path(schema.__file__).parent.glob("*.py"))
    called = {*inspect._CHANGES.values(), *re.findall(r"(?<!IF EXISTS )\{schema\}+\.([a-z_]+)\(", source)}
    called |= set(re.findall(r'(?:call|value|calling)\(\s*"(\w+)"', source))
    assert {"take_leases", "settle", "take_starts", "evict", "delete_messages"} < called <= set(functions)
    settled = {name for name, settings in functions.items() if "force_generic_plan" in settings}
    assert settled - {"ring", "end_batch"} == called - {"moment", "begin_enqueue"}  # a commit calls the latter
    for name in settled:
        assert "enable_seqscan=off" in functions[name]
        assert "jit=off" in functions[name]


def test_nothing_is_left_to_fill_in_but_the_schema(rig: Rig) -> None:
    del rig
    left = {word for statements in schema.MIGRATIONS for sql in statements for word in re.findall(r"\{[a-z_]+\}", sql)}
    assert left == {"{schema}"}


def test_functions_that_have_changed_come_with_a_version() -> None:
    """A schema at the last version keeps the functions that it has: count one more `()` before the last migration.

    Unless that was done since the last release. In any case write both here.
    """
    code = re.sub(r"--.*", "", "".join(schema.MIGRATIONS[-1]))
    digest = hashlib.sha256("".join(code.split()).encode()).hexdigest()
    assert (schema.VERSION, digest[:16]) == (13, "4234ed3a61930642")


def test_sequence_numbers_are_drawn_one_by_one(rig: Rig) -> None:
    """A session that drew some ahead would put what it enqueues later before what others enqueued meanwhile."""
    sql = "SELECT cache_size, cycle FROM pg_sequences WHERE schemaname = %s"
    assert rig.ask(sql, rig.schema) == [(1, False)]


def test_a_message_has_a_lease_when_it_is_leased_and_a_death_when_it_is_dead(rig: Rig) -> None:
    backend = rig.open()
    backend._database.run(
        f'SELECT "{rig.schema}".enqueue_one(%b, %b, %b, %b, %b::smallint, NULL, %b)', ("id", False, "q", "h", 5, b"{}")
    )
    for state in (2, 3):
        with pytest.raises(errors.CheckViolation):
            rig.ask("UPDATE {schema}.messages SET state = %s", state)


def test_every_table_is_swept_early_and_never_cut_under_a_lock_that_stops_all(rig: Rig) -> None:
    sql = "SELECT relname, reloptions::text FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    options: dict[str, Any] = dict(rig.ask(sql, rig.schema))
    assert all("vacuum_truncate=off" in options[name] for name in options if name != "migrations")
    for name in ("messages", "calls", "ended"):
        assert "autovacuum_vacuum_scale_factor=0.02" in options[name]
