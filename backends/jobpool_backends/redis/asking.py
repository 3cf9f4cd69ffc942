"""Asking servers on a passing connection: one of them, or several in turn until one answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from redis.exceptions import RedisError

from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.redis.trouble import explain
from jobpool_backends.redis.wire import Endpoint, Wire, Word

T = TypeVar("T")


def open_and_ask(endpoint: Endpoint, *words: Word) -> tuple[Wire, Any]:
    """A new connection, and the answer to a first command on it.

    Raises:
        BackendUnavailable, ConfigurationError: As a link's calls do.
    """
    try:
        wire = endpoint.open()
        try:
            return wire, wire.ask(words)
        except BaseException:
            wire.close()
            raise
    except RedisError as error:
        raise (explain(error, endpoint).error or error) from error


def ask_in_turn(servers: Sequence[Endpoint], ask: Callable[[Endpoint], T], what: str) -> tuple[int, T]:
    """The first answer that `ask` gets, and the place of the server that gave it.

    Blocks for as long as one server may take to connect, however many are silent: they share that time.

    Raises:
        ConfigurationError: None answers, and one refuses us.
        BackendUnavailable: None answers; the text begins with `what`, and tells of each.
    """
    share = servers[0].connect_timeout / len(servers)
    troubles: list[JobpoolError] = []
    for place, server in enumerate(servers):
        try:
            return place, ask(replace(server, connect_timeout=share, timeout=share))
        except JobpoolError as trouble:
            troubles.append(trouble)
    refusal = next((trouble for trouble in troubles if isinstance(trouble, ConfigurationError)), None)
    raise refusal or BackendUnavailable(f"{what}: {'; '.join(map(str, troubles))}")
