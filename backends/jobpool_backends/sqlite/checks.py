"""Checks of a database file's place and settings: journal, disk, file system, free space, rights."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from jobpool.broker.finding import Finding, Level
from jobpool_backends.sqlite.database import Database

NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|afs|ncpfs?|ceph|gfs2?|ocfs2|lustre|glusterfs|virtiofs|vboxsf|fuse(\..+)?")
"""Kinds of file systems whose locks, or whose shared memory, are not those of one machine; or may not be."""

IN_MEMORY = re.compile(r"tmpfs|ramfs")
LEAST_FREE_BYTES = 64 * 2**20  # about what the write-ahead log may grow to
LITTLE_FREE_BYTES = 512 * 2**20
_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


class Mount(NamedTuple):
    point: str
    kind: str


def diagnose(database: Database, *, mounts: Sequence[Mount] | None = None) -> list[Finding]:
    """Return the findings, check by check. Raises BackendUnavailable. `mounts`: None = those of this machine."""
    import psutil  # for a person's call: not with the backend

    with database.session() as connection:
        [(mode,)] = connection.execute("PRAGMA journal_mode").fetchall()
        [(synchronous,)] = connection.execute("PRAGMA synchronous").fetchall()
    path = database.path
    if mounts is None:
        with suppress(OSError):
            mounts = [Mount(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)]
    free, status = os.statvfs(os.path.dirname(path)), os.stat(path)
    return [
        judge_journal(path, str(mode), database.found_journal),
        judge_synchronous(int(synchronous)),
        judge_place(path, mount_of(path, mounts or ()), status.st_nlink),
        judge_space(path, free.f_bavail * free.f_frsize),
        judge_mode(path, stat.S_IMODE(status.st_mode)),
    ]


def judge_journal(path: str, mode: str, found: str = "wal") -> Finding:
    """Judge the answer `mode` of PRAGMA journal_mode; `found`: its answer when the file was opened."""
    check, told = "sqlite.journal", f"journal_mode {mode}"
    if mode == found == "wal":
        return Finding(check, Level.OK, told)
    if mode == "wal":
        told = f"journal_mode was {found} until now"
        why = "another program sets it: while it does, readers and writers wait for each other, and leases run out"
        mend = f"find that program (fuser {path}) and have it leave the mode alone; jobpool has set WAL again just now"
    else:
        why = "readers and writers wait for each other, so calls run into their time limit, and leases run out"
        if mode in ("off", "memory"):
            why = "a crash in the middle of a write destroys the file, and all jobs in it"
        mend = f"stop what else uses it, set WAL (sqlite3 {path} 'PRAGMA journal_mode=WAL'), and restart the pools"
    return Finding(check, Level.PROBLEM, told, why, mend)


def judge_synchronous(value: int) -> Finding:
    found = f"synchronous {_SYNCHRONOUS.get(value, value)}"
    if value >= 2:
        return Finding("sqlite.synchronous", Level.OK, found)
    why = "a power failure loses the last jobs that were enqueued, and runs acked ones again"
    return Finding("sqlite.synchronous", Level.PROBLEM, found, why, "leave `pragmas` out: FULL is what jobpool sets")


def judge_place(path: str, mount: Mount | None, links: int = 1) -> Finding:
    """Judge the file system of the file, None = it is not known, and its hard links."""
    check = "sqlite.file-system"
    if links > 1 or (mount and mount.point == os.path.realpath(path)):
        why = "-wal and -shm beside it are not those of its other names: jobs are lost, and run twice"
        mend = "stop all that use it, remove the other names, and mount its folder instead"
        return Finding(check, Level.PROBLEM, f"{path} has a hard link, or is mounted without its folder", why, mend)
    if mount is None:
        return Finding(check, Level.NOTE, f"the file system of {path} is not known")
    found = f"{path} is on {mount.point} ({mount.kind})"
    if NETWORK.fullmatch(mount.kind):
        why = "SQLite's locks and its shared memory do not reach across machines, so jobs are lost and run twice"
        mend = "put the file on a local disk, or use redis:// or postgresql:// for several machines"
        return Finding(check, Level.PROBLEM, found, why, mend)
    if IN_MEMORY.fullmatch(mount.kind):
        why = "it is memory, and a restart of the machine loses every job"
        return Finding(check, Level.PROBLEM, found, why, "put the file on a disk")
    if mount.kind == "overlay" and mount.point == "/":
        why = "it goes when the container is removed, and all jobs in it"
        return Finding(check, Level.WARNING, found, why, "put the file on a volume")
    return Finding(check, Level.OK, found)


def judge_space(path: str, free: int) -> Finding:
    found = f"{free / 2**20:,.0f} MiB are free for {path}"
    if free >= LITTLE_FREE_BYTES:
        return Finding("sqlite.space", Level.OK, found)
    why = "on a full disk nothing can be enqueued or settled, and what ran meanwhile runs again"
    level = Level.PROBLEM if free < LEAST_FREE_BYTES else Level.WARNING
    return Finding("sqlite.space", level, found, why, "free some space, or purge dead letters (`jobpool dead purge`)")


def judge_mode(path: str, mode: int) -> Finding:
    """Judge the permissions of the file, and of those beside it; those of its group may be meant."""
    real = os.path.realpath(path)
    if locked := [each for each in (os.path.dirname(real), real, f"{real}-wal", f"{real}-shm") if _is_locked(each)]:
        why = "what this user starts can enqueue, lease and settle nothing"
        mend = "allow this user to write there, or mount it for writing; or be the user of the pools"
        return Finding("sqlite.mode", Level.PROBLEM, f"this user may not write {', '.join(locked)}", why, mend)
    found = f"{path} has mode {mode:04o}"
    if not mode & 0o007:
        return Finding("sqlite.mode", Level.OK, found)
    why = "every user of this machine reads the payloads of all jobs, and may enqueue if it can be written"
    return Finding("sqlite.mode", Level.WARNING, found, why, f"stop what uses it, and chmod o= {path}*")


def _is_locked(path: str) -> bool:
    return os.path.exists(path) and not os.access(path, os.W_OK)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the file system that holds `path`: of those mounted at its folders the deepest, and of these the last."""
    folder = os.path.realpath(path)
    holding = [mount for mount in mounts if f"{folder}/".startswith(f"{mount.point.rstrip('/')}/")]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)
