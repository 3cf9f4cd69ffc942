"""The schema: made on first use, migrated once however many are about to, and never by the wrong hands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_rig import Rig, together
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.values import NewBatch
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres import schema as migrate
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.schema import VERSION

STORED = Path(__file__).with_name("stored")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(new=True) as rig:
        yield rig


def versions(rig: Rig) -> list[int]:
    return [version for (version,) in rig.ask("SELECT version FROM {schema}.migrations ORDER BY version")]


def tables(rig: Rig) -> set[str]:
    return {name for (name,) in rig.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", rig.schema)}


@pytest.mark.parametrize("use", [PostgresBackend.prepare, lambda backend: backend.enqueue(a_job())])
def test_the_first_use_makes_the_schema_and_another_changes_nothing(
    rig: Rig, use: Callable[[PostgresBackend], object]
) -> None:
    backend = rig.open()
    use(backend)
    made = rig.ask("SELECT version, applied_at FROM {schema}.migrations ORDER BY version")
    assert [version for version, _ in made] == list(range(1, VERSION + 1))
    backend.prepare()
    rig.open().prepare()
    assert rig.ask("SELECT version, applied_at FROM {schema}.migrations ORDER BY version") == made


def test_schemas_of_one_database_have_nothing_in_common(rig: Rig) -> None:
    with Rig(new=True) as other:
        rig.open().enqueue(a_job(identifier="one"))
        other.open().enqueue_many([a_job(identifier="one"), a_job(identifier="two")])
        assert rig.open().stats(QUEUE).waiting == 1
        assert other.open().stats(QUEUE).waiting == 2


def test_letters_keep_their_case_in_a_name(rig: Rig) -> None:
    rig.schema += "_Jobs"
    backend = rig.open()
    [lease] = [backend.fetch(QUEUE)] if backend.enqueue(a_job()) else []
    assert lease is not None
    assert backend.ack(lease)
    assert tables(rig) >= {"messages", "migrations"}


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_threads_that_migrate_at_once_wait_for_each_other(rig: Rig, isolation: str) -> None:
    """Under a snapshot taken before the lock was had, the second would migrate again."""
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    databases = [rig.database(options=options) for _ in range(6)]
    together(6, lambda number: databases[number].prepare())
    assert versions(rig) == list(range(1, VERSION + 1))


def test_the_last_step_replaces_all_functions_by_those_of_today(rig: Rig) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    rig.ask("DELETE FROM {schema}.migrations WHERE version = %s", VERSION)
    newer = rig.open()
    [lease] = newer.fetch_many(QUEUE, limit=1)
    assert versions(rig) == list(range(1, VERSION + 1))
    assert backend.ack(lease)


OLD_BUILDS = {
    7: """
        DROP FUNCTION {schema}.find_batch(text);
        ALTER TABLE {schema}.batches DROP COLUMN stopped;
        CREATE FUNCTION {schema}.find_batch(ident text) RETURNS TABLE (id text) LANGUAGE sql AS 'SELECT ident'
    """,
    8: """
        DROP FUNCTION {schema}.forget_fetches(tid[], tid[]);
        CREATE FUNCTION {schema}.forget_fetches(known tid[], ending tid[]) RETURNS void LANGUAGE sql AS ''
    """,
}
"""What builds before a release had made otherwise, by their version."""


@pytest.mark.parametrize("version", OLD_BUILDS)
def test_a_build_before_the_release_is_migrated(rig: Rig, version: int) -> None:
    rig.open().prepare()
    rig.ask("DELETE FROM {schema}.migrations WHERE version > %s", version)
    rig.ask(OLD_BUILDS[version])
    newer = rig.open()
    newer.batches.open(NewBatch("one"))
    assert newer.find_batch("one") is not None
    assert versions(rig) == list(range(1, VERSION + 1))


def test_an_older_schema_is_migrated_with_what_is_missing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.open().enqueue(a_job())
    newer = (
        *migrate.MIGRATIONS,
        ("CREATE TABLE {schema}.extra (n int)", "ALTER TABLE {schema}.messages ADD COLUMN extra text DEFAULT '100 %'"),
        ("INSERT INTO {schema}.extra SELECT count(*) FROM {schema}.messages",),
    )
    monkeypatch.setattr(migrate, "MIGRATIONS", newer)
    monkeypatch.setattr(migrate, "VERSION", len(newer))
    rig.open().enqueue(a_job())
    assert versions(rig) == list(range(1, VERSION + 3))
    assert rig.ask("SELECT n FROM {schema}.extra") == [(1,)]


_SHAPE = {
    "columns": """
        SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name
        FROM information_schema.columns WHERE table_schema = %s
    """,
    "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = %s::regnamespace",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = %s",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = %s::regnamespace",
    "options": "SELECT relname, reloptions::text FROM pg_class WHERE relnamespace = %s::regnamespace",
}


_DROPPED = """
CREATE FUNCTION {schema}.settle(call text, ack_queues text[], ack_seqs bigint[], ack_holders bigint[], queues text[]
    DEFAULT '{}', seqs bigint[] DEFAULT '{}', holders bigint[] DEFAULT '{}', verbs text DEFAULT '', delays bigint[]
    DEFAULT '{}', reasons text[] DEFAULT '{}', errors text[] DEFAULT '{}') RETURNS text {left_out};
