"""Makes `childrig` importable by name, and gives each test a way to start children that are gone when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from childrig import ChildProcess, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A fork server for all tests whose children need no options: a start costs ten times what a fork does."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start_child(server: Server) -> Iterator[Callable[..., ChildProcess]]:
    started: list[ChildProcess] = []
    servers: list[Server] = []

    def start(**options: Any) -> ChildProcess:
        if options:
            servers.append(Server(**options))
        child = ChildProcess(servers[-1] if options else server)
        started.append(child)
        return child.ready()

    yield start
    for child in started:
        child.close()
    for own in servers:
        own.close()
