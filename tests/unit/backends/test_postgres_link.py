"""Connections: broken ones are replaced, none hangs, none leaks, and colliding transactions are tried again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest
from postgres_rig import Rig, together
from support.descriptors import open_descriptors
from support.servers import PostgresServer
from support.stalls import Stopwatch
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.postgres import connection as connection_module
from jobpool_backends.postgres.connection import Connection, read_address
from jobpool_backends.postgres.database import MAX_IDLE_CONNECTIONS, Database

SLACK = 1.0
"""Seconds that a busy machine may add."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that tests may stop, kill and freeze."""
    with PostgresServer(tmp_path_factory.mktemp("mortal") / "postgres") as server:
        yield server


@pytest.fixture
def exposed(mortal: PostgresServer) -> Iterator[Rig]:
    with Rig(mortal) as rig:
        yield rig
        mortal.resume()
        mortal.start()


def session(database: Database) -> int:
    """Which session of the server answers."""
    return int(database.run("SELECT pg_backend_pid()")[0][0])


def in_one_transaction(database: Database) -> object:
    return database.transaction(lambda link: link.execute("SELECT 1").fetchone())


# --- statements and transactions ---------------------------------------------------------------------------


def test_one_statement_is_one_transaction_and_gives_its_rows(rig: Rig) -> None:
    database = rig.database()
    assert database.run("SELECT %(text)b, %(numbers)b::bigint[]", {"text": "é", "numbers": [1, 2**40]}) == [
        ("é", [1, 2**40])
    ]
    rig.ask("CREATE TABLE {schema}.things (name text)")
    assert database.run(f"INSERT INTO {rig.schema}.things VALUES ('one')") == []
    assert rig.ask("SELECT name FROM {schema}.things") == [("one",)]


@pytest.mark.parametrize("pipelined", [True, False], ids=["pipelined", "one by one"])
def test_a_transaction_is_done_whole_or_not_at_all(rig: Rig, pipelined: bool) -> None:
    database = rig.database()
    database.run(f"CREATE TABLE {rig.schema}.things (name text UNIQUE)")

    def work(link: Connection) -> int:
        for name in names:
            link.execute(f"INSERT INTO {rig.schema}.things VALUES (%s)", [name])
        return len(names)

    names = ["one", "two"]
    assert database.transaction(work, pipelined=pipelined) == 2
    names = ["three", "one"]
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.transaction(work, pipelined=pipelined)
    assert database.run(f"SELECT name FROM {rig.schema}.things ORDER BY name") == [("one",), ("two",)]


def test_statements_are_prepared_and_connections_kept(rig: Rig) -> None:
    database = rig.database()
    assert not database.pooled
    assert len({session(database) for _ in range(5)}) == 1
    assert database.run("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%backend_pid()'") == [(1,)]


def test_eight_threads_have_a_connection_each_and_leave_few(rig: Rig) -> None:
    database = rig.database()
    everybody = threading.Barrier(MAX_IDLE_CONNECTIONS + 4)

    def work(number: int) -> None:
        del number
        for _ in range(5):
            session(database)
        database.transaction(lambda link: (link.execute("SELECT 1").fetchone(), everybody.wait(20.0)))
        session(database)

    together(MAX_IDLE_CONNECTIONS + 4, work)
    assert 1 <= len(database._idle) <= MAX_IDLE_CONNECTIONS


# --- limits ------------------------------------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_cancelled_at_the_server(rig: Rig) -> None:
    database = rig.database(timeout=0.5)
    pid = session(database)
    with pytest.raises(BackendUnavailable, match="did not finish a statement in time and cancelled it"):
        database.run("SELECT pg_sleep(20)")
    assert rig.ask("SELECT state FROM pg_stat_activity WHERE pid = %s", pid) == [("idle",)]
    assert session(database) == pid


def test_a_transaction_left_open_is_ended_by_the_server_and_limits_that_somebody_has_set_stand(rig: Rig) -> None:
    assert rig.database().run("SHOW idle_in_transaction_session_timeout") == [("10s",)]
    database = rig.database(options="-c statement_timeout=12s -c idle_in_transaction_session_timeout=34s")
    assert database.run("SHOW statement_timeout") == [("12s",)]
    assert database.run("SHOW idle_in_transaction_session_timeout") == [("34s",)]


