"""Which of a master's descriptors may be more at the end of a run, and which not."""

from __future__ import annotations

import os
import socket
from collections import Counter

from jobpool_torture import processes
from jobpool_torture.baseline import (
    FILE,
    MAX_MORE_CONNECTIONS,
    MAX_MORE_FILES,
    difference,
    grown,
    listed,
)
from jobpool_torture.environment import connections
from jobpool_torture.processes import SOCKET, UNIX_SOCKET

SOCKETS = MAX_MORE_CONNECTIONS[SOCKET]
BEFORE = Counter({"socket": 10, "unix socket": 12, "pipe": 3, "/jobs.db": 1})


def test_a_master_in_the_place_of_another_has_files_of_other_names() -> None:
    clock = "/dev/shm/faketime_shm_"
    before = Counter({"/run/pool1.27.board": 2, f"{clock}27": 1, f"{clock}3 (deleted)": 1})
    now = Counter({"/run/pool1.399.board": 2, f"{clock}399": 1, f"{clock}4 (deleted)": 1})
    assert difference({"pool1": before}, {"pool1": now}) == {"pool1": {}}
    assert difference({"pool1": before}, {"pool1": now + Counter({"/run/pool1.399.board": 2})}) == {
        "pool1": {"/run/pool1.PID.board": 2}
    }


def more(now: dict[str, int], pool: str = "pool1") -> dict[str, dict[str, int]]:
    return difference({"pool1": BEFORE}, {pool: Counter(now)})


def test_descriptors_are_compared_by_kind_and_pool() -> None:
    assert more({"socket": 12, "unix socket": 12, "pipe": 3}) == {"pool1": {"socket": 2, "/jobs.db": -1}}
    assert more(dict(BEFORE)) == {"pool1": {}}
    assert more({"socket": 50}, "pool2") == {}
    assert listed({"socket": 2, "/jobs.db": -1}) == "+2 socket, -1 /jobs.db"
    assert listed({}) == "as before"


def test_they_may_grow_by_a_few_connections_and_files_and_nothing_else() -> None:
    for case, changes, told in [
        ("a few", {"socket": SOCKETS, "/jobs.db": MAX_MORE_FILES, "pipe": -2}, ""),
        ("connections", {"socket": SOCKETS + 1}, f"+{SOCKETS + 1} socket"),
        ("unix", {"unix socket": 1}, "+1 unix socket"),
        ("one file", {"/log": MAX_MORE_FILES + 1}, f"+{MAX_MORE_FILES + 1} /log"),
        ("many files", {f"/log{number}": 1 for number in range(3)}, "+1 /log0, +1 /log1, +1 /log2"),
        ("other names", {"/pool.7.board": 2, "/pool.9.board": 3, "/pool.5.board": -3}, ""),
        ("no file", {"anon_inode:[pidfd]": 1, "pipe": 1, "socket": 1}, "+1 anon_inode:[pidfd], +1 pipe"),
        ("memory", {"/memfd:jobpool (deleted)": 1}, "+1 /memfd:jobpool (deleted)"),
    ]:
        assert grown({"pool1": changes}) == ([f"pool1: {told}"] if told else []), case


def test_what_connections_are_depends_on_the_broker() -> None:
    for kind, changes, is_fine in [
        (UNIX_SOCKET, {"unix socket": MAX_MORE_CONNECTIONS[UNIX_SOCKET]}, True),
        (UNIX_SOCKET, {"unix socket": MAX_MORE_CONNECTIONS[UNIX_SOCKET] + 1}, False),
        (UNIX_SOCKET, {"socket": 1}, False),
        (FILE, {"/jobs.db": MAX_MORE_CONNECTIONS[FILE] - 1, "/jobs.db-wal": 1}, True),
        (FILE, {"/jobs.db": MAX_MORE_CONNECTIONS[FILE], "/jobs.db-wal": 1}, False),
        (FILE, {"socket": 1}, False),
    ]:
        assert (grown({"pool1": changes}, kind) == []) is is_fine, (kind, changes)


def test_sockets_of_the_unix_family_are_told_from_others() -> None:
    before = processes.descriptors(os.getpid())
    pair, other = socket.socketpair(), socket.socket()
    now = processes.descriptors(os.getpid())
    for one in (*pair, other):
        one.close()
    assert difference({"": before}, {"": now}) == {"": {"socket": 1, "unix socket": 2}}


def test_the_kind_of_a_connection_to_the_broker() -> None:
    for url, kind in [
        ("redis://test/0", "socket"),
        ("rediss://test/0", "socket"),
        ("redis+unix:///run/redis.sock", "unix socket"),
        ("postgresql://test/jobs", "socket"),
        ("postgresql:///jobs?host=/run/postgresql", "unix socket"),
        ("sqlite:///jobs.db", "file"),
    ]:
        assert connections(url) == kind, url
