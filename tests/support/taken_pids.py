"""Runs two pools in a pid namespace of its own, where every pid that they let go is taken by a stranger at once.

`unshare --pid --fork --mount-proc python taken_pids.py FOLDER`, with `tests` on the path. In a namespace of its own
the next pid can be chosen (`ns_last_pid`), which is what makes pids come back at the very moment of a test.

Each stranger leads a session and a group of its own, and descends from no pool: a signal to its pid or its group
was meant for the process that had the number before. It ends with status 0 if every stranger is alive at the end.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from jobpool_torture.processes import is_alive
from support.poolrig import PoolProcess, Rig, kill_child
from support.waiting import wait_until

NEXT_PID = Path("/proc/sys/kernel/ns_last_pid")
LIMIT = 60.0
TIMEOUT = 1.0
FAR = 20_000
"""Where the numbers of all others go on, so that no freed one is the next."""


class Strangers:
    """Processes under numbers that were the pools'."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def take(self, pids: Iterable[int]) -> None:
        """Let one be born under each number, once nobody has it; a new process of the pool's own may be quicker."""
        for pid in pids:
            wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), LIMIT, f"{pid} is free")  # type: ignore[misc]
            wait_until(lambda pid=pid: self._born_as(pid), LIMIT, f"a stranger is {pid}")  # type: ignore[misc]

    def _born_as(self, pid: int) -> bool:
        NEXT_PID.write_text(str(pid - 1))
        stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
        NEXT_PID.write_text(str(FAR + 100 * len(self.all)))
        if stranger.pid == pid:
            self.all.append(stranger)
            return True
        stranger.kill()
        stranger.wait()
        return Path(f"/proc/{pid}").exists()

    def dead(self) -> list[int]:
        """Those that somebody has killed."""
        return [stranger.pid for stranger in self.all if not is_alive(stranger.pid)]


def wait_filled(pool: PoolProcess, count: int, strangers: Strangers) -> None:
    """As `wait_ready`, which takes a stranger for the child that had its number."""
    taken = {stranger.pid for stranger in strangers.all}
    wait_until(lambda: not taken & set(pool.slots().values()) and len(pool.children()) == count, LIMIT, "new children")
    pool.wait_ready(count)


def kill_and_take(pool: PoolProcess, pids: list[int], strangers: Strangers) -> None:
    for pid in pids:
        assert kill_child(pool, pid), pid
    strangers.take(pids)


def children_under_a_deadline(rig: Rig, pool: PoolProcess, strangers: Strangers) -> None:
    """They die, and their deadline passes, while the master is stopped: when it goes on, others have their numbers."""
    ids = [rig.enqueue("again", {"first": 600, "later": 0}, timeout=TIMEOUT) for _ in range(2)]
    lines = rig.wait_started(*ids)
    pool.send(signal.SIGSTOP)
    kill_and_take(pool, [line.pid for line in lines], strangers)
    wait_until(lambda: time.monotonic() > lines[-1].at + TIMEOUT + 2.0, LIMIT, "deadline and grace have passed")
    pool.send(signal.SIGCONT)
    wait_filled(pool, 2, strangers)


def a_fork_server_and_its_children(pool: PoolProcess, strangers: Strangers) -> None:
    """The children are the master's orphans then: it collects them itself."""
    [server] = pool.fork_servers()
    doomed = [server, *pool.children()]
    pool.send(signal.SIGSTOP)
    killed_first = doomed[-1]
    kill_and_take(pool, [killed_first], strangers)  # collected, and its death told to a master that does not listen
    subprocess.run(["kill", "-KILL", str(server)], check=True)
    pool.send(signal.SIGCONT)
    wait_until(lambda: pool.fork_servers() not in ([], [server]), LIMIT, "another fork server")
    strangers.take(doomed[:-1])
    wait_filled(pool, 2, strangers)


def a_reload_and_fewer_children(pool: PoolProcess, strangers: Strangers) -> None:
    old = [*pool.fork_servers(), *pool.children()]
    pool.send(signal.SIGHUP)
    strangers.take(old)
    wait_filled(pool, 2, strangers)
    before = pool.children()
    pool.send(signal.SIGTTOU)
    wait_until(lambda: len(pool.children()) == 1, LIMIT)
    strangers.take(set(before) - set(pool.children()))


def a_timeout_in_c(rig: Rig, pool: PoolProcess, strangers: Strangers) -> None:
    """Alarm, stack dump and kill in a row."""
    ident = rig.enqueue("hang", {"how": "hang_in_sum"}, timeout=0.3)
    [line] = rig.wait_started(ident)
    wait_until(lambda: rig.is_dead(ident), LIMIT)
    strangers.take([line.pid])
    wait_filled(pool, 1, strangers)


def main(folder: Path) -> None:
    strangers = Strangers()
    with Rig(folder, witness=True) as rig:
        harmed, other = pools = [rig.start_pool("--max-crashes", "0", "--kill-grace", "0.3") for _ in range(2)]
        for pool in pools:
            pool.wait_ready(2)
        with closing(sqlite3.connect(folder / "jobpool.db", LIMIT)) as database:
            database.execute("BEGIN IMMEDIATE")  # so that the one which stops does not hold the lock for good
            other.send(signal.SIGSTOP)  # what this one would run cannot be foreseen
            wait_until(lambda: Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", LIMIT)
        children_under_a_deadline(rig, harmed, strangers)
        a_fork_server_and_its_children(harmed, strangers)
        a_reload_and_fewer_children(harmed, strangers)
        a_timeout_in_c(rig, harmed, strangers)
        other.send(signal.SIGCONT)
        rig.enqueue_many("work", [{"seconds": 0.01}] * 50)
        rig.wait_drained()
        rig.account().assert_clean()
        assert [pool.stop() for pool in pools] == [0, 0]
        assert not strangers.dead(), strangers.dead()
        print(len(strangers.all), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