@pytest.mark.parametrize("in_transaction", [False, True], ids=["statement", "transaction"])
def test_a_server_that_stands_still_is_given_up_in_time_and_used_again(exposed: Rig, in_transaction: bool) -> None:
    """Its machine acknowledges what we send, and nothing answers."""
    database = exposed.database(timeout=0.5)
    session(database)
    step = in_one_transaction if in_transaction else session
    exposed.server.pause()
    started = Stopwatch()
    with pytest.raises(BackendUnavailable, match=rf":{exposed.server.port} .* does not answer: check the network"):
        step(database)
    assert started.elapsed() > 0.4
    assert started.seconds() < 0.5 + SLACK
    exposed.server.resume()
    session(database)


def test_one_that_stands_still_when_we_connect_is_given_up_too(exposed: Rig) -> None:
    exposed.server.pause()
    database = exposed.database(timeout=0.5)
    started = Stopwatch()
    with pytest.raises(BackendUnavailable, match="does not answer: check host and port in the URL, the network"):
        session(database)
    assert started.seconds() < 2.0 + SLACK
    exposed.server.resume()
    session(database)


def test_after_a_time_without_answers_no_old_connection_is_tried(exposed: Rig) -> None:
    """Each would cost the whole time limit again."""
    database = exposed.database(timeout=0.5)
    gate = threading.Barrier(4)
    together(4, lambda _: database.transaction(lambda link: (link.execute("SELECT 1").fetchone(), gate.wait(10.0))))
    assert len(database._idle) == 4
    exposed.server.pause()
    with pytest.raises(BackendUnavailable):
        session(database)
    assert database._idle == []


# --- servers that go away ----------------------------------------------------------------------------------


def test_a_restart_between_two_calls_is_not_noticed(exposed: Rig) -> None:
    database = exposed.database()
    gate = threading.Barrier(3)
    together(3, lambda _: database.transaction(lambda link: (link.execute("SELECT 1").fetchone(), gate.wait(10.0))))
    exposed.server.restart()
    session(database)
    in_one_transaction(database)


def test_a_session_that_was_ended_is_replaced(rig: Rig) -> None:
    database = rig.database()
    for step in (session, in_one_transaction):
        rig.ask("SELECT pg_terminate_backend(%s, 5000)", session(database))
        step(database)


