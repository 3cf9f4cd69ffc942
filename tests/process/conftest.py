"""A database for the programs of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.servers import fresh_name, shared_postgres


@pytest.fixture
def database() -> Iterator[str]:
    """URL of an empty database."""
    server, name = shared_postgres(), fresh_name("docs")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield server.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
