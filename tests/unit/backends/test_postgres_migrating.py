"""The schema: made on first use, migrated once however many are about to, and never by the wrong hands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from at_once import at_once
from postgres_rig import Rig, together
from support.claims import a_post, claim, found, ids
from support.jobs import QUEUE, a_job, new_lease

from jobpool.broker.claim_store import Deleted
from jobpool.broker.values import MessageFilter, NewBatch, State, Verb
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool.message.guards import Guards
from jobpool.message.lease import JobLease
from jobpool.message.settlement import Settled
from jobpool_backends.postgres import PostgresBackend
from jobpool_backends.postgres import schema as migrate
from jobpool_backends.postgres.database import Database
from jobpool_backends.postgres.schema import VERSION


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(new=True) as rig:
        yield rig


@pytest.fixture
def role(rig: Rig) -> Iterator[str]:
    """A user who may do nothing yet."""
    name = f"{rig.schema}_user"
    rig.ask(f"CREATE ROLE {name} LOGIN")
    yield name
    rig.close()
    rig.ask(f"DROP OWNED BY {name}")
    rig.ask(f"DROP ROLE {name}")


def base(rig: Rig, user: str) -> str:
    return f"postgresql://{user}@{rig.server.host}:{rig.server.port}/postgres"


def versions(rig: Rig) -> list[int]:
    return [version for (version,) in rig.ask("SELECT version FROM {schema}.migrations ORDER BY version")]


def tables(rig: Rig) -> set[str]:
    return {name for (name,) in rig.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", rig.schema)}


def test_the_first_use_makes_the_schema(rig: Rig) -> None:
    rig.open().enqueue(a_job())
    assert versions(rig) == list(range(1, VERSION + 1))
    assert rig.open().stats(QUEUE).waiting == 1


def test_to_prepare_makes_it_too_and_again_changes_nothing(rig: Rig) -> None:
    backend = rig.open()
    backend.prepare()
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


OPEN_AT_ONCE = """
import sys
from jobpool.message.definition import JobDefinition
from jobpool_backends.postgres import PostgresBackend
print("ready", flush=True)
sys.stdin.readline()
backend = PostgresBackend.from_url(sys.argv[1])
backend.enqueue(JobDefinition("report", queue="reports"))
backend.close()
"""


def test_four_processes_make_one_schema(rig: Rig) -> None:
    command = [sys.executable, "-c", OPEN_AT_ONCE, rig.url({"timeout": 30, "connect_timeout": 30})]
    assert at_once(command, 4) == [""] * 4
    assert versions(rig) == list(range(1, VERSION + 1))
    assert rig.open().stats(QUEUE).waiting == 4


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


def test_a_version_7_of_a_build_before_the_release_is_migrated(rig: Rig) -> None:
    rig.open().prepare()
    rig.ask("DELETE FROM {schema}.migrations WHERE version > 7")
    rig.ask("DROP FUNCTION {schema}.find_batch(text)")
    rig.ask("ALTER TABLE {schema}.batches DROP COLUMN stopped")
    rig.ask("CREATE FUNCTION {schema}.find_batch(ident text) RETURNS TABLE (id text) LANGUAGE sql AS 'SELECT ident'")
    newer = rig.open()
    newer.batches.open(NewBatch("one"))
    assert newer.find_batch("one") is not None


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


_LEFT_BEHIND = """
INSERT INTO {schema}.messages (enqueued_at, available_at, priority, state, given, fresh, id, queue, handler, body)
    SELECT now, now, 5, 0, true, true, name, 'reports', 'report',
        convert_to('{"job":"report","payload":{},"queue":"reports"}', 'UTF8')
    FROM unnest('{leased, failed, waits, last}'::text[]) AS name,
        cast(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) AS now;
UPDATE {schema}.messages SET state = 2, fresh = false, deliveries = 1, holder = 7, ttl = 300000000,
    deadline = enqueued_at + 300000000 WHERE id = 'leased';
UPDATE {schema}.messages SET state = 3, fresh = false, deliveries = 1, died_at = enqueued_at, reason = 'timeout',
    last_error = 'too late' WHERE id = 'failed';
INSERT INTO {schema}.heads (queue, priority) VALUES ('reports', 5);
INSERT INTO {schema}.calls SELECT 'fetch:reports:c1', enqueued_at + 60000000, '7' FROM {schema}.messages LIMIT 1;
"""
"""What the calls of versions 1 and 2 wrote that are below."""
_USED_BY_VERSION_6 = """
SELECT {schema}.enqueue_one(name, true, 'reports', 'report', 5::smallint, NULL,
    convert_to('{"job":"report","payload":{},"queue":"reports"}', 'UTF8'))
