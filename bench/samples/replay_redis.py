"""redis-py and nothing else, sending what jobpool has sent before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis import Redis

from bench.samples.command_recorder import recorded
from jobpool.client.jobs import Jobs


@contextmanager
def replay(url: str, what: Callable[[Jobs], None], times: int, key: str) -> Iterator[Callable[[], object]]:
    """Yield a function that sends the next command that jobpool sent for `what`; the server has forgotten it."""
    calls = []
    with recorded(url) as (door, recorder), Jobs(door, signing_key=key) as jobs:
        what(jobs)  # connects, and teaches the server its script
        for _ in range(times):
            recorder.forget()
            what(jobs)
            calls.append(recorder.commands())
    rest = iter(calls)
    with Redis.from_url(url, protocol=2) as client:
        client.flushall()
        yield lambda: [client.execute_command(*words) for words in next(rest)]