CREATE FUNCTION {schema}.settle_one(name text, number bigint, owner bigint, verb text, delay bigint, why text, error
    text, now bigint, give_up timestamptz) RETURNS text {left_out};
CREATE FUNCTION {schema}.look_through(names text[], kinds smallint[], due boolean, later boolean, wanted_handler text,
    wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean, share integer)
    RETURNS TABLE (seq bigint, id text, queue text) {left_out};
CREATE FUNCTION {schema}.look_up(ids text[], names text[], kinds smallint[], due boolean, later boolean, wanted_handler
    text, wanted_reason text, older bigint, newer bigint, behind bigint, most integer, bodies boolean)
    RETURNS TABLE (seq bigint, id text, queue text) {left_out};
"""
"""Functions of version 1 that a later one has dropped, as their parameters or results were others."""
_LEFT_OUT = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'its body was left out'; END $$"


def make_version_1(rig: Rig) -> None:
    rig.ask("CREATE SCHEMA {schema}")
    for sql in (migrate._VERSIONS, *migrate.MIGRATIONS[0], _DROPPED.replace("{left_out}", _LEFT_OUT)):
        rig.ask(sql)
    rig.ask("ALTER TABLE {schema}.messages DROP COLUMN first_until")
    rig.ask("INSERT INTO {schema}.migrations (version) VALUES (1)")


def make_version_5(rig: Rig) -> None:
    """Make the schema that is stored, and all functions that were in it."""
    rig.ask("CREATE SCHEMA {schema}")
    rig.ask((STORED / "postgres.sql").read_text("utf-8"))
    for name, parameters, result in json.loads((STORED / "postgres.functions.json").read_text("utf-8")):
        returned = "" if "OUT " in parameters else f"RETURNS {result}"
        body = "LANGUAGE plpgsql AS $$ BEGIN END $$" if result == "trigger" else _LEFT_OUT
        rig.ask(f'CREATE OR REPLACE FUNCTION {{schema}}."{name}"({parameters}) {returned} {body}')
    rig.ask("DROP TABLE {schema}.turned")


FORMER = {"fetch", "take_free", "take_fresh", "take_unknown", "take_start", "is_known", "mark_done"}
"""Functions of version 5 that a migration leaves: a call that has waited for it goes on in its own code."""


def shape(rig: Rig) -> dict[str, set[str]]:
    """All that there is in the schema, whatever it is called."""
    return {
        kind: {str(row).replace(rig.schema, "jobpool") for row in rig.ask(sql, rig.schema)}
        for kind, sql in _SHAPE.items()
    }


@pytest.mark.parametrize(("make", "former"), [(make_version_1, set()), (make_version_5, FORMER)], ids=["1", "5"])
def test_an_old_schema_becomes_what_a_new_one_is(rig: Rig, make: Callable[[Rig], None], former: set[str]) -> None:
    make(rig)
    file = "SELECT pg_relation_filenode('{schema}.messages'::regclass)"
    node = rig.ask(file)
    rig.open().prepare()
    assert rig.ask(file) == node, "the table was not rewritten"
    assert versions(rig) == list(range(1, VERSION + 1))
    found = shape(rig)
    with Rig(new=True) as new:
        new.open().prepare()
        expected = shape(new)
    left = found["functions"] - expected["functions"]
    assert {re.search(r"\.\W*(\w+)", text)[1] for text in left} == former  # type: ignore[index]
    found["functions"] -= left
    assert found == expected


_SENT_BY_VERSION_6 = """
SELECT * FROM {schema}.lease('reports', 9, 300000000, 'c1', 7);
SELECT {schema}.settle('c2', '{reports}', '{1}', '{7}', '{reports}', '{2}', '{7}', 'b', '{-1}', '{timeout}', '{NULL}',
    '{NULL}', '{NULL}', '{NULL}', '{NULL}');
SELECT * FROM {schema}.bring('{new}', '{true}', '{reports}', '{report}', '{5}', '{NULL}',
    ARRAY[convert_to('{"job":"report","payload":{},"queue":"reports"}', 'UTF8')], '{key}', '{0}', '{0}', '{0}',
    '{NULL}', '{NULL}', eager => true);
