"""The server's counts of a job: the answer to `stats-job`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobpool.message.frozen import maker

_COUNTERS = re.compile(
    rb'tube: "?([^"\n]+)"?\nstate: (\w+)\npri: (\d+)\nage: (-?\d+)\ndelay: (\d+)\nttr: (\d+)\ntime-left: (-?\d+)\n'
    rb"(?:file: \d+\n)?reserves: (\d+)\ntimeouts: (\d+)\nreleases: (\d+)\nburies: (\d+)\nkicks: (\d+)"
)
"""In the order in which beanstalkd has told them since they are there."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of one job. Times are whole seconds, rounded down.

    Attributes:
        state: `ready`, `reserved`, `delayed` or `buried`.
        age: Since it was put.
        delay: That it was put, or released, with.
        time_left: Until its lease ends, or its delay; 0 otherwise.
        reserves: How often it was reserved, by whatever command.
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
