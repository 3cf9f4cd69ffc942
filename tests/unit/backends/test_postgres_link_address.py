"""From a URL to what libpq is given: everything of libpq's passes, what is wrong is named, no password is told."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.tables import row

from jobpool.errors import ConfigurationError
from jobpool_backends.postgres.backend import PostgresBackend
from jobpool_backends.postgres.connection import Address, read_address


def parameters(url: str, **options: object) -> dict[str, str]:
    return read_address(url, options).parameters


def test_a_url_is_read_as_libpq_does() -> None:
    wanted = {"user": "jo@acme", "password": "p/w", "host": "db.example", "port": "6432", "dbname": "jobs"}
    for scheme in ("postgresql", "postgres", "PostgreSQL"):
        found = parameters(f"{scheme}://jo%40acme:p%2Fw@db.example:6432/jobs?sslmode=require")
        assert found.items() >= {**wanted, "sslmode": "require"}.items(), scheme


def test_several_hosts_and_what_is_asked_of_them_pass_through() -> None:
    address = read_address("postgresql://jo@one,two:6432/jobs?target_session_attrs=read-write")
    assert address.parameters["host"] == "one,two"
    assert address.parameters["target_session_attrs"] == "read-write"


def test_libpq_parameters_may_come_by_keyword_too() -> None:
    found = parameters("postgresql://host/jobs?sslmode=prefer", sslmode="verify-full", application_name="mine")
    assert found.items() >= {"sslmode": "verify-full", "application_name": "mine"}.items()


def test_a_dead_network_is_noticed_unless_somebody_says_otherwise() -> None:
    found = parameters("postgresql://host?timeout=1.5&keepalives_idle=60")
    assert found.items() >= {"tcp_user_timeout": "1500", "keepalives_idle": "60", "connect_timeout": "2"}.items()


def test_our_own_options_are_not_given_to_libpq() -> None:
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


def test_defaults() -> None:
    address = read_address("postgresql://host")
    assert address == Address(address.parameters, timeout=3.0, schema="jobpool", listen=True)


def test_where_its_password_comes_from_is_known() -> None:
    for case, url, variables in [
        ("from the environment", "postgresql://jo@host/jobs", ("PGPASSWORD",)),
        ("in the URL", "postgresql://jo:secret@host/jobs", ()),
    ]:
        with closing(PostgresBackend.from_url(url)) as backend:
            assert backend.credential_variables == variables, case
