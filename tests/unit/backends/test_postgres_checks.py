"""What the server's settings can lose is told in plain sentences; nothing is told of good ones."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from postgres_rig import Rig
from support.servers import PostgresServer
from support.servers.postgres_server import DURABLE
from support.servers.process import as_user
from support.waiting import wait_until

from jobpool.broker.finding import Finding, Level, cautions_of
from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.postgres.checks import diagnose
from jobpool_backends.postgres.connection import read_address
from jobpool_backends.postgres.database import Database


def cautions(database: Database) -> list[str]:
    """The sentences of what is bad; each has its mend."""
    found = diagnose(database)
    assert all(finding.mend for finding in found if finding.is_bad)
    return cautions_of(found)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One with the settings that a server has in earnest."""
    with PostgresServer(tmp_path_factory.mktemp("checked") / "postgres", config=DURABLE) as server:
        yield server


@pytest.fixture
def rig(server: PostgresServer, stack: ExitStack) -> Rig:
    return stack.enter_context(Rig(server))


def test_a_setting_of_the_user_is_told(rig: Rig) -> None:
    rig.database().prepare()
    for setting, value, level, told in [
        ("synchronous_commit", "off", Level.PROBLEM, "a crash of the server forgets what it answered in its last"),
        ("synchronous_commit", "local", Level.PROBLEM, "a failover forgets what the standby had not received yet"),
        ("array_nulls", "off", Level.PROBLEM, "cannot settle what it runs"),
        ("default_transaction_isolation", "serializable", Level.WARNING, "collide and are tried again"),
        ("default_transaction_isolation", r"repeatable\ read", Level.WARNING, "collide and are tried again"),
        ("default_transaction_read_only", "on", Level.PROBLEM, "nothing can be enqueued or fetched"),
    ]:
        database = rig.database(options=f"-c {setting}={value}")
        [caution] = cautions(database)
        assert caution.startswith(f"{setting} is ")
        assert told in caution
        assert "; set it to" in caution
        [bad] = [found for found in diagnose(database) if found.is_bad]
        assert bad.level is level, setting


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("fsync", "can destroy the whole database"),
        ("full_page_writes", "can damage tables"),
        ("autovacuum", "dead rows pile up"),
        ("track_counts", "autovacuum does nothing without it"),
    ],
)
def test_a_setting_of_the_server_is_told(rig: Rig, setting: str, told: str) -> None:
    database = rig.database()
    assert cautions(database) == []
    rig.ask(f"ALTER SYSTEM SET {setting} = off")
    try:
        rig.server.restart()
        [caution] = cautions(database)
    finally:
        rig.ask(f"ALTER SYSTEM RESET {setting}")
        rig.server.restart()
    assert caution.startswith(f"{setting} is 'off': ")
    assert told in caution


def long_ones(database: Database) -> list[Finding]:
    """What is bad, where a transaction is long after 0.2 seconds."""
    return [found for found in diagnose(database, long_transaction=0.2) if found.is_bad]


def test_a_transaction_that_is_open_for_long_is_told_with_who_holds_it(rig: Rig) -> None:
    database = rig.database()
    holder = rig.connect()
    holder.execute("SELECT 1")
    assert cautions(database) == []
    [finding] = wait_until(lambda: long_ones(database), what="it is told")
    assert finding.level is Level.PROBLEM
    pid = holder.info.backend_pid
    assert str(finding).startswith(f"session {pid} of user postgres has had a transaction open for ")
    assert "(idle in transaction): nothing that died since can be swept" in str(finding)
    rig.ask(f"SELECT pg_terminate_backend({pid})")
    wait_until(lambda: not long_ones(database), what="it is gone")


def test_a_prepared_transaction_that_nobody_ended_is_told(tmp_path: Path) -> None:
    config = {**DURABLE, "max_prepared_transactions": "2"}
    with PostgresServer(tmp_path / "prepares", config=config) as server, Rig(server) as rig:
        holder, database = rig.connect(autocommit=False), rig.database()
        holder.tpc_begin("two' phases")
        holder.execute("CREATE TABLE of_the_app (number integer)")
        holder.tpc_prepare()
        holder.close()
        [finding] = wait_until(lambda: long_ones(database), what="it is told")
        assert finding.found.startswith("user postgres has had transaction 'two'' phases' open for ")
        assert "ROLLBACK PREPARED 'two'' phases'" in finding.mend
        assert cautions(database) == []


