"""Questions to the server: answers become values, other replies become the errors they mean."""

from __future__ import annotations

from collections.abc import Sequence

import greenstalk

from jobpool_backends.beanstalk.connection import Connection
from jobpool_backends.beanstalk.connections import Connections
from jobpool_backends.beanstalk.counters import Counters, read_counters
from jobpool_backends.beanstalk.protocol import Answer

Stats = dict[str, int | str]


def told(connections: Connections, answer: Answer) -> Answer | None:
    """Return the answer; None for NOT_FOUND. Raises what any other refusal means."""
    return None if isinstance(answer, greenstalk.NotFoundError) else connections.check(answer)


def job_of(connections: Connections, answer: Answer) -> greenstalk.Job[bytes] | None:
    """Return the job that a `peek…` or `reserve…` command found; None when there is none. Raises as `told`."""
    job = told(connections, answer)
    assert job is None or isinstance(job, greenstalk.Job)
    return job


def stats_of(connections: Connections, answer: Answer) -> Stats:
    """Return the answer to `stats` or `stats-tube`; empty if there is no such tube. Raises as `told`."""
    pairs = (line.partition(": ") for line in _lines(connections, answer))
    return {key: _value(value) for key, _, value in pairs}


def names_of(connections: Connections, answer: Answer) -> list[str]:
    """Return the answer to `list-tubes`. Raises as `told`."""
    return [line[2:].strip('"') for line in _lines(connections, answer)]


def counters_of(connections: Connections, connection: Connection, jobs: Sequence[int]) -> list[Counters | None]:
    """Return the server's counters of each job; None for those that are gone. One round trip. Raises as `told`."""
    answers = [told(connections, answer) for answer in about(connection, b"stats-job", jobs)]
    return [read_counters(answer) if isinstance(answer, bytes) else None for answer in answers]


def about(connection: Connection, command: bytes, jobs: Sequence[int]) -> list[Answer]:
    """Return the answers to one command for each of these jobs. One round trip."""
    return connection.burst([b"%b %d" % (command, job) for job in jobs])


def number(stats: Stats, name: str) -> int:
    """Return a number that `stats…` told; 0 where it told none."""
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0


def _lines(connections: Connections, answer: Answer) -> list[str]:
    """Return the lines of a YAML text below its head."""
    text = told(connections, answer)
    return text.decode().splitlines()[1:] if isinstance(text, bytes) else []


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text.strip('"')
