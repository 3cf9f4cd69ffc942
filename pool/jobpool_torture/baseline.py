"""Open descriptors of the masters at rest: they must not have more at the end of a run than before its faults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from jobpool_torture.processes import SOCKET, UNIX_SOCKET

MEMORY = "/memfd:"  # how a piece of shared memory is named among descriptors
FILE = "file"  # files of all names together; and a connection to a database that is one
MAX_MORE_FILES = 2  # files that a master may have more than before, such as its board, which a reload maps once more
MAX_MORE_CONNECTIONS = {SOCKET: 8, UNIX_SOCKET: 8, FILE: 4 + MAX_MORE_FILES}
"""Kind of the connections to the broker → how many more a master may have.

It opens a connection when a call finds all others in use, and keeps a few of them. (One to a database in a file takes
two.) A leak with every fault soon is more than that. Of all other kinds none is allowed, except files.
"""

_PID = re.compile(r"(?<=[._])\d+(?=[. ]|$)")
"""In the name of a file that each master has one of: its board, and the memory of its clock."""

Open = dict[str, Counter[str]]  # how many descriptors of each kind each master has open, by the pool's name


def difference(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Return, by pool, how many more descriptors of each kind its master has; < 0: fewer. Equal ones are left out."""
    return {pool: _change(before[pool], counts) for pool, counts in now.items() if pool in before}


def _change(before: Counter[str], now: Counter[str]) -> dict[str, int]:
    """Return how many more there are of each kind. Pids in names do not count: another master has other files."""
    changes: Counter[str] = Counter()
    for sign, counts in ((-1, before), (1, now)):
        for kind, count in counts.items():
            changes[_PID.sub("PID", kind)] += sign * count
    return {kind: change for kind, change in sorted(changes.items()) if change}


def grown(changes: Mapping[str, Mapping[str, int]], connections: str = SOCKET) -> list[str]:
    """Return which masters have more descriptors than before, of what kind; not those that `connections` explain."""
    too_many = {pool: _too_many(kinds, connections) for pool, kinds in changes.items()}
    return [f"{pool}: {listed(kinds)}" for pool, kinds in too_many.items() if kinds]


def _too_many(changes: Mapping[str, int], connections: str) -> dict[str, int]:
    allowed = {FILE: MAX_MORE_FILES, connections: MAX_MORE_CONNECTIONS[connections]}
    files = {kind: change for kind, change in changes.items() if is_file(kind)}
    if sum(files.values()) <= allowed[FILE]:
        allowed |= files
    return {kind: change for kind, change in changes.items() if change > max(0, allowed.get(kind, 0))}


def is_file(kind: str) -> bool:
    """Return whether descriptors of this kind are of a file on a disk, or of a device."""
    return kind.startswith("/") and not kind.startswith(MEMORY)


def listed(kinds: Mapping[str, int]) -> str:
    """Return the changes of a pool, for people."""
    return ", ".join(f"{change:+d} {kind}" for kind, change in kinds.items()) or "as before"