def test_row_level_security_is_told_to_a_user_whose_rows_it_hides(rig: Rig, role: str) -> None:
    rig.open().prepare()
    rig.ask(f'GRANT USAGE ON SCHEMA {{schema}} TO "{role}"')
    rig.ask(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO "{role}"')
    database = rig.database(base=rig.base(role))
    assert cautions(database) == []
    for table in ("messages", "sleepers"):
        rig.ask(f"ALTER TABLE {{schema}}.{table} ENABLE ROW LEVEL SECURITY")
    [told] = cautions(database)
    assert told.startswith(f"row level security may hide rows of {rig.schema}.messages, {rig.schema}.sleepers from")
    assert cautions(rig.database()) == [], "the owner sees all"
    rig.ask("ALTER TABLE {schema}.migrations ENABLE ROW LEVEL SECURITY")
    with pytest.raises(ConfigurationError, match="shows this user no row: turn off row level security"):
        rig.database(base=rig.base(role)).prepare()


def test_a_check_has_a_line_when_all_is_well(rig: Rig) -> None:
    database = rig.database()
    database.prepare()
    levels = {finding.check: finding.level for finding in diagnose(database)}
    assert set(levels.values()) == {Level.OK}
    wanted = {"synchronous_commit", "fsync", "autovacuum", "tables", "transactions", "pooler"}
    assert {f"postgres.{name}" for name in wanted} <= set(levels)


def test_the_clock_of_the_server(rig: Rig) -> None:
    moment = rig.open().broker_time()
    assert moment is not None
    assert abs(moment - time.time()) < 5.0


def test_a_table_that_is_not_swept_or_does_not_last_is_told_with_the_mend(rig: Rig) -> None:
    database = rig.database()
    database.prepare()
    for mistake, mend in (
        ("SET (autovacuum_enabled = false)", "RESET (autovacuum_enabled)"),
        ("SET UNLOGGED", "SET LOGGED"),
    ):
        rig.ask(f"ALTER TABLE {rig.schema}.messages {mistake}")
        [caution] = cautions(database)
        assert caution.endswith(f"ALTER TABLE {rig.schema}.messages {mend}")
        rig.ask(f"ALTER TABLE {rig.schema}.messages {mend}")
        assert cautions(database) == []


def test_a_large_table_that_was_never_analysed_is_told(rig: Rig) -> None:
    database = rig.database()
    database.prepare()
    rig.ask("CREATE TABLE {schema}.extra (text text) WITH (autovacuum_enabled)")
    rig.ask("INSERT INTO {schema}.extra SELECT repeat(md5(n::text), 30) FROM generate_series(1, 20000) n")
    [caution] = cautions(database)
    assert caution.endswith(f"; run ANALYZE {rig.schema}.extra")
    rig.ask("ANALYZE {schema}.extra")
    assert cautions(database) == []


class Standby(PostgresServer):
    """A copy of another server, which follows it."""

    def __init__(self, folder: Path, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__(folder)

    def _initialise(self, config: dict[str, str]) -> None:
        del config
        if self._user:
            shutil.chown(self.data.parent, self._user, self._user)
        copy = [
            "pg_basebackup",
            "-R",
            "--checkpoint=fast",
            "--no-sync",
            "-D",
            str(self.data),
            "-d",
            self._primary.url(),
        ]
        subprocess.run(as_user(copy, self._user), check=True, capture_output=True, cwd="/")


@pytest.fixture
def standby(server: PostgresServer, stack: ExitStack, tmp_path: Path) -> PostgresServer:
    return stack.enter_context(Standby(tmp_path / "standby", server))


def test_standbys_that_all_wait_for_and_that_are_not_there_are_told(rig: Rig) -> None:
    database = rig.database()
    assert cautions(database) == []
    try:
        rig.ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        rig.ask("SELECT pg_reload_conf()")
        wait_until(lambda: cautions(database), what="the server waits for a standby")
        [caution] = cautions(database)
        assert caution.startswith("synchronous_standby_names names standbys, and none is connected: each commit waits")
        [settled] = cautions(rig.database(options="-c synchronous_commit=local"))
        assert settled.startswith("synchronous_commit is 'local'")
    finally:
        rig.ask("ALTER SYSTEM RESET synchronous_standby_names")
        rig.ask("SELECT pg_reload_conf()")


def test_standbys_that_nobody_waits_for_are_told(rig: Rig, standby: PostgresServer) -> None:
    database = rig.database()
    wait_until(lambda: cautions(database), what="the standby follows")
    [caution] = cautions(database)
    assert caution.startswith("the server has standbys and waits for none of them (synchronous_standby_names is empty)")
    rig.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
    try:
        rig.ask("SELECT pg_reload_conf()")
        wait_until(lambda: not cautions(database), what="the server waits for its standby")
    finally:
        rig.ask("ALTER SYSTEM RESET synchronous_standby_names")
        rig.ask("SELECT pg_reload_conf()")
    there = Database(read_address(rig.url(base=standby.url())))
    wait_until(lambda: migrated(there), what="the standby has our schema")
    [caution] = cautions(there)
    assert caution.startswith("the server is a standby: nothing can be enqueued or fetched; name its primary")
    with pytest.raises(BackendUnavailable, match="is a standby or read-only: name its primary, or all hosts with"):
        there.run(f"DELETE FROM {rig.schema}.messages")
    there.close()
    hosts = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{rig.server.port}/postgres"
    database = rig.database(base=hosts, target_session_attrs="read-write")
    assert database.run("SELECT pg_is_in_recovery()") == [(False,)], "the primary is found among several hosts"


def migrated(database: Database) -> bool:
    try:
        database.prepare()
    except BackendUnavailable:
        return False
    return True


def test_a_user_who_may_only_read_is_told_what_it_lacks_and_what_to_grant(rig: Rig, role: str) -> None:
    rig.open().prepare()
    schema, user = rig.schema, f'"{role}"'
    rig.ask(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
    rig.ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}")
    database = rig.database(base=rig.base(role))
    [told] = cautions(database)
    assert told.startswith(f"user {role!r} lacks INSERT, UPDATE, DELETE on ")
    mend = f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    assert told.endswith(mend)
    rig.ask(mend)
    assert cautions(database) == []
    rig.ask(f"REVOKE ALL ON {schema}.results FROM {user}")
    rig.ask(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
    one, functions = cautions(database)
    assert f"lacks SELECT, INSERT, UPDATE, DELETE on 1 of the tables of schema {schema} (results): " in one
    assert functions.endswith(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {user}")
