"""What errors mean: those that a test cannot make a real server give, by their codes and words."""

from __future__ import annotations

import psycopg
import pytest
from support.tables import row

from jobpool.errors import BackendUnavailable, ConfigurationError, InvalidJob, WriteRefused
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