def test_a_session_that_ends_in_mid_call_is_not_replaced_for_ever(rig: Rig) -> None:
    database = rig.database()
    session(database)
    with pytest.raises(BackendUnavailable, match=r"somebody ended the session|closed the connection"):
        database.run("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_server_that_is_down_is_named_with_the_mend(exposed: Rig) -> None:
    database = exposed.database()
    session(database)
    exposed.server.kill()
    for _ in range(2):
        with pytest.raises(BackendUnavailable) as caught:
            session(database)
        assert (
            f"Postgres at 127.0.0.1:{exposed.server.port} (database 'postgres') refuses connections: start it"
            in str(caught.value)
        )
    exposed.server.start()
    session(database)


def test_a_host_without_an_address_is_named(rig: Rig) -> None:
    database = rig.database(base="postgresql://postgres@nowhere.invalid/postgres")
    with pytest.raises(BackendUnavailable, match=r"nowhere\.invalid:5432 .* has no address: check the host's name"):
        session(database)


def test_of_several_hosts_the_one_that_takes_writes_is_found(exposed: Rig) -> None:
    port = exposed.server.port
    hosts = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{port}/postgres"
    session(exposed.database(base=hosts, target_session_attrs="read-write"))
    with pytest.raises(BackendUnavailable, match=r"is not what target_session_attrs asks for|refuses connections"):
        session(exposed.database(base=hosts, target_session_attrs="standby"))


def test_a_server_that_became_read_only_is_left_for_a_new_connection(rig: Rig) -> None:
    """As after a failover: the old connection leads to what is a standby by now."""
    database = rig.database()
    database.run(f"CREATE TABLE {rig.schema}.things (name text)")
    pid = session(database)
    [link] = database._idle
    link.execute("SET default_transaction_read_only = on")
    database.run(f"INSERT INTO {rig.schema}.things VALUES ('one')")
    assert session(database) != pid


def test_a_server_that_stays_read_only_is_named(rig: Rig) -> None:
    rig.database().prepare()
    database = rig.database(options="-c default_transaction_read_only=on")
    with pytest.raises(BackendUnavailable, match="is a standby or read-only: name its primary"):
        database.run("CREATE TABLE things (name text)")


# --- servers that refuse us --------------------------------------------------------------------------------


@pytest.fixture
def strict(mortal: PostgresServer) -> Iterator[Rig]:
    """A server that asks for passwords, of all but the superuser."""
    with Rig(mortal) as rig:
        rig.ask("SET password_encryption = 'scram-sha-256'")
        rig.ask("CREATE ROLE locked LOGIN PASSWORD 's3cret'")
        rig.ask("CREATE ROLE barred LOGIN CONNECTION LIMIT 0")
        rig.ask("CREATE ROLE unwelcome LOGIN")
        path = mortal.data / "pg_hba.conf"
        known = path.read_text()
        path.write_text("host all locked 127.0.0.1/32 scram-sha-256\nhost all unwelcome 127.0.0.1/32 reject\n" + known)
        rig.ask("SELECT pg_reload_conf()")
        yield rig
        path.write_text(known)
        rig.ask("SELECT pg_reload_conf()")
        for role in ("locked", "barred", "unwelcome"):
            rig.ask(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("user", "place", "kind", "told"),
    [
        ("locked:wr0ng", "postgres", ConfigurationError, "refuses this password or user: check them in the URL"),
        ("locked", "postgres", ConfigurationError, "refuses this password or user"),
        ("nobody", "postgres", ConfigurationError, "does not know this user: check it in the URL, or create it"),
        ("unwelcome", "postgres", ConfigurationError, "does not let this user in from here: add a line"),
        ("barred", "postgres", BackendUnavailable, "has no connection left: raise max_connections"),
        ("postgres", "nothing", ConfigurationError, "has no such database: create it"),
        ("postgres", "postgres?sslmode=require", ConfigurationError, "do not agree on encryption: check sslmode"),
        ("postgres", "postgres?sslmode=perhaps", ConfigurationError, "cannot be asked that: check the parameters"),
        ("postgres", "postgres?options=-c%20no.such=1%20-c%20nonsense=1", ConfigurationError, "cannot be asked that"),
    ],
)
def test_a_refusal_is_explained(strict: Rig, user: str, place: str, kind: type[Exception], told: str) -> None:
    base = f"postgresql://{user}@127.0.0.1:{strict.server.port}/{place}"
    database = Database(read_address(base))
    wait_until(lambda: strict.ask("SELECT 1"), what="the server has its new rules")
    with pytest.raises(kind, match=told) as caught:
        session(database)
    database.close()
    assert f"127.0.0.1:{strict.server.port}" in str(caught.value)
    assert "wr0ng" not in str(caught.value)


def test_an_old_server_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "OLDEST_SERVER", 990000)
    with pytest.raises(ConfigurationError, match=r"is Postgres \d+, and postgresql:// needs 99 or later: upgrade it"):
        session(rig.database())


# --- collisions --------------------------------------------------------------------------------------------


@pytest.fixture
def counter(rig: Rig) -> Database:
    """Serializable transactions on one number."""
    database = rig.database(options="-c default_transaction_isolation=serializable -c deadlock_timeout=10ms")
    database.run(f"CREATE TABLE {rig.schema}.numbers (name text PRIMARY KEY, value int NOT NULL)")
    database.run(f"INSERT INTO {rig.schema}.numbers VALUES ('a', 0), ('b', 0)")
    return database


def test_transactions_that_cannot_be_put_in_an_order_are_tried_again(rig: Rig, counter: Database) -> None:
    tries = []

    def add(link: Connection) -> None:
        tries.append(1)
        [(value,)] = link.execute(f"SELECT value FROM {rig.schema}.numbers WHERE name = 'a'").fetchall()
        link.execute(f"UPDATE {rig.schema}.numbers SET value = %s WHERE name = 'a'", [value + 1])

    together(4, lambda _: [counter.transaction(add) for _ in range(20)])
    assert rig.ask("SELECT value FROM {schema}.numbers WHERE name = 'a'") == [(80,)]
    assert len(tries) > 80


