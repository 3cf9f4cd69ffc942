"""What errors mean: those that a test cannot make a real server give, by their codes and words."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from support.tables import row

from jobpool.errors import BackendUnavailable, ConfigurationError
from jobpool_backends.postgres.backend import PostgresBackend
from jobpool_backends.postgres.connection import Address, AnswerTimeout, read_address
from jobpool_backends.postgres.errors import is_conflict, is_stale, raise_explained, raise_unreached

ADDRESS: Address = read_address("postgresql://jo:s3cret@db.example:6432/jobs?schema=mine")


def of_code(code: str) -> psycopg.Error:
    return psycopg.errors.lookup(code)("as the server says it\nDETAIL: more of it")


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        ("53100", BackendUnavailable, "has a full disk: free some space there"),
        ("53200", BackendUnavailable, "is out of memory"),
        ("53300", BackendUnavailable, "has no connection left: raise max_connections"),
        ("57P01", BackendUnavailable, "is stopping, or somebody ended the session"),
        ("57P02", BackendUnavailable, "restarts after a crash"),
        ("57P03", BackendUnavailable, "is starting or stopping: try again when it is up"),
        ("25P03", BackendUnavailable, "was idle in a transaction for too long"),
        ("25006", BackendUnavailable, "is a standby or read-only: name its primary"),
        ("57014", BackendUnavailable, "raise the option timeout"),
        ("58030", BackendUnavailable, "reports an input/output error: check its disk"),
        ("XX001", BackendUnavailable, "reports damaged data"),
        ("08006", BackendUnavailable, "closed the connection"),
        ("08P01", BackendUnavailable, "closed the connection"),  # as pgbouncer says that its server is gone
        ("28P01", ConfigurationError, "refuses this password or user"),
        ("3D000", ConfigurationError, "has no such database: create it"),
        ("42501", ConfigurationError, "GRANT USAGE ON SCHEMA mine"),
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


def test_a_fault_of_ours_stays_what_it_is() -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn):
        raise_explained(of_code("42703"), ADDRESS)


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
