"""Connections: broken ones are replaced, none hangs, none leaks, and colliding transactions are tried again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from postgres_rig import Rig, together
from support.descriptors import open_descriptors
from support.servers import PostgresServer
from support.stalls import Stopwatch
from support.tables import row
from support.waiting import wait_until

from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, WriteRefused
from jobpool_backends.postgres import connection as connection_module
from jobpool_backends.postgres.backend import PostgresBackend
from jobpool_backends.postgres.connection import Address, AnswerTimeout, Connection, read_address
from jobpool_backends.postgres.database import MAX_IDLE_CONNECTIONS, Database
from jobpool_backends.postgres.errors import is_conflict, is_stale, raise_explained, raise_unreached

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


def open_at_once(database: Database, count: int) -> None:
    """Have it open so many connections, and keep them."""
    gate = threading.Barrier(count)
    together(count, lambda _: database.transaction(lambda link: (link.execute("SELECT 1").fetchone(), gate.wait(20.0))))


def in_one_transaction(database: Database) -> object:
    return database.transaction(lambda link: link.execute("SELECT 1").fetchone())


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
    together(MAX_IDLE_CONNECTIONS + 4, lambda _: [session(database) for _ in range(5)])
    open_at_once(database, MAX_IDLE_CONNECTIONS + 4)
    together(MAX_IDLE_CONNECTIONS + 4, lambda _: session(database))
    assert 1 <= len(database._idle) <= MAX_IDLE_CONNECTIONS


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
    open_at_once(database, 4)
    assert len(database._idle) == 4
    exposed.server.pause()
    with pytest.raises(BackendUnavailable):
        session(database)
    assert database._idle == []


def test_a_restart_between_two_calls_is_not_noticed(exposed: Rig) -> None:
    database = exposed.database()
    open_at_once(database, 3)
    exposed.server.restart()
    session(database)
    in_one_transaction(database)


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
        ("postgres", "postgres?service=nosuch", ConfigurationError, "cannot be asked that: check the parameters"),
        ("postgres", "postgres?require_auth=scram-sha-256", ConfigurationError, "cannot be asked that"),
        ("postgres", "postgres?replication=nonsense", ConfigurationError, "cannot be asked that"),
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


def test_a_database_that_cannot_keep_every_text_is_refused(mortal: PostgresServer) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):  # Debian's where the machine has no locale
        name = encoding.lower()
        with psycopg.connect(mortal.url(), autocommit=True) as server:
            server.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        database = Database(read_address(mortal.url(name)))
        with pytest.raises(ConfigurationError, match=rf"has the encoding {encoding}, .*createdb -E UTF8 -T template0"):
            session(database)
        database.close()


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

    def add(order: tuple[str, str]) -> None:
        first, second = order

        def work(link: Connection) -> None:
            sql = f"UPDATE {rig.schema}.numbers SET value = value + 1 WHERE name = %s RETURNING value"
            link.execute(sql, [first]).fetchone()
            tries.append(order)
            if len(tries) <= 2:
                everybody.wait(10.0)
            link.execute(sql, [second]).fetchone()

        counter.transaction(work)

    together(2, lambda number: add((("a", "b"), ("b", "a"))[number]))
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


def test_a_connection_in_use_is_closed_when_its_user_is_done(rig: Rig) -> None:
    database = rig.database(application_name=rig.schema)
    inside, closed = threading.Event(), threading.Event()

    def work(link: Connection) -> None:
        link.execute("SELECT 1").fetchone()
        inside.set()
        closed.wait(10.0)

    worked = rig.submit(database.transaction, work)
    assert inside.wait(10.0)
    database.close()
    closed.set()
    worked.result(10.0)
    assert database._idle == []


ADDRESS: Address = read_address("postgresql://jo:s3cret@db.example:6432/jobs?schema=mine")


def of_code(code: str) -> psycopg.Error:
    return psycopg.errors.lookup(code)("as the server says it\nDETAIL: more of it")


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        ("53100", BackendUnavailable, "has a full disk: free some space there"),
        ("53200", BackendUnavailable, "is out of memory"),
        ("53300", BackendUnavailable, "has no connection left: raise max_connections"),
        ("54000", WriteRefused, "has reached a limit of its own"),
        ("55006", BackendUnavailable, "reports trouble of its own: see its log"),
        ("57P04", BackendUnavailable, "reports trouble of its own"),
        ("58P01", BackendUnavailable, "reports trouble of its own"),
        ("XX000", BackendUnavailable, "reports trouble of its own"),
        ("22P05", InvalidJob, "cannot keep a value"),
        ("57P01", BackendUnavailable, "is stopping, or somebody ended the session"),
        ("57P02", BackendUnavailable, "restarts after a crash"),
        ("57P03", BackendUnavailable, "is starting or stopping: try again when it is up"),
        ("25P03", BackendUnavailable, "was idle in a transaction for too long"),
        ("25P04", BackendUnavailable, "raise transaction_timeout"),
        ("25006", BackendUnavailable, "is a standby or read-only: name its primary"),
        ("57014", BackendUnavailable, "raise the option timeout"),
        ("58030", BackendUnavailable, "reports an input/output error: check its disk"),
        ("XX001", BackendUnavailable, "reports damaged data"),
        ("08006", BackendUnavailable, "closed the connection"),
        ("08P01", BackendUnavailable, "closed the connection"),  # as pgbouncer says that its server is gone
        ("28P01", ConfigurationError, "refuses this password or user"),
        ("3D000", ConfigurationError, "has no such database: create it"),
        ("42501", ConfigurationError, 'GRANT USAGE ON SCHEMA "mine",'),
        ("3F000", ConfigurationError, "has no schema 'mine' any more"),
        ("42P01", ConfigurationError, "has lost a table of schema 'mine'"),
        ("42883", ConfigurationError, "has lost a function of schema 'mine'"),
    ],
)
def test_a_code_is_explained_in_one_sentence(code: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind) as caught:
        raise_explained(of_code(code), ADDRESS)
    text = str(caught.value)
    assert text.startswith("Postgres at db.example:6432 (database 'jobs') ")
    assert told in text
    assert text.endswith(" (as the server says it)")
    assert "s3cret" not in text


FATAL = 'connection failed: connection to server at "10.1.2.3", port 6432 failed: FATAL:  '


def test_what_libpq_says_while_connecting_is_explained() -> None:
    for words, kind, told in [
        (FATAL + "the database system is starting up", BackendUnavailable, "is starting or stopping"),
        (FATAL + "the database system is shutting down", BackendUnavailable, "is starting or stopping"),
        (FATAL + "the database system is in recovery mode", BackendUnavailable, "is starting or stopping"),
        (FATAL + "the database system is not yet accepting connections", BackendUnavailable, "is starting or"),
        (FATAL + "server login has been failing, try again later", BackendUnavailable, "is starting or stopping"),
        (FATAL + "sorry, too many clients already", BackendUnavailable, "has no connection left"),
        (FATAL + "remaining connection slots are reserved for roles", BackendUnavailable, "no connection left"),
        (FATAL + "no more connections allowed (max_client_conn)", BackendUnavailable, "has no connection left"),
        (FATAL + 'password authentication failed for user "jo"', ConfigurationError, "refuses this password or user"),
        (FATAL + "no such user: jo", ConfigurationError, "refuses this password or user"),
        (FATAL + "no such database: jobs", ConfigurationError, "has no such database"),
        (FATAL + 'permission denied for database "jobs"', ConfigurationError, "GRANT CONNECT"),
        (FATAL + 'no pg_hba.conf entry for host "10.1.2.4"', ConfigurationError, "add a line to its pg_hba.conf"),
        ("connection failed: SSL error: certificate verify failed", ConfigurationError, "check sslmode and the cert"),
        ("connection is bad: No route to host", BackendUnavailable, "does not answer: check host and port"),
        (FATAL + "Passwort-Authentifizierung fehlgeschlagen", BackendUnavailable, "cannot be reached (connection to"),
    ]:
        with row(words), pytest.raises(kind) as caught:
            raise_unreached(psycopg.OperationalError(words), ADDRESS)
        assert str(caught.value).startswith("Postgres at db.example:6432 (database 'jobs') "), words
        assert told in str(caught.value), words
        assert words.removeprefix("connection failed: ").removeprefix("connection is bad: ") in str(caught.value), words


def test_of_several_hosts_one_that_may_come_back_decides() -> None:
    error = psycopg.OperationalError(FATAL + "no such database: jobs\nFATAL:  the database system is starting up")
    with pytest.raises(BackendUnavailable, match="is starting or stopping"):
        raise_unreached(error, ADDRESS)


def test_a_pooler_that_has_no_session_left_is_silent() -> None:
    with pytest.raises(BackendUnavailable, match=r"does not answer: check .* pool_size \(no answer within 3 s\)"):
        raise_unreached(AnswerTimeout("no answer within 3 s"), ADDRESS)


def test_of_a_primary_that_is_down_and_its_standby_the_standby_is_told() -> None:
    host = "- host: 'one', port: '5432', hostaddr: '10.1.2.3': "
    down = 'connection failed: connection to server at "10.1.2.3", port 5432 failed: Connection refused'
    standby = 'connection failed: connection to server at "10.1.2.4", port 5432 failed: session is read-only'
    for first, second in ((down, standby), (standby, down)):
        words = f"{second}\nMultiple connection attempts failed. All failures were:\n{host}{first}\n{host}{second}"
        with pytest.raises(BackendUnavailable) as caught:
            raise_unreached(psycopg.OperationalError(words), ADDRESS)
        told = "is not what target_session_attrs asks for: look which host is the primary now (connection to server at"
        assert str(caught.value).endswith(f'{told} "10.1.2.4", port 5432 failed: session is read-only)')


def test_which_errors_are_worth_another_try() -> None:
    assert is_conflict(of_code("40001"))
    assert is_conflict(of_code("40P01"))
    assert not is_conflict(of_code("23505"))
    assert is_stale(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert is_stale(of_code("57P01"))
    assert is_stale(of_code("08006"))
    assert not is_stale(AnswerTimeout("no answer within 3 s"))  # it would take as long again
    assert not is_stale(of_code("53100"))
    assert not is_stale(psycopg.ProgrammingError("of our own"))


def parameters(url: str, **options: object) -> dict[str, str]:
    return read_address(url, options).parameters


def test_a_url_is_read_as_libpq_does_and_keywords_are_added() -> None:
    wanted = {"user": "jo@acme", "password": "p/w", "host": "db.example", "port": "6432", "dbname": "jobs"}
    for scheme in ("postgresql", "postgres", "PostgreSQL"):
        found = parameters(f"{scheme}://jo%40acme:p%2Fw@db.example:6432/jobs?sslmode=require")
        assert found.items() >= {**wanted, "sslmode": "require"}.items(), scheme
    address = read_address("postgresql://jo@one,two:6432/jobs?target_session_attrs=read-write")
    assert address.parameters["host"] == "one,two"
    assert address.parameters["target_session_attrs"] == "read-write"
    found = parameters("postgresql://host/jobs?sslmode=prefer", sslmode="verify-full", application_name="mine")
    assert found.items() >= {"sslmode": "verify-full", "application_name": "mine"}.items()
    found = parameters("postgresql://host?timeout=1.5&keepalives_idle=60")
    assert found.items() >= {"tcp_user_timeout": "1500", "keepalives_idle": "60", "connect_timeout": "2"}.items()


def test_our_own_options_are_not_given_to_libpq() -> None:
    address = read_address("postgresql://host")
    assert address == Address(address.parameters, timeout=3.0, schema="jobpool", listen=True)
    address = read_address("postgresql://host?timeout=1.5&schema=Jobs&listen=no", {"timeout": 7})
    assert (address.timeout, address.schema, address.listen) == (7.0, "Jobs", False)
    assert not {"timeout", "schema", "listen"} & address.parameters.keys()


def test_what_is_wrong_is_named() -> None:
    for url, told in [
        ("postgresql://host?sslmood=require", "postgresql:// has no option sslmood: leave it out"),
        ("postgresql://host?timeout=0", "takes option timeout as more than 0 and at most 3600 seconds, not '0'"),
        ("postgresql://host?timeout=nan", "takes option timeout as"),
        ("postgresql://host?timeout=soon", "not 'soon'"),
        ("postgresql://host?connect_timeout=1", "connect_timeout as a whole number of seconds from 2 to 3600"),
        ("postgresql://host?connect_timeout=2.5", "not '2.5'"),
        ("postgresql://host?schema=pg_jobs", "option schema as 1 to 50 letters, digits or '_'"),
        ('postgresql://host?schema=a"b', "option schema as"),
        ("postgresql://host?schema=" + "s" * 51, "option schema as"),
        ("postgresql://host?schema=", "option schema as"),
        ("postgresql://host?listen=yes", "option listen as auto or no, not 'yes'"),
        ("postgresql://[::1/jobs", "cannot be read: write postgresql://user:password@host:5432/database"),
        ("postgresql://host/%zz", "cannot be read"),
    ]:
        with row(url), pytest.raises(ConfigurationError) as caught:
            read_address(url)
        assert told in str(caught.value), url


def test_no_password_is_told_of_a_wrong_url() -> None:
    for url in [
        "postgresql://jo:s3cret@[::1/jobs",
        "postgresql://jo:s3cret@s3cret@[host/jobs",
        "postgresql://jo:s3cret%zz@host/jobs",
        "postgresql://jo:s3cret@host/jobs?nonsense=1",
        "postgresql://jo:s3cret@host/jobs?password=s3cret&timeout=x",
    ]:
        with row(url), pytest.raises(ConfigurationError) as caught:
            read_address(url)
        told = f"{caught.value} {caught.value.__context__}"
        assert "s3cret" not in told, url


def test_a_place_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    for url, where in [
        ("postgresql://db.example/jobs", "db.example:5432 (database 'jobs')"),
        ("postgresql://jo:s3cret@one:1,two:2/jobs", "one:1, two:2 (database 'jobs')"),
        ("postgresql://one,two/jobs", "one:5432, two:5432 (database 'jobs')"),
        ("postgresql:///jobs?host=/run/postgresql", "/run/postgresql:5432 (database 'jobs')"),
        ("postgresql://host", "host:5432"),
    ]:
        address = read_address(url)
        assert address.where == where, url
        assert "s3cret" not in repr(address), url
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGPORT", "6432")
    assert read_address("postgresql://").where == "db.example:6432"


def test_where_its_password_comes_from_is_known() -> None:
    for case, url, variables in [
        ("from the environment", "postgresql://jo@host/jobs", ("PGPASSWORD",)),
        ("in the URL", "postgresql://jo:secret@host/jobs", ()),
    ]:
        with closing(PostgresBackend.from_url(url)) as backend:
            assert backend.credential_variables == variables, case


def test_the_encoding_of_our_own_connections_is_not_for_a_url_to_say(rig: Rig) -> None:
    assert rig.database(client_encoding="LATIN1").run("SELECT %(text)b", {"text": "→"}) == [("→",)]