def test_a_dead_lock_is_tried_again(rig: Rig, counter: Database) -> None:
    everybody = threading.Barrier(2)
    tries = []

    def add(order: str) -> None:
        first, second = order

        def work(link: Connection) -> None:
            sql = f"UPDATE {rig.schema}.numbers SET value = value + 1 WHERE name = %s RETURNING value"
            link.execute(sql, [first]).fetchone()
            tries.append(order)
            if len(tries) <= 2:
                everybody.wait(10.0)
            link.execute(sql, [second]).fetchone()

        counter.transaction(work)

    together(2, lambda number: add(("ab", "ba")[number]))
    assert rig.ask("SELECT value FROM {schema}.numbers ORDER BY name") == [(2,), (2,)]
    assert len(tries) > 2


def test_a_collision_that_never_ends_is_unavailability(rig: Rig) -> None:
    database = rig.database(timeout=0.5)
    database.prepare()
    rig.ask(
        "CREATE FUNCTION {schema}.collide() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'give way' USING ERRCODE = '40001'; END $$"
    )
    started = Stopwatch()
    with pytest.raises(BackendUnavailable, match="again and again: look for long transactions"):
        database.run(f"SELECT {rig.schema}.collide()")
    assert started.seconds() < 0.5 + SLACK


def test_an_error_of_ours_stays_what_it_is(rig: Rig) -> None:
    database = rig.database()
    with pytest.raises(psycopg.errors.SyntaxError):
        database.run("SELEKT 1")
    session(database)


# --- a pooler that hides itself ------------------------------------------------------------------------------


def test_prepared_statements_that_vanish_give_a_pooler_away(rig: Rig) -> None:
    database = rig.database()
    for _ in range(4):
        session(database)
    [link] = database._idle
    link.pgconn.exec_(b"DEALLOCATE ALL")  # as when another session is lent, unseen by psycopg
    session(database)
    assert database.pooled
    for _ in range(5):
        session(database)
    assert database.run("SELECT count(*) FROM pg_prepared_statements") == [(0,)]


def test_a_plan_that_no_longer_fits_is_made_anew(rig: Rig) -> None:
    """Another process has migrated a table."""
    database = rig.database()
    database.run(f"CREATE TABLE {rig.schema}.things (name text)")
    for _ in range(4):
        database.run(f"SELECT * FROM {rig.schema}.things")
    rig.ask("ALTER TABLE {schema}.things ADD COLUMN size int")
    database.run(f"SELECT * FROM {rig.schema}.things")


# --- nothing is left ---------------------------------------------------------------------------------------


def test_twenty_reconnects_leave_nothing_behind(rig: Rig) -> None:
    database = rig.database(application_name=rig.schema)
    session(database)
    before = open_descriptors()
    for number in range(20):
        [link] = database._idle
        if number % 2:
            rig.ask("SELECT pg_terminate_backend(%s, 5000)", link.info.backend_pid)
        else:
            link.answer_timeout = 0.0
            with pytest.raises(BackendUnavailable):
                database.run("SELECT pg_sleep(0.2)")
        session(database)
    assert open_descriptors() <= before
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    wait_until(lambda: rig.ask(count, rig.schema) == [(1,)], what="the server has one session of ours")
    database.close()
    wait_until(lambda: rig.ask(count, rig.schema) == [(0,)], what="the server has none")


def test_what_is_interrupted_is_closed(rig: Rig) -> None:
    database = rig.database()

    def interrupted(link: Connection) -> None:
        link.execute("SELECT 1").fetchone()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.transaction(interrupted)
    assert database.run("SELECT 1") == [(1,)]


def test_a_closed_database_says_so(rig: Rig) -> None:
    database = rig.database()
    session(database)
    database.close()
    database.close()
    assert database._idle == []
    with pytest.raises(BackendUnavailable, match="was closed here: open the backend again"):
        session(database)


def test_a_connection_in_use_is_closed_when_its_user_is_done(rig: Rig) -> None:
    database = rig.database(application_name=rig.schema)
    inside, closed = threading.Event(), threading.Event()

    def work(link: Connection) -> None:
        link.execute("SELECT 1").fetchone()
        inside.set()
        closed.wait(10.0)

    thread = threading.Thread(target=database.transaction, args=(work,))
    thread.start()
    assert inside.wait(10.0)
    database.close()
    closed.set()
    thread.join(10.0)
    assert database._idle == []


def test_connections_are_not_used_across_a_fork(rig: Rig) -> None:
    database = rig.database()
    pid = session(database)
    child = os.fork()
    if not child:
        try:
            session(database)
        except ConfigurationError as error:
            os._exit(0 if "open the backend after the fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert session(database) == pid