FROM unnest('{leased, failed, waits}'::text[]) AS name;
SELECT * FROM {schema}.lease('reports', 2, 300000000, 'c1', 7);
SELECT {schema}.settle('c2', '{}', '{}', '{}', '{reports}', '{2}', '{7}', 'b', '{-1}', '{timeout}', '{too late}');
"""
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


LEFT_OUT = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'its body was left out'; END $$"


def make_version(rig: Rig, version: int) -> None:
    """Make the schema as that version left it; each file says what its version did to the one before."""
    for number in range(1, version + 1):
        text = Path(__file__).with_name(f"postgres_version_{number}.sql").read_text("utf-8")
        rig.ask(text.replace("{left_out}", LEFT_OUT))


FORMER = (
    '"fetch"(name text, most integer, length bigint, call text, new_holder bigint)',
    "take_fresh(name text, most integer, may_step boolean)",
    "take_unknown(name text, below smallint, above smallint, most integer)",
)
FORMER_OF_VERSION_2 = (
    "take_start(scope text, rate text, most integer, length bigint, start text)",
    "is_known(ident text, is_given boolean, now bigint)",
    "mark_done(scope text, done_key text, known_until bigint)",
)
"""Functions that a migration leaves: a call of an older program that has waited for it goes on in its own code."""


def shape(rig: Rig) -> dict[str, set[str]]:
    """All that there is in the schema, whatever it is called, but for former functions."""
    found = {
        kind: {str(row).replace(rig.schema, "jobpool") for row in rig.ask(sql, rig.schema)}
        for kind, sql in _SHAPE.items()
    }
    found["functions"] = {
        text for text in found["functions"] if not any(former in text for former in (*FORMER, *FORMER_OF_VERSION_2))
    }
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_schema_becomes_what_a_new_one_is(rig: Rig, version: int) -> None:
    make_version(rig, version)
    rig.ask(_LEFT_BEHIND)
    before = shape(rig)
    file = "SELECT pg_relation_filenode('{schema}.messages'::regclass)"
    node = rig.ask(file)
    rig.open().prepare()
    assert rig.ask(file) == node, "the table was not rewritten"
    assert versions(rig) == list(range(1, VERSION + 1))
    with Rig(new=True) as new:
        new.open().prepare()
        assert shape(rig) == shape(new) != before
    functions = str(rig.ask(_SHAPE["functions"], rig.schema))
    assert all(former in functions for former in FORMER)


def test_what_version_1_left_behind_goes_on(rig: Rig) -> None:
    make_version(rig, 1)
    rig.ask(_LEFT_BEHIND)
    backend = rig.open()
    assert [message.id for message in backend.list_messages()] == ["leased", "failed", "waits", "last"]
    [held] = repeated_fetch(rig, backend)
    guards = Guards(key="order-17")
    assert backend.keys.begin_many([(held, guards)])[0]
    assert backend.ack(held.guarded(guards)) is Settled.OK
    assert not backend.keys.first_run("reports", "order-17")
    assert backend.bulk(MessageFilter(), Verb.RESUME) == 1
    resumed = backend.inspect("failed")
    assert resumed is not None
    assert resumed.last_error == "too late"
    known = backend.enqueue(a_job(unique=True, idempotency_key="order-18"))
    assert backend.enqueue(a_job(unique=True, idempotency_key="order-18")) == known
    assert backend.stats("reports").waiting == 4


_BACK_TO_VERSION_6 = (
    "DROP TABLE {schema}.batches CASCADE",
    "ALTER TABLE {schema}.messages DROP COLUMN batch",
    "DELETE FROM {schema}.migrations WHERE version > 6",
)
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


def test_jobs_of_version_6_are_members_of_nothing(rig: Rig) -> None:
    rig.open().prepare()
    rig.ask(_USED_BY_VERSION_6)
    for statement in _BACK_TO_VERSION_6:
        rig.ask(statement)
    backend = rig.open()
    assert backend.list_messages(MessageFilter(queue=QUEUE))
    backend.batches.open(NewBatch("batch"))
    backend.enqueue(a_job(batch="batch"))
    assert len(backend.batches.members("batch", 5)) == 1
    assert backend.bulk(MessageFilter(queue=QUEUE), Verb.DELETE) == 3
    found = backend.batches.get("batch")
    assert found is not None
    assert (found.total, found.cancelled) == (1, 1)


def test_a_migration_that_fails_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.open().prepare()
    broken = (*migrate.MIGRATIONS, ("CREATE TABLE {schema}.extra (n int)",), ("SELECT 1 / 0",))
    monkeypatch.setattr(migrate, "MIGRATIONS", broken)
    monkeypatch.setattr(migrate, "VERSION", len(broken))
    with pytest.raises(Exception, match="division by zero"):
        rig.database().prepare()
    assert versions(rig) == list(range(1, VERSION + 1))
    assert "extra" not in tables(rig)


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
        rig.database(base=base(rig, role)).prepare()
    mend = f'CREATE SCHEMA "{rig.schema}" AUTHORIZATION "{role}"'
    assert f"user {role!r} may not create schema {rig.schema!r}" in str(caught.value)
    assert str(caught.value).endswith(f"let an administrator run {mend}")
    rig.ask(mend)
    backend = rig.open(base=base(rig, role))
    backend.enqueue(a_job())
    assert backend.stats(QUEUE).waiting == 1


def test_who_may_not_use_it_is_told_what_to_grant(rig: Rig, role: str) -> None:
    rig.open().prepare()
    with pytest.raises(ConfigurationError, match=f'GRANT USAGE ON SCHEMA "{rig.schema}", and SELECT, INSERT'):
        rig.database(base=base(rig, role)).prepare()
    for what in (
        "USAGE ON SCHEMA {schema}",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}",
        "EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}",
    ):
        rig.ask(f"GRANT {what} TO {role}")
    backend = rig.open(base=base(rig, role))
    lease = new_lease(backend)
    assert backend.ack(lease)


def test_who_may_not_migrate_it_is_told_who_may(rig: Rig, role: str) -> None:
    make_version(rig, 1)
    for what in ("USAGE ON SCHEMA {schema}", "SELECT ON ALL TABLES IN SCHEMA {schema}"):
        rig.ask(f"GRANT {what} TO {role}")
    told = rf"is at version 1, and this jobpool needs {VERSION} \(.*\): run `jobpool init --broker-only` as its owner"
    with pytest.raises(ConfigurationError, match=told):
        rig.database(base=base(rig, role)).prepare()


def test_a_schema_that_was_dropped_in_use_is_named(rig: Rig) -> None:
    backend = rig.open()
    backend.enqueue(a_job())
    rig.ask("DROP SCHEMA {schema} CASCADE")
    with pytest.raises(ConfigurationError, match=f"of schema {rig.schema!r}|has no schema {rig.schema!r}"):
        backend.enqueue(a_job())
    backend.prepare()
    backend.enqueue(a_job())


_CALLS_OF_VERSION_2 = {
    "SELECT * FROM {schema}.stats('reports', 10000)": 6,
    "SELECT seq, id, state, place FROM {schema}.look_through("
    "NULL, '{0,1,2,3}', false, false, NULL, NULL, NULL, NULL, 0, 20, false, 20)": 4,
    "SELECT * FROM {schema}.reap('reports', 5, 1, 0, 0, NULL, 1000)": 4,
}
"""What a connected pool of that version asks, and how many columns it takes."""


@pytest.fixture
def old(rig: Rig) -> Rig:
    """A schema of version 2, as it was used."""
    make_version(rig, 2)
    rig.ask(_LEFT_BEHIND)
    return rig


def repeated_fetch(rig: Rig, backend: PostgresBackend) -> list[JobLease]:
    """What the fetch of an old version answered, asked for again."""
    rows = rig.ask("SELECT * FROM {schema}.lease('reports', 2, 300000000, 'c1', 8)")
    return backend._leases._leased("reports", rows, backend.clock.boot())


def test_what_was_there_can_be_claimed_and_goes_on(old: Rig) -> None:
    backend = old.open()
    assert [message.id for message in backend.list_messages()] == ["leased", "failed", "waits", "last"]
    [lease] = repeated_fetch(old, backend)
    backend.claims.post("reports", [a_post(ident="posted", life=60.0)])
    held = claim(backend)
    assert ids(held.messages) == ["waits", "last", "posted"]
    assert [message.claims for message in held.messages] == [1, 1, 1]
    assert backend.claims.delete_many("reports", ["waits", "leased"], held.id) == [Deleted.DONE, Deleted.FORBIDDEN]
    assert backend.claims.release("reports", held.id) == 2
    assert backend.ack(lease) is Settled.OK
    assert backend.bulk(MessageFilter(), Verb.RESUME) == 1
    assert (found(backend, "failed").state, found(backend, "failed").last_error) == (State.WAITING, "too late")
    assert ids(backend.fetch_many("reports", limit=5)) == ["failed", "last"]
    assert backend.stats("reports").posted == 1


def test_a_pool_of_version_2_that_is_connected_goes_on_beside_posts_and_claims(old: Rig) -> None:
    backend = old.open()
    backend.claims.post("reports", [a_post(), a_post()])
    claim(backend, 2)
    for sql, columns in _CALLS_OF_VERSION_2.items():
        assert {len(row) for row in old.ask(sql)} <= {columns}, sql
    assert old.ask("SELECT {schema}.settle('c3', '{reports}', '{1}', '{7}')") == [("o",)]
    assert old.ask("SELECT id FROM {schema}.lease('reports', 5, 300000000, 'c4', 9)") == []
