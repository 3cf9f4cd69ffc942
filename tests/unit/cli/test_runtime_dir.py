from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from face_boards import a_pool
from support.tables import row

from jobpool.cli.run import _published
from jobpool.errors import ConfigurationError, JobpoolError
from jobpool.master.run import run_pool
from jobpool.ops.runtime_dir import (
    _choose,
    discover,
    note_path,
    register,
    rewrite,
    runtime_dir,
    serving,
    unregister,
)
from jobpool.settings import Settings


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    register(tmp_path, pool := a_pool(tmp_path, backend="redis://me:hush@localhost/0"))
    path = note_path(tmp_path, pool.name, pool.pid)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "hush" not in path.read_text()
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_pools_are_found_by_name_and_oldest_first(tmp_path: Path) -> None:
    pools = [a_pool(tmp_path, name, since) for name, since in (("b", 2.0), ("a", 3.0), ("c", 1.0))]
    for pool in pools:
        register(tmp_path, pool)
    assert [pool.name for pool in discover(tmp_path)] == ["c", "b", "a"]
    assert discover(tmp_path, "a") == [pools[1]]


def test_pools_of_one_broker_are_found_however_its_url_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for pool, same, others in (
        ("redis://me:hush@db/0?timeout=5", ("redis://db/0", "redis://you@db/0"), ("redis://db/1", "redis://other/0")),
        (
            "redis://db/0?timeout=5&prefix=shop",
            ("redis://me:hush@db/0?prefix=shop&dead_max=5",),
            ("redis://db/0", "redis://db/0?prefix=bank"),
        ),
        (
            "postgresql://me@db/jobs?schema=shop&host=/run/a",
            ("postgresql://you:hush@db/jobs?host=/run/a&application_name=x&schema=shop",),
            ("postgresql://me@db/jobs", "postgresql://me@db/jobs?schema=shop&host=/run/b"),
        ),
        ("postgresql://db/?service=a", (), ("postgresql://db/?service=b", "postgresql://db/?service=a&dbname=c")),
        ("beanstalk://db?tube_prefix=shop.", ("beanstalk://db?tube_prefix=shop.&ttr=5",), ("beanstalk://db",)),
        (
            "sqlite:///x.db",
            (f"sqlite:///{tmp_path}/x.db", f"sqlite:///{tmp_path}/link/x.db?timeout=1"),
            ("sqlite:///y",),
        ),
    ):
        held = register(tmp_path, replace(a_pool(tmp_path), backend=pool))
        for url in (pool, *same):
            assert [note.backend for note in serving(tmp_path, url)] == [pool], url
        for url in others:
            assert serving(tmp_path, url) == [], url
        os.close(held)
    assert a_pool(tmp_path).backend == f"sqlite:///{tmp_path}/x.db", "its working directory is not everybody's"


def test_a_pool_lives_as_long_as_it_holds_its_note_whatever_its_pid_tells(tmp_path: Path) -> None:
    pool = replace(a_pool(tmp_path), pid=2**22 + 1)  # nobody's here: of another namespace, or hidden in /proc
    held = register(tmp_path, pool)
    note_path(tmp_path, pool.name, pool.pid).with_suffix(".board").write_bytes(b"")
    assert discover(tmp_path) == [pool] == discover(tmp_path)
    os.close(held)
    assert discover(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "what a dead pool leaves is cleaned up"
    os.close(register(tmp_path, a_pool(tmp_path)))  # of this very process
    assert discover(tmp_path) == []


def test_a_reader_is_not_taken_for_the_pool(tmp_path: Path) -> None:
    pool = a_pool(tmp_path)
    os.close(register(tmp_path, pool))
    with note_path(tmp_path, pool.name, pool.pid).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert discover(tmp_path) == []


def test_a_note_is_changed_in_place_and_does_not_come_back(tmp_path: Path) -> None:
    register(tmp_path, pool := a_pool(tmp_path))
    for queues in (tuple(map(str, range(2000))), ("a",)):
        changed = replace(pool, queues=queues)
        rewrite(tmp_path, changed)
        assert discover(tmp_path) == [changed]
    unregister(note_path(tmp_path, pool.name, pool.pid))
    with pytest.raises(FileNotFoundError):
        rewrite(tmp_path, pool)


def test_one_machine_is_known_by_its_boot_or_its_name(tmp_path: Path) -> None:
    pool = a_pool(tmp_path)
    boot, host = pool.machine
    for machine, seen in ((boot, "renamed"), True), (("an earlier boot", host), True), (("other", "elsewhere"), False):
        held = register(tmp_path, replace(pool, machine=machine))
        with row(machine):
            assert len(discover(tmp_path)) == seen
            os.close(held)
            assert discover(tmp_path) == []
            assert note_path(tmp_path, pool.name, pool.pid).exists() is not seen


def test_what_is_no_note_of_this_version_is_left_alone(tmp_path: Path) -> None:
    """It holds no lock; that of a version before may live."""
    former = asdict(a_pool(tmp_path)) | {"machine": None, "boot": "b", "host": "h"}
    for text in ("", "{", "[]", "{}", '{"pid": 1}', "\x00\xff", json.dumps(former)):
        (tmp_path / "x.json").write_text(text)
        assert discover(tmp_path) == [], text
        assert (tmp_path / "x.json").exists(), text


# --- which directory --------------------------------------------------------------------------------


def test_the_named_directory_is_made_private_with_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(tmp_path / "a" / "b"))
    umask = os.umask(0)
    try:
        directory = runtime_dir()
    finally:
        os.umask(umask)
    assert directory == tmp_path / "a" / "b"
    assert [stat.S_IMODE(place.stat().st_mode) for place in (directory, tmp_path / "a")] == [0o700, 0o700]


