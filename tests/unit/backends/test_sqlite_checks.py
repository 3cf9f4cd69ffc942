"""What a database file's settings and place can lose, on files that really are so; but for a network file system,
which no test can mount: there the list of mounts is made up."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobpool.broker.finding import Finding, Level
from jobpool.message.definition import JobDefinition
from jobpool_backends.sqlite import SqliteBackend
from jobpool_backends.sqlite.checks import Mount, diagnose, judge_place, judge_space, mount_of
from jobpool_backends.sqlite.database import PRAGMAS

Open = Callable[..., SqliteBackend]

MOUNTS = [
    Mount("/", "ext4"),
    Mount("/proc", "proc"),
    Mount("/mnt/share", "nfs4"),
    Mount("/mnt/with blank", "cifs"),
    Mount("/mnt/share/local", "xfs"),
    Mount("/run", "tmpfs"),
    Mount("/mnt/sharex", "ext4"),
    Mount("/twice", "ext4"),
    Mount("/twice", "fuse.sshfs"),
]
ON_DISK = [Mount("/", "ext4")]
"""A list of mounts that calls the test's folder a disk, whatever it is."""


def bad(backend: SqliteBackend, **options: Any) -> dict[str, Finding]:
    """By name; each has its mend. How full this disk is, is no affair of the tests."""
    found = {finding.check: finding for finding in diagnose(backend._database, **options) if finding.is_bad}
    assert all(finding.mend for finding in found.values())
    found.pop("sqlite.space", None)
    return found


def test_a_file_on_a_disk_is_well_and_says_so(open_sqlite: Open) -> None:
    backend = open_sqlite()
    assert bad(backend, mounts=ON_DISK) == {}
    assert [finding.check for finding in diagnose(backend._database, mounts=ON_DISK)] == [
        *("sqlite.journal", "sqlite.synchronous", "sqlite.file-system", "sqlite.space", "sqlite.mode"),
    ]


@pytest.fixture
def free_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("free_umask")
def test_a_new_file_and_those_beside_it_are_their_owners_alone(open_sqlite: Open, path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere.db"))
    open_sqlite().enqueue(JobDefinition("report"))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("elsewhere.db*")}
    assert modes == {"elsewhere.db": 0o600, "elsewhere.db-wal": 0o600, "elsewhere.db-shm": 0o600}


@pytest.mark.usefixtures("free_umask")
@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o606, True), (0o660, False)])
def test_a_file_that_was_there_keeps_its_mode_and_the_doctor_tells(
    open_sqlite: Open, path: Path, mode: int, warned: bool
) -> None:
    path.touch()
    path.chmod(mode)
    backend = open_sqlite()
    backend.enqueue(JobDefinition("report"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob(f"{path.name}*")} == {mode}
    assert set(bad(backend, mounts=ON_DISK)) == ({"sqlite.mode"} if warned else set())


@pytest.mark.parametrize("beside", ["", "-wal", "-shm"])
def test_a_file_that_this_user_may_not_write_is_a_problem(
    open_sqlite: Open, path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    """Root may write whatever its mode says, so the system's answer is made up."""
    backend = open_sqlite()
    backend.enqueue(JobDefinition("report"))
    monkeypatch.setattr(os, "access", lambda place, _: str(place) != f"{path}{beside}")
    finding = bad(backend, mounts=ON_DISK)["sqlite.mode"]
    assert (finding.level, finding.found) == (Level.PROBLEM, f"this user may not write {path}{beside}")


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("delete", "readers and writers wait for each other"),
        ("truncate", "readers and writers wait for each other"),
        ("off", "destroys the file"),
        ("memory", "destroys the file"),
    ],
)
def test_a_file_in_another_journal_mode(open_sqlite: Open, mode: str, why: str) -> None:
    backend = open_sqlite()
    backend._database.drop_idle()  # who sets a mode needs the file for itself
    backend._database._files.clear()  # the log beside it goes with the last connection
    backend._database._pragmas = (*PRAGMAS, "journal_mode = DELETE", f"journal_mode = {mode}")
    found = bad(backend, mounts=ON_DISK)["sqlite.journal"]
    assert found.level is Level.PROBLEM
    assert found.found == f"journal_mode {mode}"
    assert why in found.why
    assert "PRAGMA journal_mode=WAL" in found.mend


