"""Makes `childrig` importable by name, and gives each test a way to start children that are gone when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from childrig import ChildProcess, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A fork server for all tests whose children need no options: a start costs ten times what a fork does."""
    with Server() as server:
        yield server


@pytest.fixture
def start_child(server: Server) -> Iterator[Callable[..., ChildProcess]]:
    with ExitStack() as stack:

        def start(**options: Any) -> ChildProcess:
            own = stack.enter_context(Server(**options)) if options else server
            child = own.start_child()
            stack.callback(own.drop, child)
            return child.wait_ready()

        yield start


@pytest.fixture
def child(start_child: Callable[..., ChildProcess]) -> ChildProcess:
    """One without options."""
    return start_child()
