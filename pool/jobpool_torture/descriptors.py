"""A check for leaks: masters must not have more open descriptors at the end of a run than before its faults. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

SOCKET = "socket"
"""Of any family but the next: connections to servers."""

UNIX_SOCKET = "unix socket"
"""Of the Unix family: what a master has to its children and fork servers."""

MEMORY = "/memfd:"
"""How a piece of shared memory is named among descriptors."""

FILE = "file"
"""Files of all names together; and a connection to a database that is one."""

MAX_MORE_CONNECTIONS = {SOCKET: 8, UNIX_SOCKET: 8, FILE: 4}
"""Kind of the connections to the broker → how many more a master may have.

It opens a connection when a call finds all others in use, and keeps a few of them. (One to a database in a file takes
two.) A leak with every fault soon is more than that. Of all other kinds none is allowed, except files.
"""

MAX_MORE_FILES = 2
"""Files that a master may have more than before, if its connections are not files."""


_PID = re.compile(r"(?<=[._])\d+(?=[. ]|$)")
"""In the name of a file that each master has one of: its board, and the memory of its clock."""


def difference(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Return, by pool, how many more descriptors of each kind its master has; < 0: fewer. Equal ones are left out."""
    before, now = _without_pids(before), _without_pids(now)
    kinds = {pool: sorted({*before[pool], *counts}) for pool, counts in now.items() if pool in before}
    changes = {pool: {kind: now[pool][kind] - before[pool][kind] for kind in found} for pool, found in kinds.items()}
    return {pool: {kind: change for kind, change in found.items() if change} for pool, found in changes.items()}


def _without_pids(counts: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Drop pids from names: another master has files of other names."""
    found: dict[str, Counter[str]] = {}
    for pool, kinds in counts.items():
        found[pool] = Counter()
        for kind, count in kinds.items():
            found[pool][_PID.sub("PID", kind)] += count
    return found


def grown(changes: Mapping[str, Mapping[str, int]], connections: str = SOCKET) -> list[str]:
    """Return which masters have more descriptors than before, and of what kind; what connections explain left out.

    Args:
        changes: Of `difference`.
        connections: The kind that connections to the broker are.
    """
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


def unix_sockets(table: str) -> set[str]:
    """Return the inodes of all sockets of the Unix family, from the text of /proc/PID/net/unix."""
    return {line.split()[6] for line in table.splitlines()[1:] if len(line.split()) > 6}