def test_a_file_that_another_program_has_switched_is_told_once(open_sqlite: Open, path: Path) -> None:
    open_sqlite().close()
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    other.close()
    found = bad(open_sqlite(), mounts=ON_DISK)
    assert list(found) == ["sqlite.journal"]
    assert str(found["sqlite.journal"]).startswith("journal_mode was delete until now: another program sets it")
    assert bad(open_sqlite(), mounts=ON_DISK) == {}


@pytest.mark.parametrize(("value", "word"), [(0, "OFF"), (1, "NORMAL")])
def test_commits_that_do_not_wait_for_the_disk(open_sqlite: Open, value: int, word: str) -> None:
    found = bad(open_sqlite(pragmas=(*PRAGMAS, f"synchronous = {value}")), mounts=ON_DISK)
    assert list(found) == ["sqlite.synchronous"]
    assert found["sqlite.synchronous"].level is Level.PROBLEM
    assert str(found["sqlite.synchronous"]).startswith(f"synchronous {word}: a power failure loses the last jobs")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "ceph", "virtiofs"])
def test_a_network_file_system(open_sqlite: Open, tmp_path: Path, kind: str) -> None:
    found = bad(open_sqlite(), mounts=[*ON_DISK, Mount(os.path.realpath(tmp_path), kind)])
    assert list(found) == ["sqlite.file-system"]
    assert found["sqlite.file-system"].level is Level.PROBLEM
    assert f"({kind}): SQLite's locks and its shared memory do not reach across machines" in str(
        found["sqlite.file-system"]
    )


def test_the_kinds_of_places() -> None:
    for case, mount, level in [
        ("a disk", Mount("/", "ext4"), Level.OK),
        ("a disk through FUSE", Mount("/", "fuseblk"), Level.OK),
        ("somebody's overlay", Mount("/data", "overlay"), Level.OK),
        ("a container's own layer", Mount("/", "overlay"), Level.WARNING),
        ("memory", Mount("/tmp", "tmpfs"), Level.PROBLEM),
        ("a network", Mount("/mnt", "nfs4"), Level.PROBLEM),
        ("not known", None, Level.NOTE),
        ("without its folder", Mount("/somewhere/jobpool.db", "ext4"), Level.PROBLEM),
    ]:
        assert judge_place("/somewhere/jobpool.db", mount).level is level, case


def test_a_hard_link_is_a_problem(path: Path, open_sqlite: Open) -> None:
    backend = open_sqlite()
    os.link(path, path.with_name("second.db"))
    [finding] = [found for found in backend.diagnose() if found.check == "sqlite.file-system"]
    assert finding.level is Level.PROBLEM
    assert "hard link" in finding.found


def test_which_file_system_a_file_is_on() -> None:
    for path, kind in [
        ("/srv/jobs.db", "ext4"),
        ("/mnt/share/jobs.db", "nfs4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er/jobs.db", "nfs4"),
        ("/mnt/share/local/jobs.db", "xfs"),
        ("/mnt/sharex/jobs.db", "ext4"),
        ("/mnt/shared.db", "ext4"),
        ("/mnt/with blank/jobs.db", "cifs"),
        ("/twice/jobs.db", "fuse.sshfs"),
    ]:
        mount = mount_of(path, MOUNTS)
        assert mount is not None, path
        assert mount.kind == kind, path


def test_this_machine_tells_where_the_file_is(open_sqlite: Open, tmp_path: Path) -> None:
    mount = mount_of(str(tmp_path), [Mount(each.mountpoint, each.fstype) for each in psutil.disk_partitions(all=True)])
    assert mount is not None
    assert os.stat(mount.point).st_dev == os.stat(tmp_path).st_dev
    [place] = [found for found in open_sqlite().diagnose() if found.check == "sqlite.file-system"]
    assert f"({mount.kind})" in place.found


def test_a_place_may_be_unknown(open_sqlite: Open) -> None:
    found = {finding.check: finding for finding in diagnose(open_sqlite()._database, mounts=[])}
    assert found["sqlite.file-system"].level is Level.NOTE


def test_how_much_room_is_left() -> None:
    for free, level in [
        (0, Level.PROBLEM),
        (2**20, Level.PROBLEM),
        (200 * 2**20, Level.WARNING),
        (10 * 2**30, Level.OK),
    ]:
        found = judge_space("jobs.db", free)
        assert found.level is level, free
        assert bool(found.mend) is found.is_bad, free
