"""Answers of the server as values. All but `about` raise the error that a refusal means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import greenstalk

from jobpool.message.frozen import maker
from jobpool_backends.beanstalk.connection import Answer, Connection

_COUNTERS = re.compile(
    rb'tube: "?([^"\n]+)"?\nstate: (\w+)\npri: (\d+)\nage: (-?\d+)\ndelay: (\d+)\nttr: (\d+)\ntime-left: (-?\d+)\n'
    rb"(?:file: \d+\n)?reserves: (\d+)\ntimeouts: (\d+)\nreleases: (\d+)\nburies: (\d+)\nkicks: (\d+)"
)

Stats = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of one job. Times are whole seconds, rounded down.

    Attributes:
        state: `ready`, `reserved`, `delayed` or `buried`.
        age: Since it was put.
        delay: That it was put, or released, with.
        time_left: Until its lease ends, or its delay; 0 otherwise.
        timeouts: How often a lease of it ran out; an end with its connection does not count.
    """

    tube: str
    state: str
    priority: int
    age: int
    delay: int
    ttr: int
    time_left: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int

    @property
    def crashes(self) -> int:
        """Leases that ended without a verdict: they ran out, or their connection broke. It is reserved just now.

        Each reserve ends in a release, a bury or a delete, or in this. A kick undoes a bury, and reserves nothing.
        """
        return max(0, self.reserves - self.releases - self.buries - 1)


_make_counters = maker(Counters)


def read_counters(text: bytes) -> Counters:
    """Parse the answer to `stats-job`. Raises ValueError for any other text."""
    match = _COUNTERS.search(text)
    if match is None:
        raise ValueError("no statistics of a job")
    tube, state, *numbers = match.groups()
    return _make_counters(tube.decode(), state.decode(), *map(int, numbers))


def none_if_missing(connection: Connection, answer: Answer) -> Answer | None:
    """Return the answer; None for NOT_FOUND."""
    return None if isinstance(answer, greenstalk.NotFoundError) else connection.check(answer)


def job_of(connection: Connection, answer: Answer) -> greenstalk.Job[bytes] | None:
    """Return the job that a `peek…` or `reserve…` command found; None when there is none."""
    job = none_if_missing(connection, answer)
    assert job is None or isinstance(job, greenstalk.Job)
    return job


def about(connection: Connection, command: bytes, jobs: Sequence[int]) -> list[Answer]:
    """Return the answers to one command for each of these jobs. One round trip."""
    return connection.burst([b"%b %d" % (command, job) for job in jobs])


def ask_counters(connection: Connection, jobs: Sequence[int]) -> list[Counters | None]:
    """Return the counters of each job, None for those that are gone. One round trip."""
    answers = [none_if_missing(connection, answer) for answer in about(connection, b"stats-job", jobs)]
    return [read_counters(answer) if isinstance(answer, bytes) else None for answer in answers]


def ask_stats(connection: Connection) -> Stats:
    """Return the answer to `stats`."""
    [text] = connection.burst([b"stats"])
    return _read_stats(connection, text)


def ask_tube_stats(connection: Connection, tubes: Iterable[str]) -> list[Stats]:
    """Return the answers to `stats-tube`; empty ones for tubes that do not exist. One round trip."""
    answers = connection.burst([b"stats-tube %b" % tube.encode() for tube in tubes])
    return [_read_stats(connection, answer) for answer in answers]


def ask_tubes(connection: Connection) -> list[str]:
    """Return the names of all tubes."""
    [answer] = connection.burst([b"list-tubes"])
    return [line[2:].strip('"') for line in _lines(connection, answer)]


def number(stats: Stats, name: str) -> int:
    """Return a number that `stats…` told; 0 where it told none."""
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0


def _read_stats(connection: Connection, answer: Answer) -> Stats:
    pairs = (line.partition(": ") for line in _lines(connection, answer))
    return {key: int(value) if value.isdigit() else value.strip('"') for key, _, value in pairs}


def _lines(connection: Connection, answer: Answer) -> list[str]:
    """Return the lines of a YAML text below its head."""
    text = none_if_missing(connection, answer)
    return text.decode().splitlines()[1:] if isinstance(text, bytes) else []