def test_the_variable_comes_before_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == tmp_path / "mine"
    monkeypatch.delenv("JOBPOOL_RUNTIME_DIR")
    assert runtime_dir() == tmp_path / "jobpool"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives directories away")
def test_root_takes_no_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 4242, 4242)
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(theirs))
    with pytest.raises(ConfigurationError, match=r"belongs to another user \(uid 4242\)"):
        runtime_dir()
    monkeypatch.delenv("JOBPOOL_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))  # as `sudo -E` hands it on
    assert _choose() == Path("/run/jobpool")


def test_probes_find_the_pools_although_the_temporary_directory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")  # it has tried to write

    for variable in ("JOBPOOL_RUNTIME_DIR", "XDG_RUNTIME_DIR", "TEMP", "TMP"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(tempfile, "gettempdir", full)
    for named, place in ((tmp_path, tmp_path), (tmp_path / "nowhere", Path("/tmp"))):
        monkeypatch.setenv("TMPDIR", str(named))
        assert _choose() == place / "jobpool-12345"


def test_last_a_directory_of_the_users_own_below_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("JOBPOOL_RUNTIME_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 12345)
    if os.getuid():
        assert runtime_dir() == tmp_path / f"jobpool-{os.getuid()}"
    else:
        with pytest.raises(ConfigurationError, match=r"belongs to another user \(uid 0\): be that user, or set"):
            runtime_dir()


def test_a_place_that_cannot_be_ours_is_refused_with_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for place, told in [
        ("open", "can be written by others; chmod 700 it, or set .* to a folder below it"),
        ("link", "is not a directory"),
        ("file/sub", r"cannot be made: .* set JOBPOOL_RUNTIME_DIR"),
    ]:
        monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(tmp_path / place))
        with row(place), pytest.raises(ConfigurationError, match=told):
            runtime_dir()


def test_a_pool_that_cannot_leave_its_note_runs_unseen_unless_the_place_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(queues=(("reports", 1.0),), backend="memory://", name="shop")
    monkeypatch.delenv("JOBPOOL_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = runtime_dir()
    note_path(directory, "shop", os.getpid()).with_suffix(".new").mkdir()
    with _published(settings) as (_, note):
        assert note is None
    mend = "set JOBPOOL_RUNTIME_DIR to a folder that only you can write"
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(directory))
    with pytest.raises(ConfigurationError, match=mend), _published(settings):
        pass
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")  # under systemd, which waits to be told of it
    with pytest.raises(ConfigurationError, match=mend), _published(settings):
        pass


@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_runtime_directory_without_room_is_no_fault_of_the_settings(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = tmp_path / "full"
    monkeypatch.setenv("JOBPOOL_RUNTIME_DIR", str(directory))
    with monkeypatch.context() as patched:
        patched.setattr(Path, call, full)
        with pytest.raises(JobpoolError, match="No space left on device; set JOBPOOL_RUNTIME_DIR") as refused:
            register(runtime_dir(), a_pool(directory))
    assert not isinstance(refused.value, ConfigurationError), "a service manager tries again"
    assert list(tmp_path.rglob("*.new")) == []


def test_a_scoreboard_without_room_is_no_fault_of_jobpool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    settings = Settings(queues=(("reports", 1.0),), backend="memory://", board_path=str(tmp_path / "a.board"))
    with pytest.raises(JobpoolError, match=r"a\.board cannot be written: No space left .* JOBPOOL_RUNTIME_DIR"):
        run_pool(settings)