"""


def test_a_pool_of_version_6_that_is_connected_ends_members_of_batches(rig: Rig) -> None:
    """It knows nothing of them: its calls are those that it always sent."""
    backend = rig.open()
    done = backend.pack(a_job(queue="done"))
    backend.batches.open(NewBatch("batch", on_done=done))
    backend.enqueue_many([a_job(batch="batch"), a_job(batch="batch")])
    backend.batches.close("batch")
    rig.ask(_SENT_BY_VERSION_6)
    found = backend.batches.get("batch")
    assert found is not None
    assert (found.total, found.succeeded, found.failed, found.has_ended) == (2, 1, 1, True)
    assert backend.stats("done").waiting == 1
    assert backend.inspect("new") is not None


def test_an_answer_of_functions_that_changed_during_the_call_is_asked_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of a function may call parts that a migration has replaced meanwhile."""
    backend = rig.open()
    lease = new_lease(backend)
    monkeypatch.setattr(Database, "run", lambda *_, **__: [("{",)])
    with pytest.raises(BackendUnavailable, match="an answer that this version does not know: "):
        backend.ack(lease)
    monkeypatch.undo()
    assert backend.ack(lease)


def test_a_migration_that_fails_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.open().prepare()
    broken = (*migrate.MIGRATIONS, ("CREATE TABLE {schema}.extra (n int)",), ("SELECT 1 / 0",))
    monkeypatch.setattr(migrate, "MIGRATIONS", broken)
    monkeypatch.setattr(migrate, "VERSION", len(broken))
    with pytest.raises(Exception, match="division by zero"):
        rig.database().prepare()
    assert versions(rig) == list(range(1, VERSION + 1))
    assert "extra" not in tables(rig)


def test_a_migration_does_not_stop_everybody_for_somebodys_long_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    rig.ask("DELETE FROM {schema}.migrations WHERE version > 7")
    dump = rig.connect()
    dump.execute(f'LOCK TABLE "{rig.schema}".messages IN ACCESS SHARE MODE')
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_S", 1)
    with pytest.raises(BackendUnavailable, match="could not lock a row or table in time: look for long transactions"):
        rig.database().prepare()
    assert backend.fetch(QUEUE) is not None
    dump.rollback()
    rig.database().prepare()
    assert versions(rig) == list(range(1, VERSION + 1))


def test_a_newer_schema_is_refused_and_both_versions_named(rig: Rig) -> None:
    rig.open().prepare()
    rig.ask("INSERT INTO {schema}.migrations (version) VALUES (99)")
    for use in (lambda: rig.database().run("SELECT 1"), lambda: rig.database().prepare()):
        with pytest.raises(ConfigurationError, match=rf"has version 99, and this jobpool knows {VERSION}: install"):
            use()


def test_tables_of_another_program_are_left_alone(rig: Rig) -> None:
    rig.ask("CREATE SCHEMA {schema}")
    rig.ask("CREATE TABLE {schema}.messages (text text)")
    with pytest.raises(ConfigurationError, match=r"holds tables of another program .*: name another in the URL"):
        rig.database().prepare()
    assert tables(rig) == {"messages"}


def test_who_may_not_create_it_is_told_what_to_run(rig: Rig, role: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rig.database(base=rig.base(role)).prepare()
    mend = f'CREATE SCHEMA "{rig.schema}" AUTHORIZATION "{role}"'
    assert f"user {role!r} may not create schema {rig.schema!r}" in str(caught.value)
    assert str(caught.value).endswith(f"let an administrator run {mend}")
    rig.ask(mend)
    backend = rig.open(base=rig.base(role))
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 1


def test_who_may_not_use_it_is_told_what_to_grant(rig: Rig, role: str) -> None:
    rig.open().prepare()
    with pytest.raises(ConfigurationError, match=f'GRANT USAGE ON SCHEMA "{rig.schema}", and SELECT, INSERT'):
        rig.database(base=rig.base(role)).prepare()
    for what in (
        "USAGE ON SCHEMA {schema}",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}",
        "EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}",
    ):
        rig.ask(f'GRANT {what} TO "{role}"')
    backend = rig.open(base=rig.base(role))
    lease = new_lease(backend)
    assert backend.ack(lease)


def test_who_may_not_migrate_it_is_told_who_may(rig: Rig, role: str) -> None:
    rig.open().prepare()
    rig.ask("DELETE FROM {schema}.migrations WHERE version > 1")
    for what in ("USAGE ON SCHEMA {schema}", "SELECT ON ALL TABLES IN SCHEMA {schema}"):
        rig.ask(f'GRANT {what} TO "{role}"')
    told = rf"is at version 1, and this jobpool needs {VERSION} \(.*\): run `jobpool init --broker-only` as its owner"
    with pytest.raises(ConfigurationError, match=told):
        rig.database(base=rig.base(role)).prepare()


def test_a_schema_that_was_dropped_in_use_is_named(rig: Rig) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    rig.ask("DROP SCHEMA {schema} CASCADE")
    with pytest.raises(ConfigurationError, match=f"of schema {rig.schema!r}|has no schema {rig.schema!r}"):
        backend.enqueue(a_job())
    backend.prepare()
    backend.enqueue(a_job())
