"""Asking servers on a passing connection: one of them, or several in turn until one answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from redis.exceptions import RedisError

from jobpool.errors import BackendUnavailable, ConfigurationError, JobpoolError
from jobpool_backends.redis.errors import explain
from jobpool_backends.redis.wire import Endpoint, Wire, Word

T = TypeVar("T")

LEAST_SHARE = 0.25
"""Seconds that each of many servers gets: less would pass over those that are merely far away."""


def open_and_ask(endpoint: Endpoint, *words: Word) -> tuple[Wire, Any]:
    """Return a new connection, and the answer to a first command on it.

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
    """Return the first answer that `ask` gets, and the place of the server that gave it.

    Blocks for little longer than one server may take to connect, however many are silent: they share that time.

    Raises:
        ConfigurationError: None answers, and one refuses us.
        BackendUnavailable: None answers; the text begins with `what`, and tells of each that was asked.
    """
    patience = servers[0].connect_timeout
    share = min(patience, max(patience / len(servers), LEAST_SHARE))
    give_up = time.monotonic() + patience
    troubles: list[JobpoolError] = []
    for place, server in enumerate(servers):
        try:
            return place, ask(replace(server, connect_timeout=share, timeout=share))
        except JobpoolError as trouble:
            troubles.append(trouble)
        if time.monotonic() >= give_up:
            break
    refusal = next((trouble for trouble in troubles if isinstance(trouble, ConfigurationError)), None)
    raise refusal or BackendUnavailable(f"{what}: {'; '.join(map(str, troubles))}")
